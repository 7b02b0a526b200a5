"""Feedback: documents that a cycle publishes are queued for their readers, by the tick in which they count.

At the end of a tick, the combined documents that a transform of the cycle selects are added to the backlog of its
derivation. The backlog merges them with stored documents. Documents after the end of the transaction are dropped,
because the next transaction reads them from storage.

A tick with few documents is taken as lists. A tick with many documents, or with spilled documents, is taken as rows,
which Arrow merges.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import lt
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa

from derive.document.columns import Columns
from derive.document.pointer import JSON, MISSING, parse_pointer
from derive.protocol.specs import DerivationSpec, Document, InputSpec
from derive.schema.validator import fingerprint
from derive.shard.cycle_sources import SourceRun, StoredRuns, StoredSlice, rows_of
from derive.shard.fields import Reading
from derive.shard.plan import Plan
from derive.shard.published import Combined, Content
from derive.storage.segments.columns import compile_values, fields_of
from derive.storage.segments.reader import made_columns
from derive.storage.segments.rows import UNCHECKED, ReadRows
from derive.storage.segments.sorter import Cursor, Sorter, Spill, merge
from derive.storage.segments.texts import write_texts
from derive.time import BEGINNING
from derive.time.positions import offset_of

_PIECE = 1_000
"""Number of documents in a spilled piece."""

_GetValues: TypeAlias = Callable[[Content], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Reader:
    """One input that reads fed-back documents.

    Attributes:
        spec: the input.
        offset: microseconds from timestamp to adjusted timestamp.
        begin: first timestamp.
        end: exclusive upper bound of the timestamps.
        values: functions from documents to the lambda's values.
        is_unchecked: true if published documents must still be validated under the read schema.
    """

    spec: InputSpec
    offset: int
    begin: int
    end: int
    values: tuple[_GetValues, ...]
    is_unchecked: bool


class FeedbackQueue:
    """Fed-back documents by the tick in which they are due; spilled to disk beyond the memory limit.

    Args:
        spec: the reading derivation.
        inputs: its inputs that read fed-back documents.
        reading: columns that the derivation reads.
        end: adjusted timestamp of the transaction's end; the next transaction reads later documents.
        spill: files for documents beyond the memory limit.
    """

    def __init__(
        self, spec: DerivationSpec, inputs: Sequence[InputSpec], reading: Reading, end: int, spill: Spill
    ) -> None:
        self._tick = spec.tick
        self._reading = reading
        self._readers = [_reader_of(spec, read, reading, end) for read in inputs]
        self._fields = {
            read.source: [partition.field for partition in spec.sources[read.source].partitions] for read in inputs
        }
        self._selected: dict[tuple[int, str], bool] = {}
        self._due: dict[int, list[SourceRun]] = {}
        self._first: dict[int, int] = {}  # least adjusted timestamp by tick
        self._ticks: list[int] = []
        self._weight = self._count = 0  # totals of the documents in memory
        self._spill = spill
        self._spilled: Sorter | None = None

    def put_all(self, source: str, combined: Combined, weight: int) -> None:
        """Add published documents of a collection, with an approximate size of `weight` bytes."""
        for reader in self._readers:
            if reader.spec.source == source and (numbers := self._read_by(reader, combined)):
                self._put(_run_of(reader, self._reading, combined, numbers))
        self._weight += weight
        if self._weight > self._spill.memory // 2:
            self._put_on_disk()

    def _read_by(self, reader: _Reader, combined: Combined) -> Sequence[int]:
        """Return the indices of the documents that an input reads."""
        clocks, labels = combined.clocks, set(combined.labels)
        selected = {label for label in labels if self._selects(reader.spec, label)}
        begin, end = reader.begin, reader.end
        if len(selected) == len(labels) and begin <= min(clocks) and max(clocks) < end:
            return range(len(clocks))
        parts = enumerate(zip(clocks, combined.labels, strict=True))
        return [number for number, (clock, label) in parts if label in selected and begin <= clock < end]

    def _selects(self, spec: InputSpec, label: str) -> bool:
        is_selected = self._selected.get((spec.index, label))
        if is_selected is None:
            partition = dict(zip(self._fields[spec.source], orjson.loads(label), strict=True))
            is_selected = self._selected[spec.index, label] = spec.selector.selects(partition)
        return is_selected

    def _put(self, run: SourceRun) -> None:
        """Add a run; usually, most of its documents are due in one tick."""
        self._count += len(run)
        begin = 0
        while begin < len(run):
            tick = run.adjusted[begin] // self._tick
            behind = bisect_left(run.adjusted, (tick + 1) * self._tick, begin)
            if tick not in self._due:
                self._due[tick] = []
                heapq.heappush(self._ticks, tick)
            self._first[tick] = min(run.adjusted[begin], self._first.get(tick, run.adjusted[begin]))
            self._due[tick].append(run if behind - begin == len(run) else run.slice(begin, behind))
            begin = behind

    @property
    def first(self) -> int | None:
        """Return the least adjusted timestamp of a document; None for none."""
        return self._first[self._ticks[0]] if self._ticks else None

    def take(self, tick: int) -> tuple[list[SourceRun], Iterator[pa.RecordBatch] | None]:
        """Return the documents of a tick: unordered runs in memory, and ordered batches from the disk or None."""
        if not self._ticks or self._ticks[0] != tick:
            return [], None
        heapq.heappop(self._ticks)
        runs, count = self._due.pop(tick), self._count
        del self._first[tick]
        self._count -= sum(map(len, runs))
        self._weight = self._weight * self._count // max(count, 1)
        return runs, None if self._spilled is None else self._spilled.take(((tick + 1) * self._tick,))

    def _put_on_disk(self) -> None:
        if self._spilled is None:
            self._spilled = Sorter(self._reading.selection.schema, ReadRows.ORDER, self._spill)
        for runs in self._due.values():
            for run in runs:
                for begin in range(0, len(run), _PIECE):
                    self._spilled.add(run.slice(begin, begin + _PIECE).rows().batch)
            runs.clear()
        self._spilled.spill()
        self._weight = self._count = 0


@dataclass(frozen=True)
class _FeedbackReader:
    """The published documents that one input reads, as an origin."""

    reader: _Reader
    reading: Reading
    combined: Combined

    @cached_property
    def _documents(self) -> Sequence[Document]:
        return self.combined.content.documents()

    def key(self, number: int) -> bytes:
        """Return the packed key of a document."""
        return self.combined.key_list[number]

    def document(self, number: int) -> Document:
        """Return a document."""
        return self._documents[number]

    def unchecked(self, numbers: Sequence[int]) -> Sequence[bool] | None:
        """Return a mask of the documents that must still be validated; None if there are none."""
        return [True] * len(numbers) if self.reader.is_unchecked else None

    def rows(self, adjusted: Sequence[int], numbers: Sequence[int]) -> ReadRows:
        """Return documents as rows with their text, because no segment has the text yet."""
        documents = self.combined.content.take(np.array(numbers, dtype=np.int64)).documents()
        count, selection, transform = len(numbers), self.reading.selection, self.reader.spec.index
        all_seqs, all_keys = self.combined.seqs, self.combined.key_list
        seqs, keys = [all_seqs[number] for number in numbers], [all_keys[number] for number in numbers]
        rows = ReadRows.of(adjusted, [transform] * count, seqs, keys, write_texts(documents))
        if selection.columns is not None:
            made = made_columns(selection.columns[transform], selection.kinds, documents)
            rows = rows.with_fields(fields_of(*made, count))
        is_unchecked = pa.repeat(pa.scalar(self.reader.is_unchecked), count)
        return ReadRows(rows.batch.append_column(UNCHECKED, is_unchecked))


def _reader_of(spec: DerivationSpec, read: InputSpec, reading: Reading, end: int) -> _Reader:
    source, offset = spec.sources[read.source], offset_of(read, spec.tick)
    values: tuple[_GetValues, ...] = (_documents_of,)
    if reading.transforms is not None:
        fields = reading.transforms[read.index].fields
        values = tuple(_compile_field(reading.column(read.index, place).pointer, default) for place, default in fields)
    begin = BEGINNING if read.not_before is None else read.not_before
    end = end - offset if read.not_after is None else min(read.not_after, end - offset)
    is_unchecked = fingerprint(source.write_schema) != fingerprint(source.read_schema)
    return _Reader(read, offset, begin, end, values, is_unchecked)


def _documents_of(content: Content) -> Sequence[Document]:
    return content.documents()


def _compile_field(pointer: str, default: JSON) -> _GetValues:
    """Return a function from documents to a lambda's values at a location."""
    tokens, get = parse_pointer(pointer), compile_values(pointer)

    def values(content: Content) -> Sequence[JSON]:
        if isinstance(content, Columns):
            column, kinds = content.at(tokens)
            if type(MISSING) not in kinds:
                return column
        else:
            column = get(content.listed)
        return [default if value is MISSING else value for value in column]

    return values


