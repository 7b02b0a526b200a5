"""Feedback in memory: a self-reading derivation with one shard runs tick after tick inside one transaction.

At the end of a tick its published documents are combined and written, and those that its own transforms select go
back into the queue for the tick in which they are due. What falls behind the end of the transaction is not kept: the
next transaction reads it from storage, like any other source.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import orjson

from derive.protocol.specs import DerivationSpec, Document, InputSpec
from derive.shard.flush import end_row
from derive.shard.invoke import Invoker
from derive.shard.plan import Plan
from derive.shard.tick_combiner import TickCombiner, weigh
from derive.storage.segments.partition import compile_label
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import write_texts
from derive.time.positions import offset_of

Row: TypeAlias = tuple[int, int, int, bytes, Document]
"""A source document: (adjusted clock, transform, seq, key, document); the first four order it (law L4)."""

_PLACE = itemgetter(0, 1, 2, 3)
_WRITE_ROWS = 20_000
_FEW, _PIECE = 10_000, 1_000
"""How many documents of a tick are processed at once: all of a few, and so many if there are more."""


class _Queue:
    """Fed-back documents, by the tick in which they are due; on disk when they outgrow memory."""

    def __init__(self, plan: Plan, spill: Spill) -> None:
        self._tick = plan.spec.tick
        self._end = plan.end
        taking_part = [plan.spec.inputs[read.index] for read in plan.reads]
        self._inputs = [spec for spec in taking_part if spec.source == plan.spec.name]
        self._offsets = {spec.index: offset_of(spec, plan.spec.tick) for spec in self._inputs}
        self._fields = [each.field for each in plan.spec.collection.partitions]
        self._selected: dict[str, list[InputSpec]] = {}
        self._due: dict[int, list[Row]] = {}
        self._ticks: list[int] = []
        self._weight = self._count = 0  # of what is in memory
        self._spill = spill
        self._spilled: Sorter | None = None

    def put_all(self, parts: Sequence[Sequence[Any]], weight: int) -> None:
        """Take documents that were published.

        Args:
            parts: their clocks, seqs, keys, documents and labels.
            weight: about how many bytes they take.
        """
        for row in zip(*parts, strict=True):
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
        return self._ticks[0] if self._ticks else None

    def take(self, tick: int) -> tuple[list[Row], Iterator[Row] | None]:
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
        return rows, itertools.chain.from_iterable(map(_rows, map(ReadRows, self._spilled.take(until))))

    def _put_on_disk(self) -> None:
        if self._spilled is None:
            self._spilled = Sorter(ReadRows.SCHEMA, ReadRows.ORDER, self._spill)
        for rows in self._due.values():
            for begin in range(0, len(rows), _PIECE):
                *places, documents = zip(*rows[begin : begin + _PIECE], strict=True)
                self._spilled.add(ReadRows.from_columns(*places, write_texts(documents)).batch)
            rows.clear()
        self._spilled.spill()
        self._weight = self._count = 0


def _rows(rows: ReadRows) -> list[Row]:
    return list(zip(*rows.lists(), rows.documents(), strict=True))


def by_tick(batches: Iterator[ReadRows], tick: int) -> Iterator[tuple[int, Iterator[list[Row]]]]:
    """Group sorted source rows by the tick of their adjusted clock; each group is to be used up before the next."""
    parts = _parts(batches, tick)
    for number, group in itertools.groupby(parts, key=itemgetter(0)):
        yield number, (rows for _, rows in group)


def _parts(batches: Iterator[ReadRows], tick: int) -> Iterator[tuple[int, list[Row]]]:
    for batch in batches:
        rows = _rows(batch)
        ticks = batch.adjusted // tick
        borders = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(rows)]
        for begin, end in itertools.pairwise(borders):
            yield int(ticks[begin]), rows[begin:end]


def in_pieces(stored: Iterator[list[Row]], fed_back: list[Row], spilled: Iterator[Row] | None) -> Iterator[list[Row]]:
    """All rows of a tick in order: together if they are few.

    Args:
        stored: rows from storage, in order.
        fed_back: rows in any order.
        spilled: rows in order.
    """
    rows, more = next(stored, []), next(stored, None)
    if more is None and spilled is None and len(fed_back) <= _FEW:
        yield sorted(rows + fed_back, key=_PLACE) if fed_back else rows
        return
    from_storage = itertools.chain(rows, more or [], itertools.chain.from_iterable(stored))
    merged = heapq.merge(from_storage, sorted(fed_back, key=_PLACE), spilled or (), key=_PLACE)
    size = max(_PIECE, len(rows), len(more or []))  # batches from storage are of a size that memory holds
    while piece := list(itertools.islice(merged, size)):
        yield piece


def run_ticks(
    plan: Plan,
    batches: Iterator[ReadRows],
    invoker: Invoker,
    write: Callable[[WrittenRows], None],
    processed: Callable[[int], None],
    spill: Spill,
) -> None:
    """Run all ticks of a transaction, feeding back in memory.

    Args:
        plan: the transaction.
        batches: source rows from storage, in order.
        invoker: the shard's lambdas.
        write: takes the published rows, in order.
        processed: told how many documents were processed.
        spill: where goes what outgrows memory.
    """
    tick = plan.spec.tick
    combiner = TickCombiner(plan.spec, spill)
    queue = _Queue(plan, spill)
    source = by_tick(batches, tick)
    ahead = next(source, None)
    label = compile_label(plan.spec.collection)
    output = _Output(plan.spec, write, spill.memory // 2)
    end_of_tick = len(plan.spec.transforms)
    while True:
        due = queue.next_tick()
        candidates = [each for each in (ahead[0] if ahead else None, due) if each is not None]
        following = min(candidates, default=None)
        published_tick = None if following is None else max(following, plan.clamp // tick)
        if combiner.open_tick is not None and published_tick != combiner.open_tick:
            _end_tick(combiner, label, queue, output)  # which may put documents before `following`
            continue
        if following is None or published_tick is None:
            break
        is_stored = ahead is not None and ahead[0] == following
        stored = ahead[1] if ahead is not None and is_stored else iter(())
        fed_back, spilled = queue.take(following)
        if invoker.flushes:
            fed_back = [*fed_back, end_row(plan.spec, following)]
        for rows in in_pieces(stored, fed_back, spilled):
            _run_piece(plan, published_tick, rows, invoker, combiner)
            processed(sum(row[1] != end_of_tick for row in rows) if invoker.flushes else len(rows))
        if is_stored:
            ahead = next(source, None)
    output.flush()


class _Output:
    """What was published, gathered from several ticks."""

    def __init__(self, spec: DerivationSpec, write: Callable[[WrittenRows], None], most_bytes: int) -> None:
        self.write = write
        self._most_bytes = most_bytes
        self._weight = 0
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [])

    def add(self, parts: Sequence[Sequence[Any]], weight: int) -> None:
        """Take clocks, seqs, keys, documents and labels, which take about `weight` bytes."""
        for column, part in zip(self._columns, parts, strict=True):
            column.extend(part)
        self._weight += weight
        if len(self._columns[0]) >= _WRITE_ROWS or self._weight > self._most_bytes:
            self.flush()

    def flush(self) -> None:
        """Write it."""
        clocks, seqs, keys, documents, labels = self._columns
        if clocks:
            self.write(WrittenRows.sorted_of(clocks, seqs, keys, documents, labels))
            for column in self._columns:
                column.clear()
        self._weight = 0


def _end_tick(combiner: TickCombiner, label: Callable[[Document], str], queue: _Queue, output: _Output) -> None:
    """Write what a tick has published, and feed it back."""
    if combiner.is_large:
        output.flush()
        for rows in combiner.close():
            output.write(rows)
            columns = rows.lists()
            queue.put_all(columns, weigh(columns[3]))
        return
    weight = combiner.weight
    taken = combiner.take()
    parts = (*taken, list(map(label, taken[3])))
    queue.put_all(parts, weight)
    output.add(parts, weight)


def _run_piece(plan: Plan, tick: int, rows: list[Row], invoker: Invoker, combiner: TickCombiner) -> None:
    if not rows:
        return
    adjusted, transforms, _, keys, documents = zip(*rows, strict=True)
    clamp = plan.clamp
    for published in invoker.invoke(list(transforms), np.array(adjusted, dtype=np.int64), keys, list(documents)):
        clocks = [max(adjusted[cause], clamp) for cause in published.causes]
        combiner.collect(tick, clocks, published.keys, published.documents)
