"""Fed-back documents: what a derivation published and reads itself, until the ticks come in which it is due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import orjson

from derive.protocol.specs import Document, InputSpec
from derive.shard.plan import Plan
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import write_texts
from derive.time.positions import offset_of

SourceRow: TypeAlias = tuple[int, int, int, bytes, Document]
"""A source document: (adjusted clock, transform, seq, key, document); the first four order it (law L4)."""

Combined: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[bytes], Sequence[Document], Sequence[str]]
"""Documents that were published and combined: their clocks, seqs, keys, documents and labels."""

_PIECE = 1_000
"""How many documents go on disk at once."""


class FeedbackQueue:
    """Fed-back documents, by the tick in which they are due; on disk when they outgrow memory.

    Args:
        plan: the transaction; what is due behind its end is left to the next one, which reads it from storage.
        spill: where documents go that outgrow memory.
    """

    def __init__(self, plan: Plan, spill: Spill) -> None:
        self._tick = plan.spec.tick
        self._end = plan.end
        taking_part = [plan.spec.inputs[read.index] for read in plan.reads]
        self._inputs = [spec for spec in taking_part if spec.source == plan.spec.name]
        self._offsets = {spec.index: offset_of(spec, plan.spec.tick) for spec in self._inputs}
        self._fields = [partition.field for partition in plan.spec.collection.partitions]
        self._selected: dict[str, list[InputSpec]] = {}
        self._due: dict[int, list[SourceRow]] = {}
        self._ticks: list[int] = []
        self._weight = self._count = 0  # of what is in memory
        self._spill = spill
        self._spilled: Sorter | None = None

    def put_all(self, combined: Combined, weight: int) -> None:
        """Take documents that were published, which take about `weight` bytes."""
        for row in zip(*combined, strict=True):
            self._put(*row)
        self._weight += weight
        if self._weight > self._spill.memory // 2:
            self._put_on_disk()

    def _put(self, clock: int, seq: int, key: bytes, document: Document, label: str) -> None:
        for spec in self._readers(label):
            if spec.not_before is not None and clock < spec.not_before:
                continue
            if spec.not_after is not None and clock >= spec.not_after:
                continue
            adjusted = clock + self._offsets[spec.index]
            if adjusted >= self._end:
                continue
            tick = adjusted // self._tick
            if tick not in self._due:
                self._due[tick] = []
                heapq.heappush(self._ticks, tick)
            self._due[tick].append((adjusted, spec.index, seq, key, document))
            self._count += 1

    def _readers(self, label: str) -> list[InputSpec]:
        readers = self._selected.get(label)
        if readers is None:
            partition = dict(zip(self._fields, orjson.loads(label), strict=True))
            readers = [spec for spec in self._inputs if spec.selector.selects(partition)]
            self._selected[label] = readers
        return readers

    def next_tick(self) -> int | None:
        """The first tick in which documents are due; None if there are none."""
        return self._ticks[0] if self._ticks else None

    def take(self, tick: int) -> tuple[list[SourceRow], Iterator[SourceRow] | None]:
        """What is due in a tick: rows in any order, and others on disk, in order, if there may be some."""
        if not self._ticks or self._ticks[0] != tick:
            return [], None
        heapq.heappop(self._ticks)
        rows = self._due.pop(tick)
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
