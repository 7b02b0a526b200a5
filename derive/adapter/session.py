"""A session: one client's conversation in SQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from derive.adapter.coordinator import Coordinator
from derive.adapter.dispatch import carry_out, current, planned
from derive.adapter.outcome import Prepared, Result, TransactionStatus
from derive.adapter.parser.parse import split
from derive.adapter.parser.statement import Commit, Rollback
from derive.adapter.preparing import Plan
from derive.adapter.settings import Settings
from derive.adapter.state import State
from derive.compute.algebra.types import Datum, Row
from derive.errors import SqlError


class SqlSession:
    """One client's conversation in SQL.

    Args:
        coordinator: what it shares with others.
        begun: settings with which it begins.
        most_bytes: so much may be in a result; None for any amount.
    """

    def __init__(
        self, coordinator: Coordinator, begun: Mapping[str, str] | None = None, most_bytes: int | None = None
    ) -> None:
        self._state = State(coordinator, Settings(begun or {}), most_bytes)
        self._sessions = coordinator.sessions
        self._sessions.add(self)

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""
        return self._state.status

    @property
    def parameters(self) -> dict[str, str]:
        """What clients are told of settings."""
        return self._state.settings.told

    def split(self, text: str) -> Sequence[str]:
        """The statements of a text."""
        return split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Understand one statement."""
        self._state.go_on()
        return planned(self._state, text, oids).prepared()

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Begin to carry out a statement."""
        self._state.go_on()
        before = prepared.plan
        assert isinstance(before, Plan)
        if self._state.is_failed and not isinstance(before.statement, Commit | Rollback):
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        done = self._state.limit()
        try:
            result = await carry_out(self._state, current(self._state, before), arguments)
        except BaseException:
            done()
            raise
        if result.rows is None or result.is_prompt:
            done()
            return result
        return replace(result, rows=self._until_sent(result.rows, done))

    async def _until_sent(
        self, rows: AsyncIterator[Sequence[Row]], done: Callable[[], None]
    ) -> AsyncIterator[Sequence[Row]]:
        """Rows, after which, or instead of the rest of which, something is done."""
        try:
            async for batch in rows:
                yield batch
        except SqlError as error:
            if error.sqlstate == "57014":
                self._state.check_stopped()  # it knows why
            raise
        finally:
            done()
            if isinstance(rows, AsyncGenerator):
                await rows.aclose()

    async def begin_implicit(self) -> None:
        """What follows is one transaction unless one is open."""

    async def end_implicit(self) -> None:
        """Commit what is not part of an explicit transaction."""
        if not self._state.is_explicit:
            self._state.go_on()
            with self._state.interruptible():
                await self._state.commit()

    async def fail(self) -> None:
        """A statement has failed."""
        if self._state.is_explicit:
            self._state.is_failed = True
        else:
            await self._state.roll_back()

    def cancel(self) -> None:
        """Have the statement at work end with an error; from any thread."""
        self._state.stop()

    async def close(self) -> None:
        """The client is gone."""
        self._sessions.discard(self)
        self._state.stop()
        await self._state.close_cursors(all_of_them=True)
        await self._state.roll_back()
