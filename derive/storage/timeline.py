"""The timeline: the one place that assigns clocks.

Clocks never decrease, and a clock that is assigned is later than every time anyone has read. That second half is what
lets a sealed collection stay sealed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from derive.storage.metadata import Metadata


def wall_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class Timeline:
    """Durable source of clocks, in microseconds.

    Attributes:
        wall: what tells the time; tests hand in their own.
    """

    def __init__(self, metadata: Metadata, wall: Callable[[], int] = wall_clock) -> None:
        self._metadata = metadata
        self.wall = wall

    def assign(self, count: int) -> int:
        """Assign `count` consecutive clocks to new documents; returns the first."""
        with self._metadata.transaction() as db:
            last: int = db.execute("SELECT clock FROM timeline").get
            first = max(self.wall(), last + 1)
            db.execute("UPDATE timeline SET clock = ?", (first + count - 1,))
        return first

    def read(self) -> int:
        """The present: a frontier that no clock assigned from here on is below."""
        with self._metadata.transaction() as db:
            last: int = db.execute("SELECT clock FROM timeline").get
            now = max(self.wall(), last + 1)
            db.execute("UPDATE timeline SET clock = ?", (now - 1,))
        return now
