"""The timeline in the metadata database: the last clock that was assigned, and what time it was."""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw


class Told(NamedTuple):
    """What time it was when it was told last.

    Attributes:
        time: microseconds since the Unix epoch.
        watch: a clock that nobody sets.
        elapsed: microseconds that it showed then.
    """

    time: int
    watch: str
    elapsed: int


def last_assigned(db: apsw.Connection) -> int:
    """The last clock that was assigned, or below which something was read."""
    clock: int = db.execute("SELECT clock FROM timeline").get
    return clock


def assign_up_to(db: apsw.Connection, clock: int) -> None:
    """Note that no clock up to this one is assigned any more."""
    db.execute("UPDATE timeline SET clock = max(clock, ?)", (clock,))


def told(db: apsw.Connection) -> Told:
    """What time it was when it was told last."""
    row: Any = db.execute("SELECT time, watch, elapsed FROM timeline").fetchone()
    return Told(*row)


def tell(db: apsw.Connection, now: Told) -> None:
    """Note what time it is."""
    db.execute("UPDATE timeline SET time = ?, watch = ?, elapsed = ?", now)
