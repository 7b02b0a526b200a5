"""The timeline in the metadata database: the last assigned timestamp, and the last reading of the clocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw


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


def last_assigned(db: apsw.Connection) -> int:
    """Return the last timestamp that was assigned, or below which contents were read."""
    clock: int = db.execute("SELECT clock FROM timeline").get
    return clock


def assign_up_to(db: apsw.Connection, clock: int) -> None:
    """Record that no timestamp up to this one is assigned any more."""
    db.execute("UPDATE timeline SET clock = max(clock, ?)", (clock,))


def last_reading(db: apsw.Connection) -> ClockReading:
    """Return the last recorded reading of the clocks."""
    row: Any = db.execute("SELECT time, watch, elapsed FROM timeline").fetchone()
    return ClockReading(*row)


def record_reading(db: apsw.Connection, now: ClockReading) -> None:
    """Record a reading of the clocks."""
    db.execute("UPDATE timeline SET time = ?, watch = ?, elapsed = ?", now)
