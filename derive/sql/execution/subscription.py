"""SUBSCRIBE: the updates of a relation as rows, each exactly once, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from derive.algebra.types import Row
from derive.compute.protocol.messages import TailResponse, Update


class Subscription:
    """A relation from a time on, as the rows that a subscriber is sent.

    In front of the relation's columns stand `mz_timestamp` (the time of an update), `mz_progressed` where progress is
    told, and `mz_diff` (how many such rows more there are). A row of progress says that whatever is below its time was
    sent; a subscription without snapshot, as of the time before, goes on exactly there. So none is sent before the
    snapshot is; where there is none, who subscribes has what is up to `as_of`, and is told so at once.

    Args:
        width: so many columns does the relation have.
        as_of: clock; updates that are not later than it are in the snapshot.
        has_snapshot: whether the snapshot is sent.
        has_progress: whether progress is told.
        up_to: clock at which it ends, with nothing sent of that time or later; None for never.

    Attributes:
        frontier: clock; everything below it was sent.
        up_to: see above.
    """

    def __init__(
        self, width: int, as_of: int, *, has_snapshot: bool, has_progress: bool, up_to: int | None = None
    ) -> None:
        self._has_snapshot, self._has_progress = has_snapshot, has_progress
        self.up_to = up_to
        self._nulls = (None,) * (1 + width)
        self.frontier = as_of

    @property
    def is_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.up_to is not None and self.frontier >= self.up_to

    def begin(self) -> list[Row]:
        """What is sent before there is anything new."""
        if self._has_snapshot or self.is_ended:
            return []
        self.frontier += 1
        return [self._progress()] if self._has_progress else []

    def rows(self, response: TailResponse) -> list[Row]:
        """What is sent of something that is new."""
        rows = []
        for time, group in groupby(response.updates, key=itemgetter(0)):
            rows += [self._update(time, row, diff) for row, diff in _consolidated(group)]
        before, self.frontier = self.frontier, max(self.frontier, response.upper)
        if self._has_progress and self.frontier > before:
            rows.append(self._progress())
        return rows

    def _progress(self) -> Row:
        return self.frontier, 1, *self._nulls

    def _update(self, time: int, row: Row, diff: int) -> Row:
        return (time, 0, diff, *row) if self._has_progress else (time, diff, *row)


def _consolidated(updates: Iterator[Update]) -> list[tuple[Row, int]]:
    """Updates of one time: rows that go come first, and none comes and goes."""
    diffs: dict[Row, int] = {}
    for _, row, diff in updates:
        diffs[row] = diffs.get(row, 0) + diff
    is_added: Callable[[tuple[Row, int]], bool] = lambda change: change[1] > 0  # noqa: E731
    return sorted(((row, diff) for row, diff in diffs.items() if diff), key=is_added)
