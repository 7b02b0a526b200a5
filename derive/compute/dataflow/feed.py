"""Feeds: inputs of a cohort at work, with what was taken of them and is not used yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from derive.algebra.types import Row
from derive.compute.dataflow.input import Input, Update


@dataclass(slots=True)
class Feed:
    """An input at work: updates that are known of it and wait for those of other inputs.

    Attributes:
        input: where it comes from.
        frontier: all updates below are known.
        updates: those that wait, by time.
        used: those that were taken since `keep`.
    """

    input: Input
    frontier: int
    updates: deque[Update] = field(default_factory=deque)
    used: list[Update] = field(default_factory=list)

    def poll(self, upper: int) -> None:
        """Ask the input what is new; what is below `upper` is there already."""
        self.frontier, updates = self.input.poll()
        self.updates.extend(update for update in updates if update[0] >= upper)

    def take(self, time: int) -> dict[Row, int]:
        """Take the updates of a time, which are the first ones; how many more there are of each row."""
        counts: dict[Row, int] = {}
        updates = self.updates
        while updates and updates[0][0] == time:
            update = updates.popleft()
            self.used.append(update)
            _, row, diff = update
            counts[row] = counts.get(row, 0) + diff
        return counts

    def keep(self) -> None:
        """What was taken is in rows, durably."""
        self.used.clear()

    def go_back(self) -> None:
        """What was taken has come to nothing, and waits again."""
        self.updates.extendleft(reversed(self.used))
        self.used.clear()
