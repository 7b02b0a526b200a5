"""A session: one client's conversation in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from derive.algebra.types import Datum, Row
from derive.contents.rows import ReadProgress
from derive.errors import FlowError, SqlError
from derive.functions.statement_context import running
from derive.recently_used import MOST_CHARACTERS, RecentlyUsed
from derive.sql.backends import Backends, SingleBackend
from derive.sql.catalog.snapshot import Objects
from derive.sql.coordinator import Coordinator
from derive.sql.execution.ddl import drop_temporary
from derive.sql.execution.dml import RowInsert, row_insert
from derive.sql.execution.executor import execute, planned
from derive.sql.execution.query import look_up
from derive.sql.execution.settings import Settings
from derive.sql.execution.state import LOCAL_USER, State, User
from derive.sql.parser.parse import split
from derive.sql.parser.transaction_statements import (
    Commit,
    Rollback,
    RollbackTo,
)
from derive.sql.preparation import Plan
from derive.sql.results import Prepared, ReadyRows, Result, TransactionStatus

_OF_TEXT = frozenset({"42601", "57014"})
"""SQLSTATEs of a preparation that an aborted transaction reports, too: of the syntax, and of a cancellation."""


_MOST_INSERTS = 100


def _aborted() -> SqlError:
    return SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")


class SqlSession:
    """One client's session.

    Args:
        coordinator: the coordinator, shared by all sessions.
        begun: startup settings.
        most_bytes: greatest size of a result in bytes; None for no limit.
        backends: all sessions of the server.
        fixed: settings that the server determines.
        user: user of the session.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        begun: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
        backends: Backends | None = None,
        fixed: Mapping[str, str] = MappingProxyType({}),
        user: User = LOCAL_USER,
    ) -> None:
        fixed = {**fixed, "session_authorization": user.name}
        self._state = State(coordinator, Settings(begun or {}, fixed), most_bytes, user, backends or SingleBackend())
        self._row_inserts: RecentlyUsed[int, tuple[object, RowInsert | None]] = RecentlyUsed(_MOST_INSERTS)  # by plan
        self._sessions = coordinator.sessions
        self._sessions.add(self)

    @property
    def status(self) -> TransactionStatus:
        """Return the status of the transaction."""
        return self._state.status

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        """Return the timeout in seconds of an idle session or idle transaction, and its error; None if missing."""
        is_idle = self._state.status is TransactionStatus.IDLE
        seconds = self._state.settings.seconds(f"idle{'' if is_idle else '_in_transaction'}_session_timeout")
        if seconds is None:
            return None
        sqlstate, what = ("57P05", "idle-session") if is_idle else ("25P03", "idle-in-transaction")
        return seconds, SqlError(sqlstate, f"terminating connection due to {what} timeout")

    @property
    def parameters(self) -> dict[str, str]:
        """Return the settings that are reported to clients."""
        return self._state.settings.reported

    @property
    def objects(self) -> Objects:
        """Return the names, including definitions of the transaction."""
        return self._state.objects

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        """Return the statements of a text with their offsets."""
        return split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Prepare one statement."""
        state = self._state
        state.begin_statement()
        try:
            if len(text) <= MOST_CHARACTERS:
                return planned(state, text, oids).prepared()
            return await self._prepare_long(text, oids)
        except SqlError as error:
            if state.is_failed and error.sqlstate not in _OF_TEXT:
                raise _aborted() from error
            raise

    async def _prepare_long(self, text: str, oids: Sequence[int]) -> Prepared:
        """Prepare a long statement in a thread."""
        state = self._state
        done = state.limit()

        def prepared() -> Prepared:
            with running(lambda: state.is_stopped):
                return planned(state, text, oids).prepared()

        try:
            return await asyncio.to_thread(prepared)
        except SqlError as error:
            if error.sqlstate == "57014":
                state.check_stopped()  # raises the reason of the cancellation
            raise
        finally:
            done()

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Execute a statement."""
        self._state.begin_statement()
        before = prepared.plan
        assert isinstance(before, Plan)
        if self._state.is_failed and not isinstance(before.statement, Commit | Rollback | RollbackTo):
            raise _aborted()
        done = self._state.limit()
        try:
            result = await execute(self._state, before, arguments)
        except BaseException:
            done()
            raise
        if result.rows is None or result.is_prompt or isinstance(result.rows, ReadyRows):
            done()
            return result
        return replace(result, rows=self._until_sent(result.rows, done))

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        """Return the rows of a point lookup on the fast path; None if `execute` must take the statement."""
        plan = prepared.plan
        return look_up(self._state, plan, arguments) if isinstance(plan, Plan) else None

    def inserts_at_once(self, prepared: Prepared) -> bool:
        """Return whether `insert` takes a statement now."""
        insert = self._row_insert(prepared.plan)
        return insert is not None and insert.is_possible(self._state)

    def insert(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Execute an INSERT of a row that `inserts_at_once` takes."""
        insert = self._row_insert(prepared.plan)
        assert insert is not None
        self._state.begin_statement()
        return insert.execute(self._state, arguments)

    def _row_insert(self, plan: object) -> RowInsert | None:
        before = self._row_inserts.get(id(plan))
        if before is not None and before[0] is plan:
            return before[1]
        return self._row_inserts.put(id(plan), (plan, row_insert(plan) if isinstance(plan, Plan) else None))[1]

    async def _until_sent(
        self, rows: AsyncIterator[Sequence[Row]], done: Callable[[], None]
    ) -> AsyncIterator[Sequence[Row]]:
        """Yield rows, and call `done` at the end."""
        try:
            async for batch in rows:
                yield batch
        except SqlError as error:
            if error.sqlstate == "57014":
                self._state.check_stopped()  # raises the reason of the cancellation
            raise
        finally:
            done()
            if isinstance(rows, AsyncGenerator):
                await rows.aclose()

    async def begin_implicit(self) -> None:
        """Do nothing: the next statement begins a transaction."""

    async def end_implicit(self) -> None:
        """Commit the implicit transaction."""
        if not self._state.is_explicit:
            self._state.begin_statement()
            with self._state.interruptible():
                await self._state.commit()

    async def fail(self) -> None:
        """Handle the failure of a statement."""
        if self._state.is_explicit:
            self._state.is_failed = True
        else:
            await self._state.roll_back()

    def watch_reads(self) -> ReadProgress:
        """Return the progress of the reads of the statements from now on."""
        self._state.reads = ReadProgress()
        return self._state.reads

    def cancel(self) -> None:
        """Cancel the current statement; from any thread."""
        self._state.stop()

    async def close(self) -> None:
        """Close the session."""
        self._sessions.discard(self)
        self._state.coordinator.advisory_locks.release(self._state, is_of_transaction=False)
        self._state.stop()
        await self._state.close_cursors(all_of_them=True)
        await self._state.roll_back()
        with suppress(FlowError):  # a later server drops them
            await drop_temporary(self._state)
