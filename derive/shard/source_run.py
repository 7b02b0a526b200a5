"""Source documents of a tick on a cycle, transform by transform, as lists: few are handed to lambdas without Arrow.

What most of them never are asked for (their keys, and documents of which only fields are read) is looked for in the
place that they come from.
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
    """Where documents of a run come from; they have numbers there."""

    def key(self, number: int) -> bytes:
        """The packed key of one."""

    def document(self, number: int) -> Document:
        """One of them; that may take long."""

    def unchecked(self, numbers: Sequence[int]) -> Sequence[bool] | None:
        """Which of some have yet to be validated; None for none."""

    def rows(self, adjusted: Sequence[int], numbers: Sequence[int]) -> ReadRows:
        """Some as rows, of which the adjusted clocks are given."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Source documents of one transform in the order of processing, at least one.

    Attributes:
        transform: index of the transform.
        adjusted: adjusted clocks, which ascend.
        values: what the lambda is given: the values of its fields, field by field, or one sequence, the documents.
        origin: where they come from.
        numbers: of the documents, there.
    """

    transform: int
    adjusted: list[int]
    values: tuple[Sequence[Any], ...]
    origin: Origin
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.adjusted)

    def slice(self, begin: int, end: int) -> SourceRun:
        """The documents from one number up to another."""
        part = slice(begin, end)
        values = tuple([column[part] for column in self.values])
        return SourceRun(self.transform, self.adjusted[part], values, self.origin, self.numbers[part])

    def rows(self) -> ReadRows:
        """The documents as rows."""
        return self.origin.rows(self.adjusted, self.numbers)


def rows_of(runs: Sequence[SourceRun]) -> ReadRows:
    """Runs as rows, in the order of processing."""
    rows = concat([run.rows() for run in runs])
    return rows.sorted(ReadRows.ORDER) if len(runs) > 1 else rows


def batch_of(runs: Sequence[SourceRun], reading: Reading) -> SourceBatch:
    """Runs, each of another transform, as lambdas are given them.

    Args:
        runs: at least one.
        reading: what is read of sources.
    """
    if len(runs) == 1:
        clocks, transforms = np.array(runs[0].adjusted, dtype=np.int64), [runs[0].transform] * len(runs[0])
    else:  # documents of one clock by their transforms (law L4); a run is in order already
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
    """Which documents have yet to be validated."""
    marks = [run.origin.unchecked(run.numbers) for run in runs]
    if all(mark is None for mark in marks):
        return np.zeros(len(transforms), dtype=bool)
    told = [[False] * len(run) if mark is None else mark for mark, run in zip(marks, runs, strict=True)]
    return np.array(_in_turns(told, runs, transforms), dtype=bool)


def _in_turns(columns: Sequence[Sequence[Any]], runs: Sequence[SourceRun], transforms: Sequence[int]) -> Sequence[Any]:
    """Columns of runs as one, in the order of processing."""
    if len(runs) == 1:
        return columns[0]
    take = {run.transform: iter(column).__next__ for run, column in zip(runs, columns, strict=True)}
    return [take[transform]() for transform in transforms]


class _Documents(Sequence[Document]):
    """Documents of several runs in the order of processing, each of which is looked for when it is asked for."""

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
        """The packed key of one."""
        origin, number = self._locate(index)
        return origin.key(number)

    def _locate(self, index: int) -> tuple[Origin, int]:
        index = range(len(self))[index]
        run = self._runs[self._transforms[index]]
        return run.origin, run.numbers[self._transforms[:index].count(run.transform)]
