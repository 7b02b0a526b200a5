"""Combining per tick and key what several shards published: documents of one tick and key are found by sorting.

Documents are folded from the left in processing order, as `TickCombiner` does where they come in that order: even sums
of floating-point numbers come out the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.specs import DerivationSpec, Document
from derive.shard.key_fold import KeyFold
from derive.shard.large_tick import LargeTick
from derive.shard.rows import LAMBDA_ROWS, PROCESSED, STORED, as_they_are, ascending, rows_of
from derive.storage.segments.partition import MakeLabels, compile_labels
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import parse_texts

_GROUPS = ("tick", "key")


def combine_ticks(
    spec: DerivationSpec, batches: Iterator[tuple[pa.RecordBatch, bool]], spill: Spill
) -> Iterator[pa.RecordBatch]:
    """Combine published documents (`LAMBDA_ROWS`) of a range of output keys.

    Args:
        spec: the derivation.
        batches: in any order inside, each of whole ticks, or a part of one tick, and which of the two it is.
        spill: where a tick goes that comes in parts.

    Yields:
        Rows (`ROWS`), each batch sorted by (clock, seq, key).
    """
    fold = KeyFold(spec)
    labels = compile_labels(spec.collection)
    large: LargeTick | None = None
    number = 0
    for batch, is_whole in batches:
        rows, ticks = batch, pc.divide(batch.column(0), spec.tick)
        if large is not None:
            is_rest = pc.equal(ticks, number)
            large.add(rows.filter(is_rest))
            rows, ticks = rows.filter(pc.invert(is_rest)), ticks.filter(pc.invert(is_rest))
            if rows.num_rows or is_whole:
                yield from large.close()
                large = None
        if not is_whole and rows.num_rows:
            number = ticks[0].as_py()
            large = LargeTick(LAMBDA_ROWS, PROCESSED, fold, labels, spill)
            large.add(rows)
        elif rows.num_rows:
            yield _combined(fold, labels, rows, ticks)
    if large is not None:
        yield from large.close()


def _combined(fold: KeyFold, labels: MakeLabels, batch: pa.RecordBatch, ticks: pa.Array) -> pa.RecordBatch:
    """Rows (`ROWS`) of whole ticks, sorted by (clock, seq, key)."""
    places = pa.table({"tick": ticks, "key": batch.column(1)})
    order = pc.sort_indices(places, sort_keys=ascending(_GROUPS))
    sizes = _group_sizes(places.take(order))
    alone = np.repeat(sizes, sizes) == 1
    rows = []
    if alone.any():
        picked = batch if alone.all() else batch.take(pa.array(np.sort(order.to_numpy()[alone])))
        rows.append(as_they_are(picked))
    if not alone.all():
        several = batch.append_column("tick", ticks).take(order.filter(pa.array(~alone)))
        in_order = several.sort_by(ascending((*_GROUPS, *PROCESSED)))
        rows.append(_folded(fold, labels, in_order, sizes[sizes > 1].tolist()))
    return pa.concat_batches(rows).sort_by(ascending(STORED))


def _group_sizes(places: pa.Table) -> Any:
    """Lengths of the runs of equal rows."""
    count = places.num_rows
    ticks, keys = places.column("tick").to_numpy(), places.column("key")
    differ = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy()
    starts = np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | differ) + 1])
    return np.diff(np.append(starts, count))


def _folded(fold: KeyFold, labels: MakeLabels, batch: pa.RecordBatch, sizes: list[int]) -> pa.RecordBatch:
    """Rows (`ROWS`) of groups of several documents, which follow one another in processing order."""
    clocks: list[int] = []
    seqs: list[int] = []
    keys: list[bytes] = []
    documents: list[Document] = []
    parsed = iter(parse_texts(batch.column(2)))
    end = 0
    for size in sizes:
        end += size
        key = batch.column(1)[end - 1].as_py()
        folded = [next(parsed)]
        for document in itertools.islice(parsed, size - 1):
            fold.add(key, folded, document)
        clocks += [batch.column(0)[end - 1].as_py()] * len(folded)
        seqs += range(len(folded))
        keys += [key] * len(folded)
        documents += folded
    return rows_of(np.array(clocks, dtype=np.int64), seqs, keys, documents, labels(documents))
