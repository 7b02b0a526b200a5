"""Ticks of documents from several shards: gathered, and combined per tick and key by sorting.

Usually no two shards publish a document of one key in one tick. Then each shard combines its own documents, and only
keys are compared.

Documents are folded from the left in processing order, as in `TickCombiner`, so even sums of floating-point numbers are
equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.specs import DerivationSpec, Document
from derive.shard.published import Documents, RowMaker
from derive.shard.tick_combiner import KeyFold, LargeTick
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import KEY, KeyRows, PublishedRows, WrittenRows, ascending, concat
from derive.storage.segments.sorter import Spill
from derive.time.frontier import tick_begin

T = TypeVar("T", PublishedRows, KeyRows)

_TICK = "tick"
_GROUP = (_TICK, KEY)

GATHERED_ROWS = 50_000
"""Number of rows that are combined at once."""


def combine_ticks(
    spec: DerivationSpec, batches: Iterator[tuple[PublishedRows, bool]], spill: Spill
) -> Iterator[WrittenRows]:
    """Combine published documents of a range of output keys.

    Args:
        spec: the derivation.
        batches: batches in any internal order, each with true for whole ticks, or false for a part of one tick.
        spill: files for a tick that arrives in parts.

    Yields:
        Batches of rows in storage order.
    """
    fold = KeyFold(spec)
    make = RowMaker(spec.collection)
    large: LargeTick[PublishedRows] | None = None
    number = 0
    for batch, is_whole in batches:
        rows, ticks = batch, batch.clocks // spec.tick
        if large is not None:
            is_rest = ticks == number
            large.add(rows.filter(is_rest))
            rows, ticks = rows.filter(~is_rest), ticks[~is_rest]
            if len(rows) or is_whole:
                yield from large.close()
                large = None
        if not is_whole and len(rows):
            number = int(ticks[0])
            large = LargeTick(PublishedRows, fold, compile_labels(spec.collection), spill)
            large.add(rows)
        elif len(rows):
            yield _combined(fold, make, rows, ticks)
    if large is not None:
        yield from large.close()


def _combined(fold: KeyFold, make: RowMaker, rows: PublishedRows, ticks: np.ndarray) -> WrittenRows:
    """Return rows of whole ticks, in storage order."""
    groups = pa.table({_TICK: ticks, KEY: rows.keys})
    order = pc.sort_indices(groups, sort_keys=ascending(_GROUP)).to_numpy()
    sizes = _group_sizes(groups.take(order))
    alone = np.repeat(sizes, sizes) == 1
    parts = []
    if alone.any():
        picked = rows if alone.all() else rows.take(np.sort(order[alone]))
        parts.append(picked.written())
    if not alone.all():
        several = rows.batch.append_column(_TICK, pa.array(ticks)).take(pa.array(order[~alone]))
        in_order = PublishedRows(several).sorted((*_GROUP, *PublishedRows.PROCESSED))
        parts.append(_folded(fold, make, in_order, sizes[sizes > 1].tolist()))
    return concat(parts).in_order()


def _group_sizes(groups: pa.Table) -> np.ndarray:
    """Return the lengths of the runs of equal rows."""
    count = groups.num_rows
    ticks, keys = groups.column(_TICK).to_numpy(), groups.column(KEY)
    differ = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy()
    starts = np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | differ) + 1])
    return np.diff(np.append(starts, count))


def _folded(fold: KeyFold, make: RowMaker, rows: PublishedRows, sizes: list[int]) -> WrittenRows:
    """Return rows of groups of several documents, which are consecutive in processing order."""
    clocks: list[int] = []
    seqs: list[int] = []
    keys: list[bytes] = []
    documents: list[Document] = []
    parsed = iter(rows.documents())
    packed_keys, published = rows.keys, rows.clocks
    end = 0
    for size in sizes:
        end += size
        key = packed_keys[end - 1].as_py()
        folded = [next(parsed)]
        for document in itertools.islice(parsed, size - 1):
            fold.add(key, folded, document)
        clocks += [int(published[end - 1])] * len(folded)
        seqs += range(len(folded))
        keys += [key] * len(folded)
        documents += folded
    content = Documents(documents)
    fields = None if rows.fields is None else make.fields(content)
    return WrittenRows.sorted_of(clocks, seqs, keys, documents, make.labels(content), fields)


def share_keys(published: Sequence[Sequence[PublishedRows]], tick: int) -> bool:
    """Return true if several shards have published documents of one key in one tick.

    Args:
        published: publications of each shard.
        tick: length of a tick, microseconds.
    """
    groups = [_distinct(pa.concat_tables([_groups(part, tick) for part in parts])) for parts in published if parts]
    return len(groups) > 1 and _repeats(pa.concat_tables(groups))


def are_shared(batches: Iterator[tuple[KeyRows, bool]], tick: int) -> bool:
    """Return true if several shards published a key in one tick, or a tick has too many keys to compare.

    Args:
        batches: keys of all shards, once per shard and tick, each batch with true for whole ticks.
        tick: length of a tick, microseconds.
    """
    return any(not is_whole or _repeats(_groups(keys, tick)) for keys, is_whole in batches)


def _groups(rows: PublishedRows | KeyRows, tick: int) -> pa.Table:
    """Return the tick and key of each row."""
    return pa.table({_TICK: rows.clocks // tick, KEY: rows.keys})


def _distinct(groups: pa.Table) -> pa.Table:
    return groups.group_by(_GROUP, use_threads=False).aggregate([])


def _repeats(groups: pa.Table) -> bool:
    if pc.count_distinct(groups.column(KEY)).as_py() == groups.num_rows:  # the usual case
        return False
    return bool(_distinct(groups).num_rows < groups.num_rows)


def gather_ticks(
    packets: Iterator[tuple[int, T]], tick: int, most_bytes: int, fewest: int = GATHERED_ROWS
) -> Iterator[tuple[T, bool]]:
    """Gather rows of several senders into batches of whole ticks, unordered within a batch.

    Args:
        packets: first timestamp and rows of each packet, ordered by first timestamp; rows are sorted by timestamp.
        tick: length of a tick, microseconds.
        most_bytes: limit for the gathered bytes; a larger tick is yielded in parts.
        fewest: number of rows to gather at least, within the limit.

    Yields:
        Batches in order of ticks, with true for whole ticks and false for a part of one. The rest of a divided tick may
            be in the following batch of whole ticks.
    """
    held: _Held[T] = _Held()
    for first, part in packets:
        if held.rows >= fewest or held.bytes > most_bytes:
            border = tick_begin(first, tick)
            if ready := held.take_below(border):
                yield concat(ready), True
            if held.bytes > most_bytes and (parts := held.take_below(border + tick)):
                yield concat(parts), False
        held.add(part)
    if ready := held.take_below(None):
        yield concat(ready), True


class _Held(Generic[T]):
    """Rows of several senders, each part sorted by timestamp."""

    def __init__(self) -> None:
        self._parts: list[T] = []
        self.rows = self.bytes = 0

    def add(self, part: T) -> None:
        self._parts.append(part)
        self.rows += len(part)
        self.bytes += part.nbytes

    def take_below(self, clock: int | None) -> list[T]:
        """Remove and return rows with timestamps below `clock`, or all rows."""
        parts, self._parts, self.rows, self.bytes = self._parts, [], 0, 0
        taken = []
        for part in parts:
            cut = len(part) if clock is None else int(np.searchsorted(part.clocks, clock))
            if cut:
                taken.append(part.slice(0, cut))
            if cut < len(part):
                self.add(part.slice(cut))
        return taken
