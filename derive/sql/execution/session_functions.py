"""SQL functions with effects on the session: settings, sleep, advisory locks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from derive.algebra.types import Datum
from derive.errors import SqlError
from derive.functions.statement_context import CatalogNames, StatementContext
from derive.sql.execution.state import State
from derive.sql.pg_catalog.objects import SessionFacts

_MOST_SECONDS = 366 * 86_400.0


def context_of(state: State, catalog: CatalogNames) -> StatementContext:
    """Return the context of a statement that is evaluated in another thread."""
    loop, functions = asyncio.get_running_loop(), SessionFunctions(state)

    def setting(name: str) -> str | None:
        try:
            return state.settings.get(name)
        except SqlError:
            return None

    def effect(name: str, arguments: tuple[Datum, ...]) -> Datum:
        return asyncio.run_coroutine_threadsafe(functions.call(name, arguments), loop).result()

    return StatementContext(catalog, setting, effect, state.backends.process)


def facts_of(state: State) -> SessionFacts:
    """Return facts about the session and the other sessions."""
    return SessionFacts(state.settings.all(), state.backends.all(), state.user.name)


class SessionFunctions:
    """The effects of functions on one session.

    Args:
        state: state of the session.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    async def call(self, name: str, arguments: tuple[Datum, ...]) -> Datum:
        """Execute the effect of a function, and return its value.

        Args:
            name: name of the function.
            arguments: a datum for each argument, of the types in `derive.functions.scalar.catalog`.

        Raises:
            SqlError: the effect is invalid, or the statement is cancelled.
        """
        match name, arguments:
            case "pg_notify", _:
                raise SqlError("0A000", "NOTIFY is not supported", hint="use SUBSCRIBE to receive changes")
            case "set_config", (str() as setting, str() | None as value, is_local):
                self._state.settings.set(setting, value, is_local=bool(is_local))
                return self._state.settings.get(setting)
            case "pg_cancel_backend", (int() as process,):
                return int(self._state.backends.cancel(process))
            case "pg_terminate_backend", (int() as process,):
                return int(self._state.backends.terminate(process))
            case "pg_sleep", (float() as seconds,):
                await self._wait(asyncio.sleep(max(0.0, min(seconds, _MOST_SECONDS))))
                return ""
        return await self._lock(name, tuple(argument for argument in arguments if isinstance(argument, int)))

    async def _lock(self, name: str, key: tuple[int, ...]) -> Datum:
        locks = self._state.coordinator.advisory_locks
        if name == "pg_advisory_unlock_all":
            locks.release(self._state, is_of_transaction=False)
            return ""
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
