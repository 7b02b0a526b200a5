"""Transactions: which reads and writes go together, and at which times.

A transaction reads at one time, and writes at one. What reads only has one time. What writes only is one commit. What
writes after it has read is written at a later time than it has read, and fails if somebody has written in between what
it has read; its statements wait for nobody, so neither does anyone wait for a session that has gone to lunch. To read
after having written is refused: nothing is written before COMMIT, so there would be nothing to read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from derive.adapter.group_commit import Basis, GroupCommit
from derive.adapter.timeline import Timeline, Write
from derive.compute.algebra.relation import GlobalId
from derive.errors import SqlError


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
    """

    def __init__(self, timeline: Timeline, commits: GroupCommit, holds: Holds, modes: Modes) -> None:
        self.modes = modes
        self._timeline, self._commits, self._holds = timeline, commits, holds
        self._time: int | None = None
        self._hold: int | None = None
        self._read: set[GlobalId] = set()
        self._writes: list[Write] = []

    @property
    def time(self) -> int | None:
        """At which it reads; None before its first read."""
        return self._time

    @property
    def has_written(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._writes)

    async def read(self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0) -> int:
        """The time at which to read; with the first one of an explicit transaction it is settled for all of it.

        Args:
            ids: what is read; something.
            at_present: whether others than the adapter write some of that.
            least: a time that is better not below, for the first read.

        Raises:
            SqlError: the transaction has written, or what is read is not known at its time.
        """
        if self._writes:
            raise SqlError(
                "25001",
                "a transaction that has written cannot read",
                hint="COMMIT first: what was written is there from then on, and not before",
            )
        if not self.modes.is_explicit:
            time = await self._first_time(ids, at_present=at_present, least=least)
            self._time = min(time, self._time or time)  # what is written follows from the oldest
            self._read.update(ids)
            return time
        if self._time is None:
            self._time = await self._first_time(ids, at_present=at_present, least=least)
            self._hold = await self._holds.hold(self._time)
        elif not self._read.issuperset(ids):
            await self._timeline.reach(ids, self._time)
        self._read.update(ids)
        return self._time

    async def _first_time(self, ids: Collection[GlobalId], *, at_present: bool, least: int) -> int:
        if self.modes.isolation is Isolation.SERIALIZABLE:
            return await self._timeline.complete(ids)
        return await self._timeline.read(ids, at_present=at_present or self.modes.is_explicit, least=least)

    def check_writable(self) -> None:
        """Check that it may write.

        Raises:
            SqlError: it is read only.
        """
        if self.modes.is_read_only:
            raise SqlError("25006", "a read-only transaction cannot write")

    def write(self, writes: Sequence[Write]) -> None:
        """Write, once it is committed.

        Raises:
            SqlError: it is read only.
        """
        self.check_writable()
        self._writes += writes

    async def commit(self) -> int | None:
        """Commit; returns the time of what it wrote, if it wrote something.

        Raises:
            SqlError: others have written what it has read; nothing is written.
        """
        try:
            if not self._writes:
                return None
            basis = Basis(frozenset(self._read), self._time) if self._time is not None else None
            return await self._commits.commit(self._writes, basis)
        finally:
            await self.end()

    async def end(self) -> None:
        """Give back what it holds; what it has written and not committed is forgotten."""
        self._writes = []
        if self._hold is not None:
            hold, self._hold = self._hold, None
            await self._holds.release(hold)
