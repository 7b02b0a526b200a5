"""How long tests wait for an event, and a loop that waits for one.

A limit is there for a defect only, by which the event never comes. It is not a measure: on a machine that does much
else, a process that starts in a second may take a minute. Pytest's own limit (`timeout` in pyproject.toml) is longer,
so that a test that waits in vain says what it has waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300.0


def wait_until(
    holds: Callable[[], object], description: Callable[[], object] = lambda: "", pause_seconds: float = 0.02
) -> None:
    """Return as soon as a condition holds.

    Args:
        holds: the condition.
        description: what a failed test prints.
        pause_seconds: time between two looks.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, description() or "the event has not come"
        time.sleep(pause_seconds)
