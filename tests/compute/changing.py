"""Collections that change over time, as inputs of dataflows."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from derive.algebra.types import Row, Type
from derive.compute.dataflow.input import Update
from derive.errors import FrontierError


class Changing:
    """A collection in memory, and all that ever happened to it.

    Attributes:
        types: of its columns.
        updates: in the order of times.
        frontier: all updates below are there.
    """

    def __init__(self, types: Sequence[Type]) -> None:
        self.types = tuple(types)
        self.updates: list[Update] = []
        self.frontier = 1

    def change(self, time: int, changes: Sequence[tuple[Row, int]]) -> None:
        """Rows come and go at a time; everything before it is final."""
        assert time >= self.frontier
        self.updates += [(time, row, diff) for row, diff in changes]
        self.frontier = time

    def seal(self, frontier: int) -> None:
        """All updates below a time are there."""
        self.frontier = max(self.frontier, frontier)

    def at(self, time: int) -> Iterator[list[Row]]:
        """The rows at a time, in batches."""
        counts: Counter[Row] = Counter()
        for when, row, diff in self.updates:
            if when <= time:
                counts[row] += diff
        assert all(count >= 0 for count in counts.values())
        rows = list(counts.elements())
        for begin in range(0, len(rows), 3):
            yield rows[begin : begin + 3]

    def since(self, time: int) -> ChangingInput:
        """The collection from a time on."""
        return ChangingInput(self, time)

    def movable(self, time: int, *, keeps: bool = False) -> MovableChangingInput:
        """The same, which another process may read."""
        return MovableChangingInput(self, time, keeps=keeps)


class ChangingInput:
    """A collection from a time on."""

    has_more = False

    def __init__(self, collection: Changing, since: int) -> None:
        self.types = collection.types
        self.since = since
        self.is_closed = False
        self._collection = collection
        self._frontier = since + 1

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        assert as_of == self.since
        return self._collection.at(as_of)

    def poll(self) -> tuple[int, list[Update]]:
        begin, self._frontier = self._frontier, max(self._frontier, self._collection.frontier)
        return self._frontier, [update for update in self._collection.updates if begin <= update[0] < self._frontier]

    def close(self) -> None:
        self.is_closed = True


class MovableChangingInput(ChangingInput):
    """A collection from a time on, which another process may read: then it keeps the time in a file."""

    def __init__(self, collection: Changing, since: int, *, keeps: bool, place: Path | None = None) -> None:
        super().__init__(collection, since)
        self.keeps = keeps
        self._place = place

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        yield from super().snapshot(as_of)
        if self._place is not None and self.keeps:
            self._place.write_text(str(as_of))

    def count(self, as_of: int) -> int:
        if as_of >= self._collection.frontier:
            raise FrontierError("it is not known yet")
        return sum(time <= as_of for time, _, _ in self._collection.updates)

    def opener(self, as_of: int, required: Collection[int] | None, place: Path) -> Callable[[], MovableChangingInput]:
        return partial(MovableChangingInput, self._collection, as_of, keeps=self.keeps, place=place)

    def adopt(self, as_of: int, place: Path) -> None:
        assert not self.keeps or place.read_text() == str(as_of)
        self.since = as_of
        self._frontier = as_of + 1


class EndlessInput(MovableChangingInput):
    """A collection that another process reads until it is killed."""

    def opener(self, as_of: int, required: Collection[int] | None, place: Path) -> Callable[[], MovableChangingInput]:
        return wait_for_end


def wait_for_end() -> MovableChangingInput:
    """Wait until this process is killed."""
    while True:
        signal.pause()
