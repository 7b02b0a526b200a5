"""Reading a collection reduced: one document per key, shuffled and folded on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from derive.document.exact import dump_exact
from derive.document.pointer import MISSING
from derive.errors import FlowError, InternalError, LostError
from derive.protocol.specs import CollectionSpec, Document
from derive.reduce.combiner import Combiner
from derive.spark.columns import spark_columns
from derive.spark.executor import SparkExecutor
from derive.storage.contents import ReadOptions, reading
from derive.storage.roles import Readable
from derive.storage.segments.consolidation import times_present
from derive.storage.segments.rows import CLOCK, DOC, KEY, SEQ, StoredRows
from derive.storage.segments.segment_file import check_segments
from derive.time.source_read import SourceRead

_ERROR = "error"
_REDUCED = pa.schema([*map(StoredRows.SCHEMA.field, (CLOCK, SEQ, KEY, DOC)), pa.field(_ERROR, pa.string())])
"""What is read of a key: its last clock and seq, and JSON text; or an error in place of them all."""

_CHECKED = "parquet.page.verify-checksum.enabled"


def read_reduced(
    executor: SparkExecutor, store: Readable, spec: CollectionSpec, options: ReadOptions
) -> Generator[tuple[int, int, bytes, str]]:
    """Documents of a collection, fully reduced per key, or those of a multiset, each as often as it is there.

    Yields:
        `(clock, seq, key, doc)` in the order of packed keys: clock and seq of the key's last update, and JSON text.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer, or not yet, known.
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
    """
    with reading(store, spec, options) as read:
        if not read.segments:
            return
        try:
            with executor.explained(f"that reads '{spec.name}'"):
                for row in _rows(executor, store, spec, read):
                    if row.error is not None:
                        raise FlowError.from_json(orjson.loads(row.error))
                    yield row.clock, row.seq, bytes(row.key), row.doc
        except (LostError, InternalError):
            check_segments(store.root, read.segments)  # what Spark says of a file that is damaged is of no use
            raise


def _rows(executor: SparkExecutor, store: Readable, spec: CollectionSpec, read: SourceRead) -> Iterator[Any]:
    files = [str(store.root / segment.path) for segment in read.segments]
    columns = spark_columns(StoredRows.SCHEMA)
    stored = executor.session.read.schema(columns).option(_CHECKED, True).parquet(*files)
    within = stored.where((stored.clock >= read.clock_begin) & (stored.clock < read.clock_end))
    grouped = within.repartitionByRange(KEY).sortWithinPartitions(KEY, CLOCK, SEQ)
    reduced = grouped.mapInArrow(_fold(spec), spark_columns(_REDUCED))
    return iter(reduced.toLocalIterator(prefetchPartitions=True))


def _fold(spec: CollectionSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from contents_per_key(spec, batches)
        except FlowError as error:  # no reason for Spark to try again
            yield _batch([], orjson.dumps(error.to_json()).decode())

    return run


def contents_per_key(spec: CollectionSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What updates come to, as `read_reduced` yields it.

    Args:
        spec: the collection.
        batches: rows of segments (`StoredRows`), sorted by key, and those of a key as they are stored.
    """
    is_reduced = spec.kind == "reduced"
    contents = partial(_reduced, Combiner(spec.read_schema, name=spec.name)) if is_reduced else partial(_present, spec)
    last: tuple[int, int, bytes] | None = None  # clock, seq and key of the update before
    updates: list[Any] = []
    for rows in map(StoredRows, batches):
        done: list[tuple[int, int, bytes, bytes]] = []
        values = rows.documents() if is_reduced else zip(rows.texts.to_pylist(), rows.diffs.tolist(), strict=True)
        for identity, value in zip(rows.sort_keys(), values, strict=True):
            if last is not None and identity[2] != last[2]:
                done += [(*last, text) for text in contents(updates)]
                updates = []
            last = identity
            updates.append(value)
        yield _batch(done)
    if last is not None:
        yield _batch([(*last, text) for text in contents(updates)])


def _reduced(combiner: Combiner, documents: list[Document]) -> list[bytes]:
    value = combiner.full(documents)
    return [] if value is MISSING else [dump_exact(value)]


def _present(spec: CollectionSpec, changes: list[tuple[str, int]]) -> list[bytes]:
    counts: Counter[str] = Counter()
    for text, diff in changes:
        counts[text] += diff
    return [text.encode() for text in sorted(counts) for _ in range(times_present(spec.name, text, counts[text]))]


def _batch(rows: list[tuple[int, int, bytes, bytes]], error: str | None = None) -> pa.RecordBatch:
    """Rows as `_REDUCED` has them, or one row with an error."""
    clocks, seqs, keys, documents = zip(*rows, strict=True) if rows else ((), (), (), ())
    if error is not None:
        clocks, seqs, keys, documents = (0,), (0,), (b"",), ("",)
    columns = (clocks, seqs, keys, documents, [error] * len(clocks))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _REDUCED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REDUCED)
