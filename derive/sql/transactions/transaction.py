"""Transactions: which reads and writes go together, and at which times.

A transaction reads at one time, and writes at one. What reads only has one time. What writes only is one commit. What
writes after it has read is written at a later time than it has read, and fails if somebody has written in between what
it has read; its statements wait for nobody, so neither does anyone wait for a session that has gone to lunch. To read
after having written is refused: nothing is written before COMMIT, so there would be nothing to read. What the
transaction itself has begun to define may be read: nobody else writes it.

Collections of the catalog may be written in between, too, by whoever ingests or derives. Where transactions are only
serializable that is not looked at: these may have read what was known of a collection long ago.
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
from derive.sql.planner.names import NamedRelation
from derive.sql.transactions.group_commit import Basis, GroupCommit, Histories, Shape, shape_of
from derive.sql.transactions.timeline import Timeline, Write


class Isolation(Enum):
    """Of transactions from one another. The value is the name in SQL."""

    STRICT_SERIALIZABLE = "strict serializable"
    """In the order in which clients saw them happen."""
    SERIALIZABLE = "serializable"
    """In some order: reads are of the newest time at which everything is known, and seldom wait."""


class Holds(Protocol):
    """Keeps what transactions read from being forgotten."""

    async def hold(self, time: int) -> int:
        """Hold everything that can be read at a time, as far as it is not forgotten; returns what names the hold."""

    async def release(self, hold: int) -> None:
        """Give a hold back."""


@dataclass(frozen=True, slots=True)
class Modes:
    """How a transaction was begun.

    Attributes:
        isolation: from others.
        is_read_only: whether it may not write.
        is_explicit: whether it has several statements, as the first of which it is not known what the others will read.
    """

    isolation: Isolation
    is_read_only: bool = False
    is_explicit: bool = False


class Transaction:
    """One transaction of one session.

    Args:
        timeline: gives it the time at which it reads.
        commits: writes what it writes.
        holds: keep what it reads.
        modes: how it was begun.

    Attributes:
        modes: how it is isolated, and what it may do; of statements that come.
        begun: when, in microseconds since 1970, by this machine's clock: what `now()` is.
    """

    def __init__(self, timeline: Timeline, commits: GroupCommit, holds: Holds, modes: Modes) -> None:
        self.modes = modes
        self.begun = time_ns() // 1000
        self._timeline, self._commits, self._holds = timeline, commits, holds
        self._time: int | None = None
        self._hold: int | None = None
        self._latest: int | None = None
        self._read: set[GlobalId] = set()
        self._writes: list[Write] = []
        self._shapes: dict[GlobalId, Shape] = {}
        self._histories: Histories = {}

    @property
    def time(self) -> int | None:
        """At which it reads, or has read first if its statements do so at times of their own; None before that."""
        return self._time

    def latest_basis(self, ids: Collection[GlobalId]) -> Basis | None:
        """What follows from what it has read last, which is some of these; None if it was nothing."""
        return self._based(ids, self._latest) if ids else None

    def _based(self, ids: Collection[GlobalId], time: int | None) -> Basis | None:
        is_strict = self.modes.isolation is Isolation.STRICT_SERIALIZABLE
        return None if time is None else Basis(frozenset(ids), time, is_strict=is_strict, histories=self._histories)

    @property
    def writes(self) -> Sequence[Write]:
        """What is to be written."""
        return self._writes

    def rows(self, table: GlobalId) -> list[Row]:
        """The rows of a table that it has begun to define."""
        counts: Counter[Row] = Counter()
        for written, row, diff in self._writes:
            if written == table:
                counts[row] += diff
        return list(counts.elements())

    @property
    def basis(self) -> Basis | None:
        """What that follows from; None if it follows from nothing."""
        return self._based(self._read, self._time)

    @property
    def has_written(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._writes)

    async def read(
        self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0, upper: int | None = None
    ) -> int:
        """The time at which to read; with the first one of an explicit transaction it is settled for all of it.

        Args:
            ids: what is read; something.
            at_present: whether others than the adapter write some of that.
            least: a time that is better not below, for the first read.
            upper: before it everything is known where this is maintained; None if it is read from where it is stored.

        Raises:
            SqlError: the transaction has written, or what is read is not known at its time; or 40001, what it has read
                before was reset, dropped or altered since.
        """
        if any(not is_provisional(table) for table, _, _ in self._writes):
            raise SqlError(
                "25001",
                "a transaction that has written cannot read",
                hint="COMMIT first: what was written is there from then on, and not before",
            )
        if not self.modes.is_explicit:
            time = await self._first_time(ids, at_present=at_present, least=least, upper=upper)
            self._time = min(time, self._time or time)  # what is written follows from the oldest
            self._latest = time
            self._read.update(ids)
            self._histories = self._commits.histories(ids)
            return time
        self._commits.check_histories(self._histories)
        if self._latest is None:
            self._time = self._latest = await self._first_time(ids, at_present=at_present, least=least, upper=upper)
        elif not self._read.issuperset(ids):
            await self._timeline.reach(ids, self._latest)
        if self._hold is None:
            self._hold = await self._holds.hold(self._latest)
        if not self._histories.keys() >= set(ids):
            self._histories = {**self._commits.histories(ids), **self._histories}
        self._read.update(ids)
        return self._latest

    async def _first_time(self, ids: Collection[GlobalId], *, at_present: bool, least: int, upper: int | None) -> int:
        if self.modes.isolation is Isolation.SERIALIZABLE:
            return await self._timeline.complete(ids, least=least, upper=upper)
        return await self._timeline.read(ids, at_present=at_present or self.modes.is_explicit, least=least)

    def check_writable(self) -> None:
        """Check that it may write.

        Raises:
            SqlError: it is read only.
        """
        if self.modes.is_read_only:
            raise SqlError("25006", "a read-only transaction cannot write")

    def write(self, writes: Sequence[Write], table: NamedRelation | None = None) -> None:
        """Write, once it is committed.

        Args:
            writes: what is written.
            table: to which, with the columns of those rows; None if nobody else may alter it.

        Raises:
            SqlError: it is read only.
        """
        self.check_writable()
        self._writes += writes
        if table is not None:
            self._shapes.setdefault(table.id, shape_of(table.columns))

    @property
    def shapes(self) -> Mapping[GlobalId, Shape]:
        """The columns that tables had whose rows are to be written."""
        return self._shapes

    def take_back(self, count: int) -> None:
        """Forget all writes but the first ones."""
        del self._writes[count:]

    async def commit(self) -> int | None:
        """Commit; returns the time of what it wrote, if it wrote something.

        Raises:
            SqlError: others have written what it has read; nothing is written.
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
        """Give back what it holds; what it has written and not committed is forgotten."""
        self._writes = []
        if self._hold is not None:
            hold, self._hold = self._hold, None
            await self._holds.release(hold)
