"""Time: frontiers and ticks, and the intervals that tasks read next.

A frontier is a timestamp. Contents below `upper` are final, and contents at or above `since` are exact. A tick is the
step in which frontiers advance.

The modules have pure functions over frontiers and descriptions of segments; no function opens a file.
"""

from __future__ import annotations

BEGINNING = 0
"""The least frontier: no contents are known yet."""

END_OF_TIME = 1 << 62
"""A frontier later than every timestamp; a read delay can be added without an overflow."""

FOREVER = END_OF_TIME - 1
"""The `upper` of a view of constants, whose rows are known at all times; at `END_OF_TIME`, a table was dropped."""


def tick_begin(clock: int, tick: int) -> int:
    """Return the last tick boundary at or before `clock`."""
    return clock - clock % tick


def tick_end(clock: int, tick: int) -> int:
    """Return the first tick boundary after `clock`."""
    return tick_begin(clock, tick) + tick
