"""Reading a collection reduced: one document per key, shuffled and folded on Spark."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from derive.document.exact import dump_exact
from derive.document.pointer import MISSING
from derive.engine.spark import SparkExecutor
from derive.protocol.specs import CollectionSpec, Document
from derive.reduce.combiner import Combiner
from derive.storage.contents import ReadOptions, reading
from derive.storage.store import Store
from derive.storage.texts import parse_texts

_SEGMENT = "clock long, seq int, key binary, doc string"
_REDUCED = "clock long, seq int, key binary, doc string"


def read_reduced(
    executor: SparkExecutor, store: Store, spec: CollectionSpec, options: ReadOptions
) -> Generator[tuple[int, int, bytes, str]]:
    """Documents of a collection, fully reduced per key.

    Yields:
        `(clock, seq, key, doc)` in the order of packed keys: clock and seq of the key's last update, and JSON text.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer, or not yet, known.
    """
    with reading(store, spec, options) as read:
        if not read.segments:
            return
        session = executor.session
        stored = session.read.schema(_SEGMENT).parquet(*(str(store.root / each.path) for each in read.segments))
        within = stored.where((stored.clock >= read.clock_begin) & (stored.clock < read.clock_end))
        grouped = within.repartitionByRange("key").sortWithinPartitions("key", "clock", "seq")
        for row in grouped.mapInArrow(_fold(spec), _REDUCED).toLocalIterator(prefetchPartitions=True):
            yield row.clock, row.seq, bytes(row.key), row.doc


def _fold(spec: CollectionSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        combiner = Combiner(spec.read_schema, name=spec.name)
        held: tuple[int, int, bytes] | None = None
        documents: list[Document] = []
        for batch in batches:
            done: list[tuple[int, int, bytes, bytes]] = []
            places = zip(
                batch.column(0).to_pylist(), batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True
            )
            for place, document in zip(places, parse_texts(batch.column(3)), strict=True):
                if held is not None and place[2] != held[2]:
                    done += _reduced(combiner, held, documents)
                    documents = []
                held = place
                documents.append(document)
            yield _batch(done)
        if held is not None:
            yield _batch(_reduced(combiner, held, documents))

    return run


def _reduced(
    combiner: Combiner, place: tuple[int, int, bytes], documents: list[Document]
) -> list[tuple[int, int, bytes, bytes]]:
    value = combiner.full(documents)
    return [] if value is MISSING else [(*place, dump_exact(value))]


def _batch(rows: list[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    clocks, seqs, keys, documents = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(clocks, pa.int64()),
            pa.array(seqs, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(documents, pa.string()),
        ],
        names=["clock", "seq", "key", "doc"],
    )
