"""Frontiers and ticks: how far a collection is known, and the grain at which that advances.

A frontier is one int64 clock (microseconds since the Unix epoch). `upper` says that everything below it is final,
`since` that everything from it on is exact.
"""

from __future__ import annotations

BEGINNING = 0
"""The least frontier: nothing is known yet."""

END_OF_TIME = 1 << 62
"""Later than every clock, with room to add a read delay."""


def tick_begin(clock: int, tick: int) -> int:
    """The last tick boundary at or before `clock`."""
    return clock - clock % tick


def tick_end(clock: int, tick: int) -> int:
    """The first tick boundary after `clock`."""
    return tick_begin(clock, tick) + tick
