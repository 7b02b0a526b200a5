"""The state of a session between statements: user, transaction, savepoints, cursors, settings, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.sql.backends import Backends
from derive.sql.catalog.items import ON_COMMIT
from derive.sql.catalog.snapshot import DdlTransaction, Objects
from derive.sql.coordinator import Coordinator
from derive.sql.execution.deployment import deploy
from derive.sql.execution.settings import Settings, SetValues
from derive.sql.parser.statement import AsOf
from derive.sql.planner.planned import PlannedQuery, bind, of_read
from derive.sql.preparation import isolation_of
from derive.sql.results import ResultColumn, TransactionStatus
from derive.sql.transactions.deferral import NOTHING_SET, Deferral
from derive.sql.transactions.group_commit import Commit
from derive.sql.transactions.transaction import Isolation, Modes, Transaction

if TYPE_CHECKING:
    from derive.contents.rows import ReadProgress
    from derive.sql.preparation import Plan


class Cursor:
    """A cursor: rows that are fetched in pieces.

    Args:
        columns: columns of the rows.
        rows: all rows, in batches.
        is_held: whether the cursor outlives its transaction.
        is_endless: whether the rows come from a subscription, so that a fetch returns the rows that are ready.

    Attributes:
        columns: columns of the rows.
        is_held: whether the cursor outlives its transaction.
    """

    def __init__(
        self,
        columns: tuple[ResultColumn, ...],
        rows: AsyncIterator[Sequence[Row]],
        *,
        is_held: bool = False,
        is_endless: bool = False,
    ) -> None:
        self.columns, self.is_held = columns, is_held
        self._rows, self._is_endless = rows, is_endless
        self._ready: list[Row] = []
        self._next: asyncio.Future[Sequence[Row] | None] | None = None
        self._is_done = False

    async def fetch(self, count: int | None, timeout: float | None) -> list[Row]:
        """Return the next rows.

        Args:
            count: greatest number of rows; None for all, or for all ready rows of a subscription.
            timeout: longest wait in seconds; None for no limit.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not self._is_done and (count is None or len(self._ready) < count):
            if self._is_endless and self._ready and deadline is None:
                break
            if not await self._gather(deadline):
                break
        taken = len(self._ready) if count is None else count
        rows, self._ready = self._ready[:taken], self._ready[taken:]
        return rows

    async def close(self) -> None:
        """Close the cursor."""
        self._is_done = True
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
            _has_failed(self._next)  # without this call, asyncio would log the error
        if hasattr(self._rows, "aclose"):
            await self._rows.aclose()

    async def _gather(self, deadline: float | None) -> bool:
        """Read one more batch; return False at the deadline."""
        if self._next is None:
            self._next = asyncio.ensure_future(_one(self._rows))
        left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait([self._next], timeout=left)
        if not done:
            return False
        if self._is_endless and self._ready and _has_failed(self._next):
            return False  # the rows before the error are returned first
        gathered, self._next = self._next, None
        batch = gathered.result()
        self._is_done = batch is None
        self._ready += batch or ()
        return True


def _has_failed(done: asyncio.Future[Sequence[Row] | None]) -> bool:
    """Return whether a future has failed for a reason other than cancellation."""
    error = None if done.cancelled() else done.exception()
    return isinstance(error, SqlError) and error.sqlstate != "57014"


async def _one(rows: AsyncIterator[Sequence[Row]]) -> Sequence[Row] | None:
    async for batch in rows:
        return batch
    return None


@dataclass(frozen=True, slots=True)
class User:
    """The user of a session.

    Attributes:
        name: name that the client has sent.
        reads_files: whether the user may create sources from files of the server.
        changes_replicas: whether the user may create and drop replicas.
        names: names of all users; None if every name may connect.
    """

    name: str = "flow"
    reads_files: bool = True
    changes_replicas: bool = True
    names: frozenset[str] | None = None


LOCAL_USER = User()
"""The user of a command, and of a server without passwords."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint of a transaction.

    Attributes:
        name: name; a later savepoint may have the same name.
        writes: number of writes before the savepoint.
        ddl: definitions before the savepoint.
        cursors: names of the open cursors.
        settings: values of the settings.
        deferral: effect of SET CONSTRAINTS.
    """

    name: str
    writes: int
    ddl: DdlTransaction | None
    cursors: frozenset[str]
    settings: SetValues
    deferral: Deferral


def latest(savepoints: Sequence[Savepoint], name: str, offset: int) -> int:
    """Return the index of the latest savepoint with a name.

    Raises:
        SqlError: the savepoint does not exist (3B001).
    """
    for index in reversed(range(len(savepoints))):
        if savepoints[index].name == name:
            return index
    raise SqlError("3B001", f'savepoint "{name}" does not exist', offset=offset)


