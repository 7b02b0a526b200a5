"""The load generator COUNTER: a row more each time a while has passed, to try things with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from derive.algebra.types import Row, Type

COUNTER_COLUMNS = (("counter", Type.BIGINT),)
"""Name and type of the column of the source."""

_MOST_ROWS = 10_000


class CounterPosition(NamedTuple):
    """How far a counter is; the columns of the relation beside its source.

    Attributes:
        added: how many rows.
        begin: clock at which it began, microseconds.
    """

    added: int
    begin: int


POSITION_COLUMNS = tuple((name, Type.BIGINT) for name in CounterPosition._fields)
"""Names and types of the columns of the relation beside a source."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts from 1 on.

    Attributes:
        interval: microseconds from one row to the next.
        most: so many rows are there at most, the last ones; None for all.
    """

    interval: int
    most: int | None = None

    def due(self, position: CounterPosition, now: int) -> int:
        """When the next row is added: a clock."""
        return max(now, position.begin + (position.added + 1) * self.interval)

    def poll(self, position: CounterPosition, now: int) -> tuple[list[tuple[Row, int]], CounterPosition]:
        """Changes of rows up to a time, and where they end.

        A row is added for each interval that has passed, also while nobody asked.

        Args:
            position: what was told before.
            now: clock, microseconds.
        """
        passed = max(0, (now - position.begin) // self.interval)
        count = min(passed, position.added + _MOST_ROWS)
        numbers = range(position.added + 1, count + 1)
        changes: list[tuple[Row, int]] = [((number,), 1) for number in numbers]
        if self.most is not None:
            changes += [((number - self.most,), -1) for number in numbers if number > self.most]
        return changes, CounterPosition(max(count, position.added), position.begin)
