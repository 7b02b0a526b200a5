"""The timeline: the one place that assigns clocks.

Clocks never decrease, and a clock that is assigned is later than every time anyone has read. That second half is what
lets a sealed collection stay sealed.

The timeline follows the wall clock. Where that is set back, the timeline goes on from where it was by the time that
passes, as told by a clock that nobody sets; otherwise no tick would end until the wall has caught up. It goes a little
slower than time does, so that after many small corrections the wall does catch up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import apsw

from derive.storage.metadata.database import Metadata
from derive.storage.metadata.process import boot
from derive.storage.metadata.timeline import Told, assign_up_to, last_assigned, tell, told

Elapsed: TypeAlias = Callable[[], tuple[str, int]]
"""A clock that nobody sets: which one it is, and microseconds on it, which say nothing beside those of another."""

_CATCH_UP = 1000
"""While the timeline is ahead of the wall, the wall gains one part in so many."""


def wall_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def since_boot() -> tuple[str, int]:
    """The time since this machine started, also while it slept; processes that see the same start share it."""
    return boot(), time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def _standing() -> tuple[str, int]:
    return "", 0


class Timeline:
    """Durable source of clocks, in microseconds.

    Args:
        metadata: keeps it.
        wall: what tells the time; tests hand in their own.
        elapsed: what tells how much of it has passed; None for the machine's, or for none beside a wall that is not.

    Attributes:
        wall: what tells the time.
        elapsed: what tells how much of it has passed.
    """

    def __init__(
        self, metadata: Metadata, wall: Callable[[], int] = wall_clock, elapsed: Elapsed | None = None
    ) -> None:
        self._metadata = metadata
        self.elapsed = elapsed or (since_boot if wall is wall_clock else _standing)
        self.wall = wall

    def assign(self, count: int) -> int:
        """Assign `count` consecutive clocks to new documents; returns the first.

        It is durable once any later commit is, as that of the documents.
        """
        with self._metadata.transaction(synced=False) as db:
            first = self.advance(db)
            assign_up_to(db, first + count - 1)
        return first

    def read(self) -> int:
        """The present: a frontier that no clock assigned from here on is below."""
        with self._metadata.transaction() as db:
            return self.pass_now(db)

    def present(self) -> int:
        """What `read` would return; a clock that is assigned later may be as early."""
        with self._metadata.snapshot() as db:
            return max(self._now(db).time, last_assigned(db) + 1)

    def time(self) -> int:
        """What time it is, whatever clocks were assigned: documents that bring their own may be a little beyond it."""
        with self._metadata.snapshot() as db:
            return self._now(db).time

    def ahead(self) -> int:
        """By how many microseconds the timeline is ahead of the wall clock, because that was set back."""
        with self._metadata.snapshot() as db:
            return max(0, self._now(db).time - self.wall())

    def advance(self, db: apsw.Connection) -> int:
        """Move the timeline on to the present, in a write transaction.

        Returns:
            The least clock that may be assigned.
        """
        now = self._now(db)
        tell(db, now)
        return max(now.time, last_assigned(db) + 1)

    def pass_now(self, db: apsw.Connection) -> int:
        """Read the present, in a write transaction: no clock assigned from here on is below it."""
        now = self.advance(db)
        assign_up_to(db, now - 1)
        return now

    def _now(self, db: apsw.Connection) -> Told:
        """What time it is, by the wall or by what has passed since it was told last."""
        before = told(db)
        watch, elapsed = self.elapsed()
        passed = max(0, elapsed - before.elapsed) if watch == before.watch else 0
        return Told(max(self.wall(), before.time + passed - passed // _CATCH_UP), watch, elapsed)