class State:
    """The state of one session.

    Args:
        coordinator: the coordinator, shared by all sessions.
        settings: settings of the session.
        most_bytes: greatest size of a result in bytes; None for no limit.
        user: user of the session.
        backends: all sessions of the server.

    Attributes:
        statements: prepared statements by name.
        cursors: open cursors by name.
        is_explicit: whether a transaction block is open.
        is_failed: whether the transaction has failed.
        waiting: the waiting task that cancellation may interrupt; None if missing.
        ddl: definitions of the transaction; None without any.
        planned: version of the names that the present statement was planned with; None before any.
        names: names of the present read.
        kept_names: names of the first read of a transaction block, which its later statements have; None before.
        ended: number of transactions that have ended.
        deferral: effect of SET CONSTRAINTS on the transaction.
        reads: progress of the reads of the present statement; None if nobody watches it.
    """

    def __init__(
        self, coordinator: Coordinator, settings: Settings, most_bytes: int | None, user: User, backends: Backends
    ) -> None:
        self.coordinator, self.settings, self.most_bytes, self.user = coordinator, settings, most_bytes, user
        self.backends = backends
        self.statements: dict[str, Plan] = {}
        self.cursors: dict[str, Cursor] = {}
        self.is_explicit = self.is_failed = False
        self.ddl: DdlTransaction | None = None
        self.planned: int | None = None
        self.names = coordinator.objects
        self.kept_names: Objects | None = None
        self.ended = 0
        self._later: tuple[Objects, Objects] | None = None  # the present names, and the kept ones with later items
        self.deferral = NOTHING_SET
        self.reads: ReadProgress | None = None
        self.temporary: str | None = None
        self.sequence_values: dict[int, int] = {}  # by counter
        self.last_sequence: int | None = None
        self._savepoints: list[Savepoint] = []
        self._transaction: Transaction | None = None
        self._loop = asyncio.get_running_loop()
        self._implicit: tuple[object, Modes] | None = None
        self._stopped = threading.Event()
        self._reason: SqlError | None = None
        self.waiting: asyncio.Task[object] | None = None

    @property
    def objects(self) -> Objects:
        """Return the names, including definitions of the transaction."""
        objects = self.ddl.objects if self.ddl else self.present_names
        return objects.seen_by(self.settings.search_path(self.user.name, self.temporary), self.settings.zone)

    @property
    def present_names(self) -> Objects:
        """Return the names without definitions of the transaction; a transaction keeps the names of its first read."""
        now = self.coordinator.refresh()
        if self.kept_names is None or self.kept_names.version == now.version:
            return now
        if self._later is None or self._later[0] is not now:
            self._later = now, self.kept_names.with_later(now)
        return self._later[1]

    # Transactions

    @property
    def status(self) -> TransactionStatus:
        """Return the status of the transaction."""
        if not self.is_explicit:
            return TransactionStatus.IDLE
        return TransactionStatus.FAILED if self.is_failed else TransactionStatus.OPEN

    @property
    def is_at_rest(self) -> bool:
        """Return whether the session is outside a transaction, and its next transaction is strictly serializable."""
        is_begun = self.is_explicit or self._transaction is not None or self.ddl is not None
        return not is_begun and self._implicit_modes().isolation is Isolation.STRICT_SERIALIZABLE

    @property
    def transaction(self) -> Transaction:
        """Return the transaction of the current statement."""
        if self._transaction is None:
            self._transaction = self._new(self._implicit_modes())
        return self._transaction

    def check_written(self) -> None:
        """Check that other sessions have not changed the tables that the transaction has written.

        Raises:
            SqlError: a table was altered, renamed or dropped (40001).
        """
        if self._transaction is not None:
            self._transaction.check_shapes(self.coordinator.objects.version)

    def bound(self, query: PlannedQuery, arguments: Sequence[Datum] = (), as_of: AsOf | None = None) -> PlannedQuery:
        """Return a query with its arguments bound, and `now()` bound to the start of the transaction.

        With AS OF, `now()` is the time of the read.
        """
        if as_of is not None:
            query = replace(query, relation=of_read(query.relation))
        return bind(query, arguments, self.transaction.begun if query.is_of_session else None, self.user.name)

    def begin(self, level: str | None, is_read_only: bool | None) -> None:
        """Begin an explicit transaction, including earlier statements of the same message.

        Args:
            level: name of its isolation level; None for the default of the session.
            is_read_only: whether it only reads; None for the default of the session.

        Raises:
            SqlError: the level does not exist (22023); or there was a query, and the level would change (25001).
        """
        if self._transaction is None:
            self._transaction = self._new(self._modes(level, is_read_only, is_explicit=True))
        else:
            self.set_modes(level, is_read_only)
            self._transaction.modes = replace(self._transaction.modes, is_explicit=True)
        self.is_explicit = True

    def set_modes(self, level: str | None, is_read_only: bool | None) -> None:
        """Set the modes of the transaction; None keeps a mode.

        Raises:
            SqlError: the level does not exist (22023); or the transaction had a query, or has a savepoint (25001).
        """
        transaction = self.transaction
        before = transaction.modes
        after = before if level is None else self._modes(level, None, is_explicit=before.is_explicit)
        after = replace(after, is_read_only=before.is_read_only if is_read_only is None else is_read_only)
        has_queried = transaction.has_queried or transaction.has_written or transaction.time is not None
        if after.level != before.level and (has_queried or self._savepoints):
            where = "be called before any query" if has_queried else "not be called in a subtransaction"
            raise SqlError("25001", f"SET TRANSACTION ISOLATION LEVEL must {where}")
        if has_queried and before.is_read_only and not after.is_read_only:
            raise SqlError("25001", "transaction read-write mode must be set before any query")
        transaction.modes = after

    async def commit(self) -> None:
        """Commit and end the transaction.

        Raises:
            SqlError: the commit has failed, and the transaction is rolled back.
        """
        ddl = self.ddl
        if ddl is None:
            self._end_temporary()
            await self.close_cursors()
            transaction = self._leave(is_committed=True)
            if transaction is not None:
                await transaction.commit()
            return
        transaction, commits = self.transaction, self.coordinator.commits
        async with self.coordinator.definitions:
            if not ddl.alters:
                await self.deploy(partial(commits.commit, basis=transaction.basis, shapes=transaction.shapes))
                return
            async with commits.exclusive() as commit:  # excludes writers of rows with the old columns
                await self.deploy(partial(commit, basis=transaction.basis, shapes=transaction.shapes))

    async def deploy(self, commit: Commit) -> None:
        """Commit a transaction with definitions, while no other session deploys.

        Args:
            commit: a function that commits writes.

        Raises:
            SqlError: the commit has failed, and the transaction is rolled back.
        """
        await self.close_cursors()
        self._end_temporary()
        ddl, transaction = self.ddl, self._leave(is_committed=True)
        if ddl is not None and transaction is not None:
            try:
                await deploy(self.coordinator, ddl, transaction.writes, commit)
            finally:
                await transaction.end()

    def temporary_tables(self, effect: str) -> set[GlobalId]:
        """Return the temporary tables of the session on which COMMIT has an effect: `drop` or `delete`."""
        if self.temporary is None:
            return set()
        items = (self.ddl.objects if self.ddl else self.coordinator.objects).items.values()
        own = (item for item in items if item.schema == self.temporary)
        return {item.id for item in own if item.origin.get(ON_COMMIT) == effect}

    def _end_temporary(self) -> None:
        """Drop tables with ON COMMIT DROP, and discard the rows of tables with ON COMMIT DELETE ROWS."""
        if self.ddl is not None and (dropped := self.temporary_tables("drop")):
            users = {user.id for user in self.ddl.objects.users(dropped)}
            self.ddl = self.ddl.changed(removed=dropped | users)
        if self._transaction is not None and (emptied := self.temporary_tables("delete")):
            self._transaction.discard(emptied)

    async def roll_back(self) -> None:
        """Roll back and end the transaction."""
        await self.close_cursors()
        transaction = self._leave(is_committed=False)
        if transaction is not None:
            await transaction.end()

    def set_savepoint(self, name: str) -> None:
        """Set a savepoint."""
        writes = len(self.transaction.writes)
        self._savepoints.append(
            Savepoint(name, writes, self.ddl, frozenset(self.cursors), self.settings.values(), self.deferral)
        )

    def release_savepoint(self, name: str, offset: int) -> None:
        """Release a savepoint, and all later ones.

        Raises:
            SqlError: the savepoint does not exist (3B001).
        """
        del self._savepoints[latest(self._savepoints, name, offset) :]

    async def roll_back_to(self, name: str, offset: int) -> None:
        """Roll back to a savepoint.

        Raises:
            SqlError: the savepoint does not exist (3B001).
        """
        index = latest(self._savepoints, name, offset)
        savepoint = self._savepoints[index]
        del self._savepoints[index + 1 :]
        self.transaction.take_back(savepoint.writes)
        self.ddl, self.deferral = savepoint.ddl, savepoint.deferral
        self.settings.go_back(savepoint.settings)
        for cursor in self.cursors.keys() - savepoint.cursors:
            await self.cursors.pop(cursor).close()
        self.is_failed = False

    async def close_cursors(self, *, all_of_them: bool = False) -> None:
        """Close the cursors of the transaction, or all cursors."""
        for name, cursor in list(self.cursors.items()):
            if all_of_them or not cursor.is_held:
                await cursor.close()
                del self.cursors[name]

    def _leave(self, *, is_committed: bool) -> Transaction | None:
        transaction, self._transaction = self._transaction, None
        self.ended += 1
        self.is_explicit = self.is_failed = False
        self.ddl, self.deferral, self.kept_names = None, NOTHING_SET, None
        self._later = None
        self._savepoints.clear()
        self.settings.end_transaction(is_committed=is_committed)
        self.coordinator.advisory_locks.release(self, is_of_transaction=True)
        return transaction

    def _new(self, modes: Modes) -> Transaction:
        coordinator = self.coordinator
        return Transaction(coordinator.timeline, coordinator.commits, coordinator.capabilities, modes)

    def _implicit_modes(self) -> Modes:
        """Return the modes of an implicit transaction, cached for the current settings."""
        if self._implicit is None or self._implicit[0] is not self.settings.reported:
            self._implicit = self.settings.reported, self._modes(None, None, is_explicit=False)
        return self._implicit[1]

    def _modes(self, level: str | None, is_read_only: bool | None, *, is_explicit: bool) -> Modes:
        default = self.settings.get("default_transaction_read_only") == "on"
        read_only = default if is_read_only is None else is_read_only
        isolation = self.settings.isolation
        if level is not None and isolation_of(level) is Isolation.STRICT_SERIALIZABLE:
            isolation = Isolation.STRICT_SERIALIZABLE
        # Clients name PostgreSQL's default to keep the default.
        name = self.settings.isolation.value if level in {None, "read committed"} else level
        return Modes(isolation, read_only, is_explicit, name)

    # Cancellation

    @property
    def is_stopped(self) -> bool:
        """Return whether the current statement is cancelled. Any thread may call it."""
        return self._stopped.is_set()

    def stop(self, reason: SqlError | None = None) -> None:
        """Cancel the current statement; a later call does not change the reason. Any thread may call it."""
        if self._stopped.is_set():
            return
        self._reason = reason
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._wake)

    def begin_statement(self) -> None:
        """Begin a statement: clear the cancellation of the previous statement."""
        if self._stopped.is_set():  # `clear` takes a lock, and the check takes none
            self._stopped.clear()
        self._reason = None

    def check_stopped(self) -> None:
        """Check that the current statement is not cancelled.

        Raises:
            SqlError: the statement is cancelled (57014).
        """
        if self._stopped.is_set():
            raise self._reason or SqlError("57014", "canceling statement due to user request")

    def interruptible(self) -> AbstractContextManager[None]:
        """Return a context in which cancellation interrupts waits.

        Raises:
            SqlError: the statement is cancelled (57014).
        """
        return _Interruptible(self, self._loop)

    def limit(self) -> Callable[[], None]:
        """Start the statement timeout.

        Returns:
            A function that stops the timeout.
        """
        return self._limited("statement_timeout", "57014", "statement timeout")

    def limit_lock(self) -> Callable[[], None]:
        """Start the lock timeout.

        Returns:
            A function that stops the timeout.
        """
        return self._limited("lock_timeout", "55P03", "lock timeout")

    def _limited(self, setting: str, sqlstate: str, what: str) -> Callable[[], None]:
        seconds = self.settings.seconds(setting)
        if seconds is None:
            return _nothing
        reason = SqlError(sqlstate, f"canceling statement due to {what}")
        return self._loop.call_later(seconds, self.stop, reason).cancel

    def _wake(self) -> None:
        if self.waiting is not None and self._stopped.is_set():
            self.waiting.cancel()


class _Interruptible:
    """Context of `State.interruptible`."""

    def __init__(self, state: State, loop: asyncio.AbstractEventLoop) -> None:
        self._state, self._loop = state, loop

    def __enter__(self) -> None:
        state = self._state
        state.check_stopped()
        self._outer, state.waiting = state.waiting, asyncio.current_task(self._loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._state
        task, state.waiting = state.waiting, self._outer
        if isinstance(error, asyncio.CancelledError) and state.is_stopped and task is not None:
            task.uncancel()
            state.check_stopped()


def _nothing() -> None: ...
