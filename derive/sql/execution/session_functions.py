"""SQL functions with effects on the session: settings, sleep, advisory locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from derive.algebra.types import Datum
from derive.errors import SqlError
from derive.sql.backends import Backends
from derive.sql.execution.state import State
from derive.sql.pg_catalog.effects import Argument, Effect
from derive.sql.preparation.known_settings import boolean_of, unknown

_MOST_SECONDS = 366 * 86_400.0


class SessionFunctions:
    """The effects of functions on one session.

    Args:
        state: state of the session.
        backends: all sessions of the server.
    """

    def __init__(self, state: State, backends: Backends) -> None:
        self._state = state
        self._backends = backends

    def begin(self) -> None:
        """Begin a statement: cancellation applies to this statement from now on."""
        self._state.go_on()

    @contextmanager
    def ending(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if the statement in this block is cancelled or times out."""
        done = self._state.limit()
        self._state.on_stop = stop
        try:
            yield
        except SqlError as error:
            if error.sqlstate == "57014":
                self._state.check_stopped()  # raises the reason of the cancellation
            raise
        finally:
            self._state.on_stop = None
            done()

    async def call(self, effect: Effect) -> Datum:
        """Execute an effect, and return the function's value.

        Raises:
            SqlError: the effect is invalid, or the statement is cancelled.
        """
        name, arguments = effect.function, effect.arguments
        match name, arguments:
            case "missing_setting", (setting,):
                raise unknown(str(setting))
            case "pg_notify", (_, _):
                raise SqlError("0A000", "NOTIFY is not supported", hint="SUBSCRIBE tells of changes")
            case "set_config", (str() as setting, value, is_local):
                return self._set(setting, value, is_local)
            case "pg_cancel_backend", (int() as process,):
                return int(self._backends.cancel(process))
            case "pg_terminate_backend", (int() as process,):
                return int(self._backends.terminate(process))
            case "pg_sleep", (seconds,):
                return await self._sleep(seconds)
        if "advisory" in name:
            return await self._lock(name, arguments)
        raise SqlError("42883", f"function {name} does not take these {len(arguments)} arguments")

    def _set(self, setting: str, value: Argument, is_local: Argument) -> str:
        text = None if value is None else str(value)
        local = boolean_of("is_local", str(is_local)) == "on"
        self._state.settings.set(setting, text, is_local=local)
        return self._state.settings.get(setting)

    async def _sleep(self, seconds: Argument) -> Datum:
        try:
            duration = 0.0 if seconds is None else min(float(seconds), _MOST_SECONDS)
        except ValueError:
            raise SqlError("22P02", f'invalid input syntax for type double precision: "{seconds}"') from None
        await self._wait(asyncio.sleep(max(0.0, duration)))
        return None if seconds is None else ""

    async def _lock(self, name: str, arguments: tuple[Argument, ...]) -> Datum:
        locks = self._state.coordinator.advisory_locks
        if name == "pg_advisory_unlock_all" and not arguments:
            locks.release(self._state, is_of_transaction=False)
            return ""
        try:
            key = tuple(int(str(argument)) for argument in arguments)
        except ValueError:
            key = ()
        if len(key) not in (1, 2):
            raise SqlError("42883", f"function {name} takes a bigint, or two integers")
        is_shared, is_of_transaction = name.endswith("_shared"), "_xact_" in name
        if name.startswith("pg_advisory_unlock"):
            return int(locks.unlock(self._state, key, is_shared=is_shared))
        if name.startswith("pg_try_"):
            return int(locks.try_lock(self._state, key, is_shared=is_shared, is_of_transaction=is_of_transaction))
        done = self._state.limit_lock()
        try:
            await self._wait(locks.lock(self._state, key, is_shared=is_shared, is_of_transaction=is_of_transaction))
        finally:
            done()
        return ""

    async def _wait(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work, subject to the statement timeout."""
        done = self._state.limit()
        try:
            with self._state.interruptible():
                await work
        finally:
            work.close()  # no effect if the work has run
            done()
