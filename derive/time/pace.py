"""Pace: the size of a task's transactions, which shrinks after a loss of workers.

A lost worker has usually run out of memory. The next attempt has half the size of the lost one, and a success doubles
the size again, up to the limits. Each further loss doubles the number of successes before the next increase, because
the lost size would usually fail again.
"""

from __future__ import annotations

from dataclasses import replace

from derive.time.limits import Limits, Size

_MOST_PATIENCE = 64


class Pace:
    """The size of one task's transactions.

    Args:
        limits: upper bound of the limits.

    Attributes:
        limits: the present limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits
        self.limits = limits
        self._patience = 0  # number of successes before the next increase, …
        self._succeeded = 0  # … and number of successes so far

    def slow_down(self, lost: Size) -> None:
        """Reduce the limits to half of a lost attempt."""
        self._patience = min(2 * self._patience, _MOST_PATIENCE) or 1
        self._succeeded = 0
        self.limits = replace(self.limits, documents=max(lost.documents // 2, 1), bytes=max(lost.bytes // 2, 1))

    def speed_up(self) -> None:
        """Double the limits, up to the upper bound, after enough consecutive successes."""
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
