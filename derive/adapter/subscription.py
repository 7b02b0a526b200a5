"""SUBSCRIBE: the updates of a relation as rows, each exactly once, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from derive.compute.algebra.types import Row, Type


class Followed(Protocol):
    """A relation from a time on, as an input of a dataflow is one."""

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at the time from which on it is followed."""

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """A frontier, and all updates below it that were not told before: times, rows and diffs, by time."""


class Subscription:
    """A relation from a time on, as the rows that a subscriber is sent.

    In front of the relation's columns stand `mz_timestamp` (the time of an update), `mz_progressed` where progress is
    told, and `mz_diff` (how many such rows more there are). A row of progress says that whatever is below its time was
    sent; a subscription without snapshot, as of the time before, goes on exactly there.

    Args:
        source: the relation.
        as_of: clock; updates that are not later than it are in the snapshot.
        has_snapshot: whether the rows at `as_of` are sent first, as updates of that time.
        has_progress: whether progress is told.
        up_to: clock at which it ends, with nothing sent of that time or later; None for never.

    Attributes:
        frontier: clock; everything below it was sent.
    """

    def __init__(
        self, source: Followed, as_of: int, *, has_snapshot: bool, has_progress: bool, up_to: int | None = None
    ) -> None:
        self._source = source
        self._as_of = as_of
        self._has_snapshot = has_snapshot
        self._has_progress = has_progress
        self._up_to = up_to
        self._nulls = (None,) * (1 + len(source.types))
        self.frontier = as_of

    @property
    def is_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self._up_to is not None and self.frontier >= self._up_to

    def begin(self) -> Iterator[list[Row]]:
        """What is sent first: the time that it begins at, and the snapshot."""
        if self._has_progress:
            yield [(self._as_of, 1, *self._nulls)]
        if self._has_snapshot and not self.is_ended:
            for rows in self._source.snapshot(self._as_of):
                yield [self._update(self._as_of, row, 1) for row in rows]
        yield from self._progress(self._as_of + 1)

    def poll(self) -> Iterator[list[Row]]:
        """What is final by now and was not sent yet; nothing if that is nothing."""
        frontier, updates = self._source.poll()
        if frontier <= self.frontier:
            return
        rows = []
        for time, group in groupby(updates, key=itemgetter(0)):
            if self._up_to is not None and time >= self._up_to:
                break
            rows += [self._update(time, row, diff) for row, diff in _consolidated(group)]
        if rows:
            yield rows
        yield from self._progress(frontier)

    def _progress(self, frontier: int) -> Iterator[list[Row]]:
        frontier = frontier if self._up_to is None else max(self.frontier, min(frontier, self._up_to))
        is_further, self.frontier = frontier > self.frontier, frontier
        if self._has_progress and is_further:
            yield [(frontier, 1, *self._nulls)]

    def _update(self, time: int, row: Row, diff: int) -> Row:
        return (time, 0, diff, *row) if self._has_progress else (time, diff, *row)


def _consolidated(updates: Iterator[tuple[int, Row, int]]) -> list[tuple[Row, int]]:
    """Updates of one time: rows that go come first, and none comes and goes."""
    diffs: dict[Row, int] = {}
    for _, row, diff in updates:
        diffs[row] = diffs.get(row, 0) + diff
    is_added: Callable[[tuple[Row, int]], bool] = lambda change: change[1] > 0  # noqa: E731
    return sorted(((row, diff) for row, diff in diffs.items() if diff), key=is_added)
