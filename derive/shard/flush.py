"""The end of a tick, for lambdas that publish then what they gathered of its documents.

It is one more document behind all others of its tick, of one more transform, at the tick's last microsecond. So what is
published for it has a clock and an order that depend neither on how time is cut into transactions nor on the number of
shards (law L1). A shard sees the end of those ticks of which it saw a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.specs import DerivationSpec, Document
from derive.shard.invoke import Invoker, Published
from derive.storage.segments.reader import SOURCE_ROWS
from derive.storage.segments.texts import write_texts
from derive.time.frontier import tick_end


def with_ends(
    batches: Iterator[pa.RecordBatch], spec: DerivationSpec, invoker: Invoker, processed: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Source rows, with rows for the ends of ticks if the session asks for them.

    Args:
        batches: of `SOURCE_ROWS`, in order, of whole ticks altogether.
        spec: the derivation.
        invoker: what they go to.
        processed: told how many documents were taken, when they have been.
    """
    tick: int | None = None
    for batch in batches:
        if invoker.flushes:
            yield _marked(batch, spec, tick)
            tick = int(batch.column(0)[-1].as_py()) // spec.tick
        else:
            yield batch
        processed(batch.num_rows)
    if tick is not None:
        yield _ends(spec, np.array([tick]))


def _marked(batch: pa.RecordBatch, spec: DerivationSpec, before: int | None) -> pa.RecordBatch:
    """A batch with the ends of ticks inside and, if the tick before it is another, in front."""
    ticks = batch.column(0).to_numpy() // spec.tick
    previous = np.concatenate([ticks[:1] if before is None else [before], ticks[:-1]])
    places = np.flatnonzero(previous != ticks)
    if not places.size:
        return batch
    rows = pa.concat_batches([batch, _ends(spec, previous[places])])
    order = np.insert(np.arange(batch.num_rows), places, batch.num_rows + np.arange(places.size))
    return rows.take(pa.array(order))


def _ends(spec: DerivationSpec, ticks: np.ndarray) -> pa.RecordBatch:
    count = len(ticks)
    columns = [
        (ticks + 1) * spec.tick - 1,
        np.full(count, len(spec.transforms)),
        np.zeros(count, dtype=np.int32),
        [b""] * count,
        ["{}"] * count,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SOURCE_ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_ROWS)


def end_row(spec: DerivationSpec, tick: int) -> tuple[int, int, int, bytes, Document]:
    """The end of a tick as a row of `feedback`."""
    return tick_end(tick * spec.tick, spec.tick) - 1, len(spec.transforms), 0, b"", {}


def places_of(rows: pa.RecordBatch, published: Published, spec: DerivationSpec) -> list[pa.Array]:
    """The first four columns of `SOURCE_ROWS` for each published document: its place in the order of processing.

    Documents of the end of a tick have their text for the key of a source document, which is the order
    they were published in, so that it does not matter which shard published them.
    """
    causes = pa.array(published.causes, pa.int32())
    columns = [rows.column(place).take(causes) for place in range(4)]
    ends = pc.equal(columns[1], len(spec.transforms))
    if pc.any(ends).as_py():
        columns[3] = pc.if_else(ends, write_texts(published.documents).cast(pa.binary()), columns[3])
    return columns
