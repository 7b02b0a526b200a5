"""The timeline: the only source of timestamps.

Timestamps never decrease, and an assigned timestamp is later than every time that was read before. The second rule
keeps a sealed collection sealed.

The timeline follows the wall clock. If the wall clock is set back, the timeline follows a monotonic clock, because
otherwise no tick would end until the wall clock has caught up. Meanwhile the timeline runs slightly slower than the
wall clock, so that the wall clock catches up, even after many small corrections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from derive.errors import FrontierError
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.process import boot
from derive.storage.metadata.transaction import Rows, Transaction


class ClockReading(NamedTuple):
    """A reading of the clocks.

    Attributes:
        time: wall-clock time, microseconds since the Unix epoch.
        watch: identifier of a monotonic clock.
        elapsed: value of the monotonic clock, microseconds.
    """

    time: int
    watch: str
    elapsed: int


def assign_up_to(db: Transaction, clock: int) -> None:
    """Record that all later assigned timestamps are after this timestamp."""
    db.execute("UPDATE timeline SET clock = ? WHERE clock < ?", (clock, clock))


def require_unassigned(db: Transaction, clock: int) -> None:
    """Raise an error if a timestamp from `Timeline.estimate` is not after all assigned ones, or is far in the past.

    Raises:
        FrontierError: the timestamp must not be used.
    """
    is_next = clock > db.now() - _MOST_LATE and db.expect("SELECT 1 FROM timeline WHERE clock < ?", (clock,))
    if not is_next:
        raise FrontierError(f"the timeline has passed {clock}")


def last_reading(db: Transaction) -> ClockReading:
    """Return the last recorded reading of the clocks."""
    row: Any = db.execute("SELECT time, watch, elapsed FROM timeline").fetchone()
    return ClockReading(*row)


Elapsed: TypeAlias = Callable[[], tuple[str, int]]
"""A monotonic clock: its identifier, and its value in microseconds; values of different clocks are not comparable."""

_MOST_LATE = 1_000_000
"""Greatest age of an estimated timestamp, microseconds; an older one is the result of a suspended machine."""

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_CATCH_UP = 1000
"""While the timeline is ahead of the wall clock, it runs slower by one part in this number."""

_PASSED = "CASE WHEN watch = ? AND elapsed < ? THEN ? - elapsed ELSE 0 END"
_ADVANCE = f"""
UPDATE timeline SET time = now, watch = ?, elapsed = ?,
    clock = CASE WHEN now > clock THEN now ELSE clock + 1 END + ?
FROM (
    SELECT CASE WHEN run > ? THEN run ELSE ? END AS now
    FROM (SELECT time + passed - passed / {_CATCH_UP} AS run FROM (SELECT time, {_PASSED} AS passed FROM timeline) AS a)
    AS b
) AS c RETURNING clock
"""
"""Move the timeline to the present, like `Timeline.present`, and assign timestamps."""


def wall_clock() -> int:
    """Return the wall-clock time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def since_boot() -> tuple[str, int]:
    """Return the identifier of this boot, and the microseconds after the boot, including sleep."""
    return boot(), uptime()


def uptime() -> int:
    """Return the microseconds after the boot, including sleep."""
    return time.clock_gettime_ns(_UPTIME) // 1000


def _standing() -> tuple[str, int]:
    return "", 0


class Timeline:
    """Durable source of timestamps, in microseconds.

    Args:
        metadata: metadata database with the last timestamp.
        wall: wall clock; the default stands for the clock of the metadata database. Tests pass their own.
        elapsed: monotonic clock; None for the clock of the machine, or for a stopped clock if a test has passed `wall`.

    Attributes:
        wall: wall clock.
        elapsed: monotonic clock.
    """

    def __init__(
        self, metadata: Metadata, wall: Callable[[], int] = wall_clock, elapsed: Elapsed | None = None
    ) -> None:
        self._metadata = metadata
        self.elapsed = elapsed or (since_boot if wall is wall_clock else _standing)
        self.wall = wall
        self._last: tuple[ClockReading, int] | None = None  # as `present` has read it, with the last known timestamp

    def assign(self, count: int) -> int:
        """Assign `count` consecutive timestamps to new documents; return the first.

        The assignment is durable as soon as a later commit is durable, such as the commit of the documents.
        """

        def body(db: Transaction) -> Callable[[], int]:
            last = self._advance(db, count)
            return lambda: self.note(int(last.get)) - count + 1

        return self._metadata.commit(body, synced=False)

    def read(self) -> int:
        """Return the present: a frontier that is at most every timestamp assigned later."""
        return self._metadata.commit(self.pass_now)

    def present(self) -> int:
        """Return the value that `read` would return; a timestamp that is assigned later may be equal."""
        with self._metadata.snapshot() as db:
            clock, *values = db.execute("SELECT clock, time, watch, elapsed FROM timeline").fetchone()
            before = ClockReading(*values)
            self._last = before, int(clock)
            return max(self._now_after(self._wall(db), before).time, int(clock) + 1)

    @property
    def can_estimate(self) -> bool:
        """Return whether `estimate` asks the database nothing: on a server, a question would take a round trip."""
        return self.wall is wall_clock and self._metadata.estimated_now() is not None

    def estimate(self) -> int:
        """Return a likely value of `present`, without a question to the database if `can_estimate`.

        The commit of a document with this timestamp calls `require_unassigned`.
        """
        now = self._metadata.estimated_now()
        if self._last is None or now is None or not self.can_estimate:
            return self.present()
        before, clock = self._last
        return max(self._now_after(now, before).time, clock + 1)

    def note(self, clock: int) -> int:
        """Note and return a timestamp that was assigned, or passed, so that later estimates are after it."""
        if self._last is not None:
            before, known = self._last
            self._last = before, max(known, clock)
        return clock

    def about(self) -> int:
        """Return about the result of `time`, without a question to the database if `can_estimate`."""
        now = self._metadata.estimated_now()
        if self._last is None or now is None or not self.can_estimate:
            return self.time()
        return self._now_after(now, self._last[0]).time

    def time(self) -> int:
        """Return the present time without regard to assigned timestamps, which may be slightly later."""
        with self._metadata.snapshot() as db:
            return self._now(db).time

    def ahead(self) -> int:
        """Return the lead of the timeline over the wall clock in microseconds, after the wall clock was set back."""
        with self._metadata.snapshot() as db:
            return max(0, self._now(db).time - self._wall(db))

    def pass_now(self, db: Transaction) -> Callable[[], int]:
        """Read the present in a write transaction: a frontier that is at most every timestamp assigned later."""
        last = self._advance(db, 0)
        return lambda: self.note(int(last.get)) + 1

    def _advance(self, db: Transaction, count: int) -> Rows:
        """Move the timeline to the present, and assign timestamps; return the last one."""
        watch, elapsed = self.elapsed()
        wall = self._wall(db)
        return db.execute(_ADVANCE, (watch, elapsed, count - 1, wall, wall, watch, elapsed, elapsed))

    def _now(self, db: Transaction) -> ClockReading:
        """Return the present time by the wall clock, or by the monotonic clock since the last reading."""
        return self._now_after(self._wall(db), last_reading(db))

    def _now_after(self, wall: int, before: ClockReading) -> ClockReading:
        watch, elapsed = self.elapsed()
        passed = max(0, elapsed - before.elapsed) if watch == before.watch else 0
        return ClockReading(max(wall, before.time + passed - passed // _CATCH_UP), watch, elapsed)

    def _wall(self, db: Transaction) -> int:
        return db.now() if self.wall is wall_clock else self.wall()
