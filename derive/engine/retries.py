"""Retries: when to retry a task that has stopped with a transient error, such as a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_SECONDS, _LAST_SECONDS = 1.0, 60.0


class Retries:
    """Schedules retries of tasks: each pause is twice as long as the one before.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._pauses: dict[str, float] = {}

    def postpone(self, task: str) -> None:
        """Schedule a retry of a failed task after a pause."""
        pause = min(2 * self._pauses.get(task, _FIRST_SECONDS / 2), _LAST_SECONDS)
        self._pauses[task] = pause
        self._due[task] = self._clock() + pause

    def is_due(self, task: str) -> bool:
        """Return whether the pause of a failed task is over."""
        return self._clock() >= self._due[task]

    def succeed(self, task: str) -> None:
        """Reset the pauses of a task that has succeeded."""
        self._due.pop(task, None)
        self._pauses.pop(task, None)
