"""The load generator COUNTER, for experiments: a new row at each interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from derive.algebra.types import Row, Type

COUNTER_COLUMNS = (("counter", Type.BIGINT),)
"""Name and type of the source's column."""

_MOST_ROWS = 10_000


class CounterPosition(NamedTuple):
    """The position of a counter; its fields are the columns of the position table.

    Attributes:
        added: number of rows added so far.
        begin: time of the start, in microseconds.
    """

    added: int
    begin: int


POSITION_COLUMNS = tuple((name, Type.BIGINT) for name in CounterPosition._fields)
"""Names and types of the columns of the position table."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter that starts at 1.

    Attributes:
        interval: interval between two rows, in microseconds.
        most: greatest number of rows, of which the last ones stay; None for all.
    """

    interval: int
    most: int | None = None

    def due(self, position: CounterPosition, now: int) -> int:
        """Return the time of the next row."""
        return max(now, position.begin + (position.added + 1) * self.interval)

    def poll(self, position: CounterPosition, now: int) -> tuple[list[tuple[Row, int]], CounterPosition]:
        """Return the changes of rows up to a time, and the new position.

        A row is added for each past interval, also if there was no poll.

        Args:
            position: position of the last poll.
            now: the present, in microseconds.
        """
        passed = max(0, (now - position.begin) // self.interval)
        count = min(passed, position.added + _MOST_ROWS)
        numbers = range(position.added + 1, count + 1)
        changes: list[tuple[Row, int]] = [((number,), 1) for number in numbers]
        if self.most is not None:
            changes += [((number - self.most,), -1) for number in numbers if number > self.most]
        return changes, CounterPosition(max(count, position.added), position.begin)
