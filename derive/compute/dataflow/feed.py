"""Feeds: the inputs of a running dataflow group, with their pending updates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from derive.algebra.types import Row
from derive.compute.dataflow.input import Input, Update


@dataclass(slots=True)
class Feed:
    """An input with updates that wait for those of other inputs.

    Attributes:
        input: the input.
        frontier: time before which all updates are known.
        updates: pending updates, by time.
        used: updates taken since `keep`.
    """

    input: Input
    frontier: int
    updates: deque[Update] = field(default_factory=deque)
    used: list[Update] = field(default_factory=list)

    def poll(self, upper: int) -> None:
        """Poll the input; updates below `upper` are applied already."""
        self.frontier, updates = self.input.poll()
        self.updates.extend(update for update in updates if update[0] >= upper)

    def take(self, time: int) -> dict[Row, int]:
        """Take the updates of the earliest time; return the change of each row's count."""
        counts: dict[Row, int] = {}
        updates = self.updates
        while updates and updates[0][0] == time:
            update = updates.popleft()
            self.used.append(update)
            _, row, diff = update
            counts[row] = counts.get(row, 0) + diff
        return counts

    def keep(self) -> None:
        """Discard the taken updates after their commit."""
        self.used.clear()

    def go_back(self) -> None:
        """Restore the taken updates after a rollback."""
        self.updates.extendleft(reversed(self.used))
        self.used.clear()
