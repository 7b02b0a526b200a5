"""Fed-back documents: what one derivation of a cycle reads of them, until the ticks come in which it is due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

import orjson

from derive.protocol.specs import DerivationSpec, Document, InputSpec
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import write_texts
from derive.time.frontier import BEGINNING
from derive.time.positions import offset_of

SourceRow: TypeAlias = tuple[int, int, int, bytes, Document]
"""A source document: (adjusted clock, transform, seq, key, document); the first four order it (law L4)."""

Combined: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[bytes], Sequence[Document], Sequence[str]]
"""Documents that were published and combined: their clocks, seqs, keys, documents and labels."""

_ADJUSTED = itemgetter(0)

_PIECE = 1_000
"""How many documents go on disk at once."""


class FeedbackQueue:
    """Fed-back documents, by the tick in which they are due; on disk when they outgrow memory.

    Args:
        spec: the derivation that reads them.
        inputs: of it, which read them.
        end: adjusted clock at which the transaction ends; what is due behind it is left to the next one, which reads it
            from storage.
        spill: where documents go that outgrow memory.
    """

    def __init__(self, spec: DerivationSpec, inputs: Sequence[InputSpec], end: int, spill: Spill) -> None:
        self._tick = spec.tick
        self._end = end
        self._inputs = inputs
        self._offsets = {read.index: offset_of(read, spec.tick) for read in inputs}
        self._fields = {
            read.source: [partition.field for partition in spec.sources[read.source].partitions] for read in inputs
        }
        self._selected: dict[tuple[str, str], list[InputSpec]] = {}
        self._due: dict[int, list[SourceRow]] = {}
        self._first: dict[int, int] = {}  # by tick, the least adjusted clock of what is due in it
        self._ticks: list[int] = []
        self._weight = self._count = 0  # of what is in memory
        self._spill = spill
        self._spilled: Sorter | None = None

    def put_all(self, source: str, combined: Combined, weight: int) -> None:
        """Take documents that were published to a collection, which take about `weight` bytes."""
        *columns, labels = combined
        readers = {label: self._readers(source, label) for label in set(labels)}
        for spec in self._inputs:
            reading = {label for label, specs in readers.items() if spec in specs}
            if not reading:
                continue
            offset = self._offsets[spec.index]
            begin = BEGINNING if spec.not_before is None else spec.not_before
            end = self._end - offset if spec.not_after is None else min(spec.not_after, self._end - offset)
            rows = [
                (clock + offset, spec.index, seq, key, document)
                for clock, seq, key, document, label in zip(*columns, labels, strict=True)
                if label in reading and begin <= clock < end
            ]
            self._put(rows)
        self._weight += weight
        if self._weight > self._spill.memory // 2:
            self._put_on_disk()

    def _put(self, rows: list[SourceRow]) -> None:
        """Take rows; most often all are due in one tick."""
        self._count += len(rows)
        for tick, due in itertools.groupby(sorted(rows, key=_ADJUSTED), key=lambda row: row[0] // self._tick):
            if tick not in self._due:
                self._due[tick] = []
                heapq.heappush(self._ticks, tick)
            added = list(due)
            self._first[tick] = min(added[0][0], self._first.get(tick, added[0][0]))
            self._due[tick] += added

    def _readers(self, source: str, label: str) -> list[InputSpec]:
        readers = self._selected.get((source, label))
        if readers is None:
            partition = dict(zip(self._fields.get(source, ()), orjson.loads(label), strict=True))
            readers = [spec for spec in self._inputs if spec.source == source and spec.selector.selects(partition)]
            self._selected[source, label] = readers
        return readers

    @property
    def first(self) -> int | None:
        """The least adjusted clock of a document; None if there is none."""
        return self._first[self._ticks[0]] if self._ticks else None

    def take(self, tick: int) -> tuple[list[SourceRow], Iterator[SourceRow] | None]:
        """What is due in a tick: rows in any order, and others on disk, in order, if there may be some."""
        if not self._ticks or self._ticks[0] != tick:
            return [], None
        heapq.heappop(self._ticks)
        rows = self._due.pop(tick)
        del self._first[tick]
        self._weight -= self._weight * len(rows) // max(self._count, 1)
        self._count -= len(rows)
        if self._spilled is None:
            return rows, None
        until = ((tick + 1) * self._tick,)
        return rows, itertools.chain.from_iterable(map(source_rows, map(ReadRows, self._spilled.take(until))))

    def _put_on_disk(self) -> None:
        if self._spilled is None:
            self._spilled = Sorter(ReadRows.SCHEMA, ReadRows.ORDER, self._spill)
        for rows in self._due.values():
            for begin in range(0, len(rows), _PIECE):
                piece = rows[begin : begin + _PIECE]
                adjusted, transforms, seqs, keys, documents = zip(*piece, strict=True)
                self._spilled.add(ReadRows.of(adjusted, transforms, seqs, keys, write_texts(documents)).batch)
            rows.clear()
        self._spilled.spill()
        self._weight = self._count = 0


def source_rows(rows: ReadRows) -> list[SourceRow]:
    """Source rows, parsed."""
    return list(zip(*rows.lists(), rows.documents(), strict=True))
