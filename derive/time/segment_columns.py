"""Many segments as columns: a look for work in a backfill finds thousands, of which each is used once.

A segment as an object takes microseconds to make, to compare and to count. So the descriptions of many segments stay
columns, from their query to the plan that is sent to workers, and become objects where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from typing_extensions import override

from derive.time.positions import ManySegments, Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns(ManySegments):
    """Segments in order; the attributes are those of `Segment`, as columns.

    Attributes:
        collections: names of the collections.
        paths: paths.
        partitions: values of the logical partitions.
        clock_min: least timestamps.
        clock_max: greatest timestamps.
        documents: numbers of updates.
        bytes: sizes of the files.
        checksums: checksums.
    """

    collections: list[str]
    paths: list[str]
    partitions: list[tuple[Any, ...]]
    clock_min: Numbers
    clock_max: Numbers
    documents: Numbers
    bytes: Numbers
    checksums: list[str]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> SegmentColumns:
        """Return segments as columns."""
        if isinstance(segments, SegmentColumns):
            return segments
        columns = zip(*segments, strict=True) if segments else [()] * len(Segment._fields)
        return cls.of_columns(columns, len(segments))

    @classmethod
    def of_columns(cls, columns: Iterable[Iterable[Any]], count: int) -> SegmentColumns:
        """Return a number of segments that are given as columns, in the order of `Segment`."""
        import numpy as np

        collections, paths, partitions, *numbers, checksums = columns
        clock_min, clock_max, documents, sizes = (np.fromiter(column, np.int64, count) for column in numbers)
        texts = list(collections), list(paths), list(partitions)
        return cls(*texts, clock_min, clock_max, documents, sizes, list(checksums))

    @classmethod
    def joined(cls, parts: Sequence[SegmentColumns]) -> SegmentColumns:
        """Return the segments of several parts in order."""
        import numpy as np

        return cls(
            list(chain.from_iterable(part.collections for part in parts)),
            list(chain.from_iterable(part.paths for part in parts)),
            list(chain.from_iterable(part.partitions for part in parts)),
            np.concatenate([part.clock_min for part in parts]),
            np.concatenate([part.clock_max for part in parts]),
            np.concatenate([part.documents for part in parts]),
            np.concatenate([part.bytes for part in parts]),
            list(chain.from_iterable(part.checksums for part in parts)),
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Segment]:
        numbers = (column.tolist() for column in (self.clock_min, self.clock_max, self.documents, self.bytes))
        columns: Any = zip(self.collections, self.paths, self.partitions, *numbers, self.checksums, strict=True)
        return map(Segment._make, columns)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> SegmentColumns: ...

    def __getitem__(self, index: int | slice) -> Segment | SegmentColumns:
        if isinstance(index, slice):
            return self._changed(lambda column: column[index], lambda column: column[index])
        (segment,) = self[index : index + 1 or None]
        return segment

    def _changed(
        self, texts: Callable[[list[Any]], list[Any]], numbers: Callable[[Numbers], Numbers]
    ) -> SegmentColumns:
        return SegmentColumns(
            texts(self.collections),
            texts(self.paths),
            texts(self.partitions),
            numbers(self.clock_min),
            numbers(self.clock_max),
            numbers(self.documents),
            numbers(self.bytes),
            texts(self.checksums),
        )

    def chosen(self, is_chosen: NDArray[np.bool_]) -> SegmentColumns:
        """Return the segments that are chosen."""
        if is_chosen.all():
            return self
        places = is_chosen.nonzero()[0]
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
        if last - first + 1 == len(places):
            return self[first : last + 1]
        chosen = is_chosen.tolist()
        return self._changed(lambda column: list(compress(column, chosen)), lambda column: column[is_chosen])

    def selected(self, selects: Callable[[tuple[Any, ...]], bool]) -> SegmentColumns:
        """Return the segments of the logical partitions whose values are selected."""
        import numpy as np

        # By object, because 1 and True are equal, but not the same value of a partition.
        selection = {id(partition): partition for partition in self.partitions}
        selected = {key: selects(partition) for key, partition in selection.items()}
        return self.chosen(np.fromiter((selected[id(one)] for one in self.partitions), np.bool_, len(self)))

    @override
    def between(self, begin: int, end: int) -> SegmentColumns:
        return self.chosen((self.clock_max >= begin) & (self.clock_min < end))