def _run_of(reader: _Reader, reading: Reading, combined: Combined, numbers: Sequence[int]) -> SourceRun:
    """Return the published documents with these indices as a run."""
    clocks = combined.clocks
    adjusted = [clocks[number] + reader.offset for number in numbers]
    if not all(map(lt, adjusted, islice(adjusted, 1, None))):
        seqs, keys = combined.seqs, combined.key_list
        numbers = sorted(numbers, key=lambda number: (clocks[number], seqs[number], keys[number]))
        adjusted.sort()
    values = tuple([get(combined.content) for get in reader.values])
    if numbers != range(len(clocks)):
        values = tuple([[column[number] for number in numbers] for column in values])
    return SourceRun(reader.spec.index, adjusted, values, _FeedbackReader(reader, reading, combined), numbers)


TickPart: TypeAlias = list[SourceRun] | ReadRows
"""Source documents of one tick, in order: runs of distinct transforms, or rows."""

FEW = 10_000
"""Largest number of documents of a tick that are processed as lists; approximate size of the pieces of larger ticks."""


class Backlog:
    """The unprocessed documents of inputs of one priority, stored and fed back, by tick.

    Args:
        plan: the transaction of their derivation.
        inputs: the inputs.
        reading: columns that the derivation reads.
        parts: stored source rows, in order.
        spill: files for rows that exceed the memory limit.
        few: largest number of documents that are taken as lists.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[InputSpec],
        reading: Reading,
        parts: Iterator[ReadRows],
        spill: Spill,
        few: int = FEW,
    ) -> None:
        self._tick = plan.spec.tick
        self._few = few
        self._stored = StoredRuns(plan, reading, parts)
        self.fed_back = FeedbackQueue(plan.spec, [read for read in inputs if read.feedback], reading, plan.end, spill)

    @property
    def first(self) -> int | None:
        """Return the adjusted timestamp of the next document; None for none."""
        stored, fed_back = self._stored.first, self.fed_back.first
        if stored is None or fed_back is None:
            return fed_back if stored is None else stored
        return min(stored, fed_back)

    def take(self, tick: int) -> Iterator[TickPart]:
        """Yield and remove the documents of the first tick, in order.

        The caller must consume the iterator before any other call.
        """
        fed_back, spilled = self.fed_back.take(tick)
        stored = self._stored.take((tick + 1) * self._tick)
        first, more = next(stored, None), next(stored, None)
        if more is None and spilled is None and sum(map(len, fed_back)) <= self._few:
            runs = [*(first.runs() if first else ()), *fed_back]
            if len({run.transform for run in runs}) < len(runs):
                yield rows_of(runs)
            elif runs:
                yield runs
            return
        read = chain([part for part in (first, more) if part], stored)
        yield from merged(read, fed_back, spilled, self._few)


def merged(
    stored: Iterator[StoredSlice], fed_back: Sequence[SourceRun], spilled: Iterator[pa.RecordBatch] | None, piece: int
) -> Iterator[ReadRows]:
    """Yield all rows of a tick, in order.

    Args:
        stored: stored rows, in order.
        fed_back: fed-back rows in memory, in any order.
        spilled: fed-back rows on disk, in order; None for none.
        piece: approximate limit for the size of a piece.
    """
    streams = [(part.rows().batch for part in stored), spilled or iter(())]
    if fed_back:
        rows = rows_of(fed_back)
        streams.append(rows.slice(begin, piece).batch for begin in range(0, len(rows), piece))
    yield from map(ReadRows, merge([Cursor((), stream, ReadRows.ORDER) for stream in streams]))
