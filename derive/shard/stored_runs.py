"""Stored documents on a cycle: source rows from segments, taken tick by tick, with a look at the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from derive.protocol.specs import Document
from derive.shard.fields import FieldValues, Reading, StoredDocuments
from derive.shard.plan import Plan
from derive.shard.source_run import SourceRun
from derive.storage.segments.rows import ReadRows


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
        """Return a document."""
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
        """Return a run of each transform, and the indices of its rows; None for all."""
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
    """Source rows from storage, with a look at the next one.

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
