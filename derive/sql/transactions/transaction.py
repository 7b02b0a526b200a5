"""Transactions: the reads and writes of a group of statements, and their times.

A transaction reads at one time, and writes at one time. A read-only transaction has only the first time, and a
write-only transaction only the second. A transaction that reads and writes fails if a relation that it has read was
written between the two times. Transactions are optimistic: no locks are held between statements. Rows are written at
COMMIT; a read after a write adds the transaction's own changes to the rows at the time of its reads.

Ingestion and derivations may also write collections between the two times. Serializable transactions ignore these
writes, because they may have read an old state of a collection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from time import time_ns
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.catalog.items import is_provisional
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.transactions.group_commit import Basis, GroupCommit, Histories, Referring, Shape, shape_of
from derive.sql.transactions.key_index import KeyChanges
from derive.sql.transactions.timeline import Timeline
from derive.sql.transactions.writes import Write, by_table, followed, tables_of


class Isolation(Enum):
    """Isolation level of a transaction. The value is the name in SQL."""

    STRICT_SERIALIZABLE = "strict serializable"
    """The order of transactions is the order that clients observe."""
    SERIALIZABLE = "serializable"
    """Transactions have some order: reads use the newest complete time, and seldom wait."""


class HistoryCapabilities(Protocol):
    """Read capabilities for transactions."""

    async def acquire(self, time: int) -> int:
        """Acquire capabilities to read all relations at a time, unless compacted; return the number of the holder."""

    async def release(self, number: int) -> None:
        """Release the capabilities of a holder."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Modes of a transaction.

    Attributes:
        isolation: isolation level.
        is_read_only: whether writes are errors.
        is_explicit: whether the transaction has several statements, so that the first read does not know the relations
            of later reads.
        level: name of the isolation level that clients have chosen; `isolation` may be stricter.
    """

    isolation: Isolation
    is_read_only: bool = False
    is_explicit: bool = False
    level: str | None = None


class Transaction:
    """One transaction of one session.

    Args:
        timeline: timeline that assigns the time of reads.
        commits: group commit for the writes.
        capabilities: read capabilities.
        modes: initial modes.

    Attributes:
        modes: isolation level and access mode of the next statements.
        begun: start by the machine's clock, in microseconds since 1970: the value of `now()`.
        has_queried: whether there was a statement other than those about transactions, settings and sessions.
    """

    def __init__(
        self, timeline: Timeline, commits: GroupCommit, capabilities: HistoryCapabilities, modes: Modes
    ) -> None:
        self.modes = modes
        self.begun = time_ns() // 1000
        self.has_queried = False
        self._timeline, self._commits, self._capabilities = timeline, commits, capabilities
        self._time: int | None = None
        self._holder: int | None = None
        self._latest: int | None = None
        self._read: set[GlobalId] = set()
        self._writes: Sequence[Write] = []
        self._shapes: dict[GlobalId, Shape] = {}
        self._checked: int | None = None  # the version of the names that the shapes were compared with
        self._histories: Histories = {}
        self._locked: Histories = {}  # before the first read
        # Changes by table, with the number of writes that are included.
        self._changes: dict[GlobalId, tuple[Counter[Row], int]] = {}
        self._keys: dict[GlobalId, tuple[KeyChanges, int]] = {}

    @property
    def time(self) -> int | None:
        """Return the time of the reads; None without reads. If each statement has its own time, return the earliest."""
        return self._time

    def latest_basis(self, ids: Collection[GlobalId]) -> Basis | None:
        """Return the basis of the transaction's last read of some relations; None without reads."""
        return self._based(ids, self._latest) if ids else None

    def _based(self, ids: Collection[GlobalId], time: int | None) -> Basis | None:
        is_strict = self.modes.isolation is Isolation.STRICT_SERIALIZABLE
        return None if time is None else Basis(frozenset(ids), time, is_strict=is_strict, histories=self._histories)

    @property
    def writes(self) -> Sequence[Write]:
        """Return the pending writes."""
        return self._writes

    def has_changed(self, ids: Collection[GlobalId]) -> bool:
        """Return whether the transaction has written some of the tables."""
        return bool(self._writes) and any(self.changes(identifier) for identifier in ids)

    def changes(self, table: GlobalId) -> Mapping[Row, int]:
        """Return the changes of the counts of a table's rows by the writes so far."""
        counts, count = self._changes.get(table, (Counter[Row](), 0))
        rows, diffs = by_table(self._writes[count:]).get(table, ((), ())) if count < len(self._writes) else ((), ())
        if diffs:
            for row, diff in zip(rows, diffs, strict=True):
                counts[row] += diff
        else:
            counts.update(rows)
        self._changes[table] = counts, len(self._writes)
        return counts

    def rows(self, table: GlobalId) -> list[Row]:
        """Return the rows of a table that the transaction has defined."""
        return list(Counter(self.changes(table)).elements())

    @property
    def basis(self) -> Basis | None:
        """Return the reads and locks to validate at commit; None without any."""
        if self._time is None and self._histories:
            return self._based((), 0)
        return self._based(self._read, self._time)

    @property
    def has_written(self) -> bool:
        """Return whether there are writes to commit."""
        return bool(self._writes)

    async def read(
        self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0, upper: int | None = None
    ) -> int:
        """Return the time for a read; the first read of an explicit transaction sets the time of all its reads.

        Args:
            ids: relations to read, at least one.
            at_present: whether other processes write some of the relations.
            least: a preferred lower bound, for the first read.
            upper: time before which the maintained rows are complete; None if rows are read from Storage.

        Raises:
            SqlError: a relation is not readable at its time; or a relation that it has read was reset, dropped or
                altered (40001).
        """
        if not self.modes.is_explicit:
            time = await self._first_time(ids, at_present=at_present, least=least, upper=upper)
            self._time = min(time, self._time or time)  # writes depend on the oldest read
            self._latest = time
            self._read.update(ids)
            self._histories = self._commits.histories(ids)
            return time
        self._commits.check_histories(self._histories)
        if self._latest is None:
            self._locked = self._histories
            self._time = self._latest = await self._first_time(ids, at_present=at_present, least=least, upper=upper)
        elif not self._read.issuperset(ids):
            await self._reach(ids, self._latest)
        if self._holder is None:
            self._holder = await self._capabilities.acquire(self._latest)
        if not self._histories.keys() >= set(ids):
            self._histories = {**self._commits.histories(ids), **self._histories}
        self._read.update(ids)
        return self._latest

    async def forget_read(self) -> None:
        """Forget the first read of an explicit transaction, whose rows were not read; the next one has another time."""
        if self.modes.is_explicit and self._latest is not None:
            self._time = self._latest = None
            self._read.clear()
            self._histories = self._locked
            await self._release()

    async def _reach(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until relations are complete up to the time of the first read.

        Raises:
            SqlError: a relation is known from a later time on, as it was altered meanwhile (40001).
        """
        try:
            await self._timeline.reach(ids, time)
        except SqlError as error:
            if error.sqlstate != "22023":
                raise
            message = f"could not serialize access: {error.message}"
            raise SqlError("40001", message, hint=error.hint) from error

    async def _first_time(self, ids: Collection[GlobalId], *, at_present: bool, least: int, upper: int | None) -> int:
        if self.modes.isolation is Isolation.SERIALIZABLE:
            return await self._timeline.complete(ids, least=least, upper=upper)
        return await self._timeline.read(ids, at_present=at_present or self.modes.is_explicit, least=least)

    def lock(self, ids: Collection[GlobalId]) -> None:
        """Let later reads and COMMIT fail with 40001 if relations are reset, dropped or rewritten meanwhile."""
        self._commits.check_histories(self._histories)
        stored = [identifier for identifier in ids if not is_provisional(identifier)]
        self._histories = {**self._commits.histories(stored), **self._histories}

    def check_writable(self) -> None:
        """Check that the transaction may write.

        Raises:
            SqlError: the transaction is read-only.
        """
        if self.modes.is_read_only:
            raise SqlError("25006", "a read-only transaction cannot write")

    def write(
        self, writes: Sequence[Write], table: NamedRelation | None = None, referring: Referring | None = None
    ) -> None:
        """Add writes to be written at COMMIT.

        Args:
            writes: the writes.
            table: the written table with the columns of these rows; None if no other transaction may alter it.
            referring: the foreign keys to the table that were checked; None if no row was deleted.

        Raises:
            SqlError: the transaction is read-only.
        """
        self.check_writable()
        self._writes = followed(self._writes, writes)
        if table is not None:
            shape = shape_of(table, referring)
            before = self._shapes.setdefault(table.id, shape)
            if before[4] is None:  # only rows were inserted so far
                self._shapes[table.id] = (*before[:4], shape[4])

    def key_changes(self, table: NamedRelation) -> KeyChanges:
        """Return the changes of a table's keys by the writes so far."""
        changes, count = self._keys.get(table.id, (KeyChanges(table), 0))
        if changes.table != table:
            changes, count = KeyChanges(table), 0
        changes.add_writes(self._writes[count:])
        self._keys[table.id] = changes, len(self._writes)
        return changes

    @property
    def shapes(self) -> Mapping[GlobalId, Shape]:
        """Return the shapes of the tables to be written."""
        return self._shapes

    def check_shapes(self, version: int) -> None:
        """Check that the written tables have the shapes that their rows have.

        A plan of other columns, or of another table with the same name, would not find the transaction's own rows.

        Args:
            version: version of the names that other sessions have committed.

        Raises:
            SqlError: another session has altered, renamed or dropped a written table (40001).
        """
        if self._writes and self._checked != version:
            self._commits.check_shapes({one: shape for one, shape in self._shapes.items() if not is_provisional(one)})
            self._checked = version

    def discard(self, tables: Collection[GlobalId]) -> None:
        """Discard the writes of some tables."""
        self._writes = [write for write in self._writes if write[0] not in tables]
        self._forget_changes()

    def take_back(self, count: int) -> None:
        """Discard all writes except the first `count`."""
        self._writes = self._writes[:count]
        self._forget_changes()

    def _forget_changes(self) -> None:
        """Forget what followed from writes that were discarded."""
        self._changes.clear()
        self._keys.clear()
        written = tables_of(self._writes)
        self._shapes = {table: shape for table, shape in self._shapes.items() if table in written}

    async def commit(self) -> int | None:
        """Commit; return the time of the writes, or None without writes.

        Raises:
            SqlError: a relation that the transaction has read was written; nothing is written.
        """
        try:
            if not self._writes:
                if self.modes.is_explicit:
                    self._commits.check_histories(self._histories)
                return None
            return await self._commits.commit(self._writes, self.basis, shapes=self._shapes)
        finally:
            await self.end()

    async def end(self) -> None:
        """Release the read capabilities, and discard uncommitted writes."""
        self._writes = []
        await self._release()

    async def _release(self) -> None:
        if self._holder is not None:
            number, self._holder = self._holder, None
            await self._capabilities.release(number)
