"""Ticks of documents that several shards published: they are gathered, and combined per tick and key by sorting.

Most often no two shards publish a document of one key in one tick. Then each combines its own, and only keys have to be
compared.

Documents are folded from the left in processing order, as `TickCombiner` does where they come in that order: even sums
of floating-point numbers come out the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.specs import DerivationSpec, Document
from derive.shard.key_fold import KeyFold
from derive.shard.large_tick import LargeTick
from derive.shard.published import Documents, RowMaker
from derive.storage.segments.order import ascending
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import KEY, KeyRows, PublishedRows, WrittenRows, concat
from derive.storage.segments.spill import Spill
from derive.time.frontier import tick_begin

T = TypeVar("T", PublishedRows, KeyRows)

_TICK = "tick"
_GROUP = (_TICK, KEY)

GATHERED_ROWS = 50_000
"""How many rows are worth combining at once."""


def combine_ticks(
    spec: DerivationSpec, batches: Iterator[tuple[PublishedRows, bool]], spill: Spill
) -> Iterator[WrittenRows]:
    """Combine published documents of a range of output keys.

    Args:
        spec: the derivation.
        batches: in any order inside, each of whole ticks, or a part of one tick, and which of the two it is.
        spill: where a tick goes that comes in parts.

    Yields:
        Rows, each batch sorted as they are stored.
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
    """Rows to write of whole ticks, sorted as they are stored."""
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
    """Lengths of the runs of equal rows."""
    count = groups.num_rows
    ticks, keys = groups.column(_TICK).to_numpy(), groups.column(KEY)
    differ = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy()
    starts = np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | differ) + 1])
    return np.diff(np.append(starts, count))


def _folded(fold: KeyFold, make: RowMaker, rows: PublishedRows, sizes: list[int]) -> WrittenRows:
    """Rows to write of groups of several documents, which follow one another in processing order."""
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
    """Whether several shards have published documents of one key in one tick.

    Args:
        published: for each shard, what it has published.
        tick: length of a tick, microseconds.
    """
    groups = [_distinct(pa.concat_tables([_groups(part, tick) for part in parts])) for parts in published if parts]
    return len(groups) > 1 and _repeats(pa.concat_tables(groups))


def are_shared(batches: Iterator[tuple[KeyRows, bool]], tick: int) -> bool:
    """Whether any key was published by several shards in one tick, or too many to compare were published in one.

    Args:
        batches: keys of all shards, each once for a shard and tick; each of whole ticks, or a part of one.
        tick: length of a tick, microseconds.
    """
    return any(not is_whole or _repeats(_groups(keys, tick)) for keys, is_whole in batches)


def _groups(rows: PublishedRows | KeyRows, tick: int) -> pa.Table:
    """Tick and key of each row."""
    return pa.table({_TICK: rows.clocks // tick, KEY: rows.keys})


def _distinct(groups: pa.Table) -> pa.Table:
    return groups.group_by(_GROUP, use_threads=False).aggregate([])


def _repeats(groups: pa.Table) -> bool:
    if pc.count_distinct(groups.column(KEY)).as_py() == groups.num_rows:  # as most often, whatever the ticks
        return False
    return bool(_distinct(groups).num_rows < groups.num_rows)


def gather_ticks(
    packets: Iterator[tuple[int, T]], tick: int, most_bytes: int, fewest: int = GATHERED_ROWS
) -> Iterator[tuple[T, bool]]:
    """Gather rows of several senders into batches of whole ticks, in no order inside a batch.

    Args:
        packets: first clock and rows of each packet, by first clock; rows are sorted by clock.
        tick: length of a tick, microseconds.
        most_bytes: how much to gather at most; a tick that has more comes in parts.
        fewest: how many rows to gather, at least, where they are no more than that.

    Yields:
        Batches in order of ticks, and whether each holds whole ticks or a part of one. What is left of a tick that came
        in parts may be among the whole ones behind them.
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
    """Rows of several senders, each part sorted by clock."""

    def __init__(self) -> None:
        self._parts: list[T] = []
        self.rows = self.bytes = 0

    def add(self, part: T) -> None:
        self._parts.append(part)
        self.rows += len(part)
        self.bytes += part.nbytes

    def take_below(self, clock: int | None) -> list[T]:
        """Take rows whose clock is below this one, or all."""
        parts, self._parts, self.rows, self.bytes = self._parts, [], 0, 0
        taken = []
        for part in parts:
            cut = len(part) if clock is None else int(np.searchsorted(part.clocks, clock))
            if cut:
                taken.append(part.slice(0, cut))
            if cut < len(part):
                self.add(part.slice(cut))
        return taken
