"""Source documents of a tick on a cycle, by transform, as lists: a few documents reach lambdas without Arrow.

Rarely needed values (keys, and documents whose fields are read) are looked up at their origin on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, overload

import numpy as np

from derive.protocol.specs import Document
from derive.shard.fields import Reading
from derive.shard.invoke import SourceBatch
from derive.storage.segments.rows import ReadRows, concat

_TRANSFORM = attrgetter("transform")


class Origin(Protocol):
    """Origin of a run's documents, which are identified by number."""

    def key(self, number: int) -> bytes:
        """Return the packed key of a document."""

    def document(self, number: int) -> Document:
        """Return a document, possibly slowly."""

    def unchecked(self, numbers: Sequence[int]) -> Sequence[bool] | None:
        """Return the mask of documents that must still be validated; None for none."""

    def rows(self, adjusted: Sequence[int], numbers: Sequence[int]) -> ReadRows:
        """Return documents as rows, with the given adjusted timestamps."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Source documents of one transform in processing order, at least one.

    Attributes:
        transform: index of the transform.
        adjusted: ascending adjusted timestamps.
        values: values for the lambda: one sequence per field, or one sequence of documents.
        origin: origin of the documents.
        numbers: numbers of the documents at their origin.
    """

    transform: int
    adjusted: list[int]
    values: tuple[Sequence[Any], ...]
    origin: Origin
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.adjusted)

    def slice(self, begin: int, end: int) -> SourceRun:
        """Return the documents with indices in `[begin, end)`."""
        part = slice(begin, end)
        values = tuple([column[part] for column in self.values])
        return SourceRun(self.transform, self.adjusted[part], values, self.origin, self.numbers[part])

    def rows(self) -> ReadRows:
        """Return the documents as rows."""
        return self.origin.rows(self.adjusted, self.numbers)


def rows_of(runs: Sequence[SourceRun]) -> ReadRows:
    """Return runs as rows, in processing order."""
    rows = concat([run.rows() for run in runs])
    return rows.sorted(ReadRows.ORDER) if len(runs) > 1 else rows


def batch_of(runs: Sequence[SourceRun], reading: Reading) -> SourceBatch:
    """Convert runs of distinct transforms to a batch for lambdas.

    Args:
        runs: the runs, at least one.
        reading: columns that are read.
    """
    if len(runs) == 1:
        clocks, transforms = np.array(runs[0].adjusted, dtype=np.int64), [runs[0].transform] * len(runs[0])
    else:  # order documents of one timestamp by transform (law L4); each run is sorted
        by_transform = sorted(runs, key=_TRANSFORM)
        clocks = np.array([clock for run in by_transform for clock in run.adjusted], dtype=np.int64)
        order = clocks.argsort(kind="stable")
        clocks = clocks[order]
        transforms = np.repeat(list(map(_TRANSFORM, by_transform)), list(map(len, by_transform)))[order].tolist()
    looked_up = _Documents(runs, transforms)
    fields: list[list[Sequence[Any]]] | None = None
    documents: Sequence[Document] = looked_up
    if reading.transforms is None:
        documents = _in_turns([run.values[0] for run in runs], runs, transforms)
    else:
        fields = [[()] * len(places.fields) for places in reading.transforms]
        for run in runs:
            fields[run.transform] = list(run.values)
    return SourceBatch(transforms, clocks, looked_up.key, documents, fields, _unchecked(runs, transforms))


def _unchecked(runs: Sequence[SourceRun], transforms: Sequence[int]) -> np.ndarray:
    """Return the mask of documents that must still be validated."""
    marks = [run.origin.unchecked(run.numbers) for run in runs]
    if all(mark is None for mark in marks):
        return np.zeros(len(transforms), dtype=bool)
    told = [[False] * len(run) if mark is None else mark for mark, run in zip(marks, runs, strict=True)]
    return np.array(_in_turns(told, runs, transforms), dtype=bool)


def _in_turns(columns: Sequence[Sequence[Any]], runs: Sequence[SourceRun], transforms: Sequence[int]) -> Sequence[Any]:
    """Merge columns of runs in processing order."""
    if len(runs) == 1:
        return columns[0]
    take = {run.transform: iter(column).__next__ for run, column in zip(runs, columns, strict=True)}
    return [take[transform]() for transform in transforms]


class _Documents(Sequence[Document]):
    """Documents of several runs in processing order, looked up on access."""

    def __init__(self, runs: Sequence[SourceRun], transforms: Sequence[int]) -> None:
        self._runs = {run.transform: run for run in runs}
        self._transforms = transforms

    def __len__(self) -> int:
        return len(self._transforms)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        origin, number = self._locate(index)
        return origin.document(number)

    def __iter__(self) -> Iterator[Document]:
        return map(self.__getitem__, range(len(self)))

    def key(self, index: int) -> bytes:
        """Return the packed key of a document."""
        origin, number = self._locate(index)
        return origin.key(number)

    def _locate(self, index: int) -> tuple[Origin, int]:
        index = range(len(self))[index]
        run = self._runs[self._transforms[index]]
        return run.origin, run.numbers[self._transforms[:index].count(run.transform)]
