"""The end of a tick, for lambdas that publish documents then.

The end is one more document after all others of its tick, for one more transform, at the tick's last microsecond. The
timestamp and order of its publications therefore depend neither on the division into transactions nor on the number of
shards (law L1). A shard sees the end of each tick of which it saw a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.derive import Causes
from derive.protocol.specs import DerivationSpec
from derive.shard.invoke import Invoker, SourceBatch
from derive.storage.segments.rows import ReadRows, concat
from derive.time.frontier import tick_end


def with_ends(
    parts: Iterator[ReadRows], spec: DerivationSpec, invoker: Invoker, processed: Callable[[int], None]
) -> Iterator[ReadRows]:
    """Yield source rows, with rows for the ends of ticks if the session requests them.

    Args:
        parts: source rows in order, of whole ticks in total.
        spec: the derivation.
        invoker: invoker of the session.
        processed: called with the number of processed documents.
    """
    tick: int | None = None
    last: ReadRows | None = None
    for rows in parts:
        if invoker.flushes:
            yield _marked(rows, spec, tick)
            tick, last = int(rows.adjusted[-1]) // spec.tick, rows
        else:
            yield rows
        processed(len(rows))
    if tick is not None and last is not None:
        yield _ends(spec, np.array([tick])).like(last)


def _marked(rows: ReadRows, spec: DerivationSpec, before: int | None) -> ReadRows:
    """Return rows with the ends of ticks between them, and before them if the previous tick is another one."""
    ticks = rows.adjusted // spec.tick
    previous = np.concatenate([ticks[:1] if before is None else [before], ticks[:-1]])
    borders = np.flatnonzero(previous != ticks)
    if not borders.size:
        return rows
    order = np.insert(np.arange(len(rows)), borders, len(rows) + np.arange(borders.size))
    return concat([rows, _ends(spec, previous[borders]).like(rows)]).take(order)


def _ends(spec: DerivationSpec, ticks: np.ndarray) -> ReadRows:
    count = len(ticks)
    clocks, transforms = (ticks + 1) * spec.tick - 1, np.full(count, len(spec.transforms))
    return ReadRows.of(clocks, transforms, np.zeros(count, dtype=np.int32), [b""] * count, ["{}"] * count)


def end_batch(spec: DerivationSpec, tick: int) -> SourceBatch:
    """Return the end of a tick as a batch for lambdas."""
    clocks = np.array([tick_end(tick * spec.tick, spec.tick) - 1])
    return SourceBatch([len(spec.transforms)], clocks, lambda _: b"", [{}], unchecked=np.array([False]))


def order_of(
    rows: ReadRows, causes: Causes, texts: pa.StringArray, spec: DerivationSpec
) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return the sort columns of the causing documents: the position of each published document in processing order.

    Publications at the end of a tick have their text as the key of the source document. Their order is therefore
    independent of the publishing shard.

    Args:
        rows: source documents.
        causes: index of the causing document in `rows`, for each published document.
        texts: JSON texts of the published documents.
        spec: the derivation.
    """
    adjusted, transforms, seqs, keys = rows.sort_columns(pa.array(causes, pa.int32()))
    ends = pc.equal(transforms, len(spec.transforms))
    if pc.any(ends).as_py():
        keys = pc.if_else(ends, texts.cast(pa.binary()), keys)
    return adjusted, transforms, seqs, keys
