"""Source documents on a cycle: rows of a tick by transform, and stored rows, which are taken tick by tick.

Rarely needed values (keys, and documents whose fields are read) are looked up at their origin on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, overload

import numpy as np

from derive.protocol.specs import Document
from derive.shard.fields import FieldValues, Reading, StoredDocuments
from derive.shard.invoke import SourceBatch
from derive.shard.plan import Plan
from derive.storage.segments.rows import ReadRows, concat

_TRANSFORM = attrgetter("transform")


class Origin(Protocol):
    """Origin of a run's documents, which are identified by number."""

    def key(self, number: int) -> bytes:
        """Return the packed key of a document."""

    def document(self, number: int) -> Document:
        """Return a document; the call may be slow."""

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
        """Return the documents as rows, with the timestamps at which the task reads them."""
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
    return SourceBatch(
        transforms, clocks, looked_up.key, documents, fields, _unchecked(runs, transforms), seq_of=looked_up.seq
    )


def _unchecked(runs: Sequence[SourceRun], transforms: Sequence[int]) -> np.ndarray:
    """Return the mask of documents that must still be validated."""
    marks = [run.origin.unchecked(run.numbers) for run in runs]
    if all(mark is None for mark in marks):
        return np.zeros(len(transforms), dtype=bool)
    marked = [[False] * len(run) if mark is None else mark for mark, run in zip(marks, runs, strict=True)]
    return np.array(_in_turns(marked, runs, transforms), dtype=bool)


def _in_turns(columns: Sequence[Sequence[Any]], runs: Sequence[SourceRun], transforms: Sequence[int]) -> Sequence[Any]:
    """Merge columns of runs in processing order."""
    if len(runs) == 1:
        return columns[0]
    take = {run.transform: iter(column).__next__ for run, column in zip(runs, columns, strict=True)}
    return [take[transform]() for transform in transforms]


class _Documents(Sequence[Document]):
    """Documents of several runs in processing order; an access looks a document up."""

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

    def seq(self, index: int) -> int:
        """Return the sequence number of a document."""
        origin, number = self._locate(index)
        return origin.rows([0], [number]).lists()[2][0]

    def _locate(self, index: int) -> tuple[Origin, int]:
        index = range(len(self))[index]
        run = self._runs[self._transforms[index]]
        return run.origin, run.numbers[self._transforms[:index].count(run.transform)]


class StoredOrigin:
    """Rows of one transform.

    Args:
        plan: the transaction.
        read: the rows.
    """

    def __init__(self, plan: Plan, read: ReadRows) -> None:
        self._rows = read
        self._documents = StoredDocuments(plan, read)
        marks = read.unchecked
        self._unchecked: list[bool] | None = marks.tolist() if marks is not None and marks.any() else None

    def key(self, number: int) -> bytes:
        """Return the packed key of a document."""
        key: bytes = self._rows.keys[number].as_py()
        return key

    def document(self, number: int) -> Document:
        """Return the document with an index."""
        return self._documents[number]

    def unchecked(self, numbers: Sequence[int]) -> Sequence[bool] | None:
        """Return the mask of documents that must still be validated; None for none."""
        return None if self._unchecked is None else [self._unchecked[number] for number in numbers]

    def rows(self, adjusted: Sequence[int], numbers: Sequence[int]) -> ReadRows:
        """Return consecutive rows."""
        return self._rows.slice(numbers[0], len(numbers))


class _Part:
    """Rows that were read together, and the runs of their transforms, created on demand.

    Args:
        plan: the transaction.
        reading: columns of the rows.
        rows: rows in order.
    """

    def __init__(self, plan: Plan, reading: Reading, rows: ReadRows) -> None:
        self._plan = plan
        self._reading = reading
        self.rows = rows
        self.adjusted: list[int] = rows.adjusted.tolist()
        self._runs: list[tuple[SourceRun, np.ndarray | None]] | None = None

    def runs(self, begin: int, end: int) -> list[SourceRun]:
        """Return the runs of the rows with indices in `[begin, end)`."""
        if self._runs is None:
            self._runs = self._made()
        runs = []
        for run, numbers in self._runs:
            first, last = (begin, end) if numbers is None else np.searchsorted(numbers, (begin, end)).tolist()
            if first < last:
                runs.append(run.slice(first, last))
        return runs

    def _made(self) -> list[tuple[SourceRun, np.ndarray | None]]:
        """Return, for each transform, a run of its rows and their indices; None stands for all rows."""
        transforms = self.rows.transforms
        present = np.unique(transforms).tolist()
        if len(present) == 1:
            return [(self._run(present[0], self.rows), None)]
        numbers = [(index, np.flatnonzero(transforms == index)) for index in present]
        return [(self._run(index, self.rows.take(own)), own) for index, own in numbers]

    def _run(self, transform: int, rows: ReadRows) -> SourceRun:
        has_fields = self._reading.transforms is not None
        values = FieldValues(self._reading, rows).all_of(transform) if has_fields else [rows.documents()]
        origin = StoredOrigin(self._plan, rows)
        return SourceRun(transform, rows.adjusted.tolist(), tuple(values), origin, range(len(rows)))


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """Source rows of one tick that were read together.

    Attributes:
        part: rows that were read together.
        begin: index of the first row.
        end: index after the last row.
    """

    part: _Part
    begin: int
    end: int

    def runs(self) -> list[SourceRun]:
        """Return the rows as runs."""
        return self.part.runs(self.begin, self.end)

    def rows(self) -> ReadRows:
        """Return the rows."""
        return self.part.rows.slice(self.begin, self.end - self.begin)


class StoredRuns:
    """Source rows from storage; the adjusted timestamp of the next row is known in advance.

    Args:
        plan: the transaction.
        reading: columns of the rows.
        parts: the rows, in order.

    Attributes:
        first: adjusted timestamp of the next row; None at the end.
    """

    def __init__(self, plan: Plan, reading: Reading, parts: Iterator[ReadRows]) -> None:
        self._parts = (_Part(plan, reading, rows) for rows in parts if len(rows))
        self._part: _Part | None = None
        self._next = 0
        self.first: int | None = None
        self._look()

    def _look(self) -> None:
        if self._part is None or self._next == len(self._part.adjusted):
            self._part, self._next = next(self._parts, None), 0
        self.first = None if self._part is None else self._part.adjusted[self._next]

    def take(self, end: int) -> Iterator[StoredSlice]:
        """Yield and remove the rows with adjusted timestamps below `end`, in order."""
        while self._part is not None and self.first is not None and self.first < end:
            part, begin = self._part, self._next
            self._next = behind = bisect_left(part.adjusted, end, begin)
            self._look()
            yield StoredSlice(part, begin, behind)
