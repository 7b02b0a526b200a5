"""Feedback in memory: a self-reading derivation with one shard runs tick after tick inside one transaction.

At the end of a tick its published documents are combined and written, and those that its own transforms select go
back into the queue for the tick in which they are due. What falls behind the end of the transaction is not kept: the
next transaction reads it from storage, like any other source.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from derive.protocol.specs import Document
from derive.shard.feedback_queue import Combined, FeedbackQueue, SourceRow, source_rows
from derive.shard.flush import end_row
from derive.shard.invoke import Invoker, SourceBatch
from derive.shard.plan import Plan
from derive.shard.published import weigh
from derive.shard.tick_combiner import TickCombiner
from derive.storage.segments.columns import MakeFields, compile_fields
from derive.storage.segments.partition import compile_label
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.spill import Spill

_Columns: TypeAlias = tuple[list[int], list[int], list[bytes], list[Document], list[str]]
"""Clocks, seqs, keys, documents and labels."""

_SORT_KEY = itemgetter(0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many documents are handled at once.

    Attributes:
        few: of one tick, which are processed together.
        piece: of a tick that has more.
        written: of several ticks, which are written together.
    """

    few: int = 10_000
    piece: int = 1_000
    written: int = 20_000


SIZES = Sizes()


def by_tick(parts: Iterator[ReadRows], tick: int) -> Iterator[tuple[int, Iterator[list[SourceRow]]]]:
    """Group sorted source rows by the tick of their adjusted clock; each group is to be used up before the next."""
    for number, group in itertools.groupby(_by_tick(parts, tick), key=itemgetter(0)):
        yield number, (rows for _, rows in group)


def _by_tick(parts: Iterator[ReadRows], tick: int) -> Iterator[tuple[int, list[SourceRow]]]:
    for part in parts:
        rows = source_rows(part)
        ticks = part.adjusted // tick
        borders = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(rows)]
        for begin, end in itertools.pairwise(borders):
            yield int(ticks[begin]), rows[begin:end]


def in_pieces(
    stored: Iterator[list[SourceRow]],
    fed_back: list[SourceRow],
    spilled: Iterator[SourceRow] | None,
    sizes: Sizes = SIZES,
) -> Iterator[list[SourceRow]]:
    """All rows of a tick in order: together if they are few.

    Args:
        stored: rows from storage, in order.
        fed_back: rows in any order.
        spilled: rows in order.
        sizes: how many are few.
    """
    rows, more = next(stored, []), next(stored, None)
    if more is None and spilled is None and len(fed_back) <= sizes.few:
        yield sorted(rows + fed_back, key=_SORT_KEY) if fed_back else rows
        return
    from_storage = itertools.chain(rows, more or [], itertools.chain.from_iterable(stored))
    merged = heapq.merge(from_storage, sorted(fed_back, key=_SORT_KEY), spilled or (), key=_SORT_KEY)
    size = max(sizes.piece, len(rows), len(more or []))  # batches from storage are of a size that memory holds
    while piece := list(itertools.islice(merged, size)):
        yield piece


def run_ticks(
    plan: Plan,
    parts: Iterator[ReadRows],
    invoker: Invoker,
    combiner: TickCombiner,
    processed: Callable[[int], None],
    spill: Spill,
) -> Iterator[WrittenRows]:
    """Run all ticks of a transaction, feeding back in memory; yields published rows, in order.

    Args:
        plan: the transaction.
        parts: source rows from storage, in order.
        invoker: the shard's lambdas.
        combiner: of what they publish.
        processed: told how many documents were processed.
        spill: where goes what outgrows memory.
    """
    tick = plan.spec.tick
    least = plan.clamp // tick
    queue = FeedbackQueue(plan, spill)
    source = by_tick(parts, tick)
    ahead = next(source, None)
    label = compile_label(plan.spec.collection)
    output = _Output(spill.memory // 2, compile_fields(plan.spec.collection))
    end_of_tick = len(plan.spec.transforms)
    while True:
        stored_tick, due = ahead[0] if ahead else None, queue.next_tick()
        following = due if stored_tick is None or (due is not None and due < stored_tick) else stored_tick
        published_tick = None if following is None else max(following, least)
        if combiner.open_tick is not None and published_tick != combiner.open_tick:
            yield from _end_tick(combiner, label, queue, output)  # which may put documents before `following`
            continue
        if following is None:
            break
        stored = ahead[1] if ahead and stored_tick == following else iter(())
        fed_back, spilled = queue.take(following)
        if invoker.flushes:
            fed_back = [*fed_back, end_row(plan.spec, following)]
        for rows in filter(None, in_pieces(stored, fed_back, spilled)):
            for published in invoker.invoke(_batch(rows), as_columns=False):
                yield from combiner.add(published)
            processed(sum(row[1] != end_of_tick for row in rows) if invoker.flushes else len(rows))
        if stored_tick == following:
            ahead = next(source, None)
    yield from output.take()


def _batch(rows: list[SourceRow]) -> SourceBatch:
    adjusted, transforms, _, keys, documents = zip(*rows, strict=True)
    return SourceBatch(list(transforms), np.array(adjusted, dtype=np.int64), keys, list(documents))


def _end_tick(
    combiner: TickCombiner, label: Callable[[Document], str], queue: FeedbackQueue, output: _Output
) -> Iterator[WrittenRows]:
    """Write what a tick has published, and feed it back."""
    if combiner.is_large:
        yield from output.take()
        for rows in combiner.close():
            yield rows
            columns = rows.lists()
            queue.put_all(columns, weigh(columns[3]))
        return
    weight = combiner.weight
    clocks, seqs, keys, documents = combiner.take()
    combined = (clocks, seqs, keys, documents, list(map(label, documents)))
    queue.put_all(combined, weight)
    output.add(combined, weight)
    if output.is_full:
        yield from output.take()


class _Output:
    """What was published, gathered from several ticks."""

    def __init__(self, most_bytes: int, make_fields: MakeFields, sizes: Sizes = SIZES) -> None:
        self._most_bytes = most_bytes
        self._make_fields = make_fields
        self._most_rows = sizes.written
        self._weight = 0
        self._columns: _Columns = ([], [], [], [], [])

    @property
    def is_full(self) -> bool:
        """Whether there is enough to write."""
        return len(self._columns[0]) >= self._most_rows or self._weight > self._most_bytes

    def add(self, combined: Combined, weight: int) -> None:
        """Take documents of one tick, which take about `weight` bytes."""
        columns: tuple[list[Any], ...] = self._columns
        for column, part in zip(columns, combined, strict=True):
            column.extend(part)
        self._weight += weight

    def take(self) -> Iterator[WrittenRows]:
        """Take out what there is, in order."""
        if self._columns[0]:
            yield WrittenRows.sorted_of(*self._columns, self._make_fields(self._columns[3]))
        self._columns = ([], [], [], [], [])
        self._weight = 0
