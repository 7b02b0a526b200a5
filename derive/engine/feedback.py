"""Feedback in memory: a self-reading derivation with one shard runs tick after tick inside one transaction.

At the end of a tick its published documents are combined and written, and those that its own transforms select go
back into the queue for the tick in which they are due. What falls behind the end of the transaction is not kept: the
next transaction reads it from storage, like any other source.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa

from derive.engine.combine import TickCombiner, rows_of
from derive.engine.flush import end_row
from derive.engine.invoke import Invoker
from derive.engine.plan import Plan, offset_of
from derive.protocol.specs import Document, TransformSpec
from derive.storage.label import compile_label
from derive.storage.texts import parse_texts

Row: TypeAlias = tuple[int, int, int, bytes, Document]
"""A source document: (adjusted clock, transform, seq, key, document); the first four order it (law L4)."""

_PLACE = itemgetter(0, 1, 2, 3)
_WRITE_ROWS = 20_000


class _Queue:
    """Fed-back documents, by the tick in which they are due."""

    def __init__(self, plan: Plan) -> None:
        self._tick = plan.spec.tick
        self._end = plan.end
        self._transforms = [each for each in plan.spec.transforms if each.source == plan.spec.name]
        taking_part = {read.transform for read in plan.reads}
        self._transforms = [each for each in self._transforms if each.index in taking_part]
        self._offsets = {each.index: offset_of(plan.spec, each) for each in self._transforms}
        self._fields = [each.field for each in plan.spec.collection.partitions]
        self._selected: dict[str, list[TransformSpec]] = {}
        self._due: dict[int, list[Row]] = {}
        self._ticks: list[int] = []

    def put(self, clock: int, seq: int, key: bytes, document: Document, label: str) -> None:
        for transform in self._readers(label):
            if transform.not_before is not None and clock < transform.not_before:
                continue
            if transform.not_after is not None and clock >= transform.not_after:
                continue
            adjusted = clock + self._offsets[transform.index]
            if adjusted >= self._end:
                continue
            tick = adjusted // self._tick
            if tick not in self._due:
                self._due[tick] = []
                heapq.heappush(self._ticks, tick)
            self._due[tick].append((adjusted, transform.index, seq, key, document))

    def _readers(self, label: str) -> list[TransformSpec]:
        readers = self._selected.get(label)
        if readers is None:
            partition = dict(zip(self._fields, orjson.loads(label), strict=True))
            readers = [each for each in self._transforms if each.selector.selects(partition)]
            self._selected[label] = readers
        return readers

    def next_tick(self) -> int | None:
        return self._ticks[0] if self._ticks else None

    def take(self, tick: int) -> list[Row]:
        if not self._ticks or self._ticks[0] != tick:
            return []
        heapq.heappop(self._ticks)
        return self._due.pop(tick)


def by_tick(batches: Iterator[pa.RecordBatch], tick: int) -> Iterator[tuple[int, list[Row]]]:
    """Group sorted source rows by the tick of their adjusted clock."""
    current: int | None = None
    rows: list[Row] = []
    for batch in batches:
        adjusted = batch.column(0).to_numpy()
        columns = [adjusted.tolist(), batch.column(1).to_pylist(), batch.column(2).to_pylist()]
        every = list(zip(*columns, batch.column(3).to_pylist(), parse_texts(batch.column(4)), strict=True))
        ticks = adjusted // tick
        borders = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(every)]
        for begin, end in itertools.pairwise(borders):
            number = int(ticks[begin])
            if number != current:
                if current is not None:
                    yield current, rows
                current, rows = number, []
            rows += every[begin:end]
    if current is not None:
        yield current, rows


def run_ticks(
    plan: Plan,
    batches: Iterator[pa.RecordBatch],
    invoker: Invoker,
    write: Callable[[pa.RecordBatch], None],
    processed: Callable[[int], None],
) -> None:
    """Run all ticks of a transaction, feeding back in memory.

    Args:
        plan: the transaction.
        batches: source rows from storage, in order.
        invoker: the shard's lambdas.
        write: takes the published rows, in order.
        processed: told how many documents were processed.
    """
    tick = plan.spec.tick
    combiner = TickCombiner(plan.spec)
    queue = _Queue(plan)
    source = by_tick(batches, tick)
    ahead = next(source, None)
    label = compile_label(plan.spec.collection)
    output: tuple[list[Any], ...] = ([], [], [], [], [])

    def end_tick() -> None:
        taken = combiner.take()
        parts: tuple[list[Any], ...] = (*taken, list(map(label, taken[3])))
        for row in zip(*parts, strict=True):
            queue.put(*row)
        for column, part in zip(output, parts, strict=True):
            column.extend(part)
        if len(output[0]) >= _WRITE_ROWS:
            flush()

    def flush() -> None:
        if output[0]:
            clocks, seqs, keys, documents, labels = output
            write(rows_of(np.array(clocks, dtype=np.int64), seqs, keys, documents, pa.array(labels, pa.string())))
            for column in output:
                column.clear()

    while True:
        due = queue.next_tick()
        candidates = [each for each in (ahead[0] if ahead else None, due) if each is not None]
        following = min(candidates, default=None)
        published_tick = None if following is None else max(following, plan.clamp // tick)
        if combiner.open_tick is not None and published_tick != combiner.open_tick:
            end_tick()  # which may put documents before `following`
            continue
        if following is None or published_tick is None:
            break
        rows: list[Row] = []
        if ahead is not None and ahead[0] == following:
            rows = ahead[1]
            ahead = next(source, None)
        fed_back = queue.take(following)
        if fed_back:
            rows = sorted(rows + fed_back, key=_PLACE)
        count = len(rows)
        if invoker.flushes:
            rows = [*rows, end_row(plan.spec, following)]
        _run_tick(plan, published_tick, rows, invoker, combiner)
        processed(count)
    flush()


def _run_tick(plan: Plan, tick: int, rows: list[Row], invoker: Invoker, combiner: TickCombiner) -> None:
    adjusted, transforms, _, keys, documents = zip(*rows, strict=True)
    published = invoker.invoke(list(transforms), np.array(adjusted, dtype=np.int64), keys, list(documents))
    clamp = plan.clamp
    clocks = [max(adjusted[cause], clamp) for cause in published.causes]
    if clocks:
        combiner.collect(tick, clocks, published.keys, published.documents)
