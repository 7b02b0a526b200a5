"""Pace: how much a task takes on at once, which is less after it has lost workers.

A worker that is lost has most often run out of memory. The next attempt covers half as much as the one that was lost,
and one that succeeds lets the task take on twice as much again, up to its limits. Each further loss doubles how many
have to succeed for that, because what was lost once at that size would most often be lost again.
"""

from __future__ import annotations

from dataclasses import replace

from derive.time.limits import Limits, Size

_MOST_PATIENCE = 64


class Pace:
    """How much one task takes on at once.

    Args:
        limits: the most it ever takes on.

    Attributes:
        limits: what it takes on now.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits
        self.limits = limits
        self._patience = 0  # how many have to succeed before it takes on more, …
        self._succeeded = 0  # … and how many have

    def slow_down(self, lost: Size) -> None:
        """Take on half of what was lost."""
        self._patience = min(2 * self._patience, _MOST_PATIENCE) or 1
        self._succeeded = 0
        self.limits = replace(self.limits, documents=max(lost.documents // 2, 1), bytes=max(lost.bytes // 2, 1))

    def speed_up(self) -> None:
        """Take on twice as much, up to the most there is, if enough in a row has succeeded."""
        now, most = self.limits, self._most
        if now == most:
            self._patience = 0
        self._succeeded += 1
        if self._succeeded < self._patience:
            return
        self._succeeded = 0
        self.limits = replace(
            now, documents=min(2 * now.documents, most.documents), bytes=min(2 * now.bytes, most.bytes)
        )
