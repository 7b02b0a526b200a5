"""Retries: when a task that has stopped over something that may heal, such as a full disk, is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_SECONDS, _LAST_SECONDS = 1.0, 60.0


class Retries:
    """When to try tasks again: each time after a pause twice as long as the one before.

    Args:
        clock: tells the time, in seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._pauses: dict[str, float] = {}

    def postpone(self, task: str) -> None:
        """Note that a task has failed, and is to be tried again after a pause."""
        pause = min(2 * self._pauses.get(task, _FIRST_SECONDS / 2), _LAST_SECONDS)
        self._pauses[task] = pause
        self._due[task] = self._clock() + pause

    def is_due(self, task: str) -> bool:
        """Whether the pause of a task that was postponed is over."""
        return self._clock() >= self._due[task]

    def succeed(self, task: str) -> None:
        """Note that a task has succeeded, so that its next pause is a short one."""
        self._due.pop(task, None)
        self._pauses.pop(task, None)
