"""Read a collection reduced on Spark: rows are shuffled by key, and folded as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from derive.contents.reduced import PER_KEY, contents_per_key
from derive.errors import FlowError, InternalError, LostError
from derive.protocol.specs import CollectionSpec
from derive.spark.executor import SparkExecutor, spark_columns
from derive.storage.segments.rows import KEY, ContentRows, StoredRows
from derive.storage.segments.segment_file import check_segments
from derive.time.extent import size_of
from derive.time.positions import SourceRead

_ROWS, _ERROR = "rows", "error"
_REDUCED = pa.schema([(_ROWS, pa.binary()), (_ERROR, pa.string())])
"""Schema of the driver's rows: rows (`ContentRows`) as an Arrow stream, or an error."""

_CHECKED = "parquet.page.verify-checksum.enabled"

_DOCUMENTS, _BYTES = 250_000, 32 << 20
"""Approximate size of a partition, in documents and in stored bytes."""


def reduced_on_spark(
    executor: SparkExecutor, root: Path, spec: CollectionSpec, read: SourceRead
) -> Iterator[ContentRows]:
    """Evaluate a read on Spark.

    Args:
        executor: executor with a Spark session.
        root: the data folder.
        spec: the collection.
        read: segments and timestamps of the read.
    """
    try:
        with executor.explained(f"that reads '{spec.name}'"):
            for row in _rows(executor, root, spec, read):
                if row.error is not None:
                    raise FlowError.from_json(orjson.loads(row.error))
                with pa.ipc.open_stream(row.rows) as stream:
                    yield from map(ContentRows, stream)
    except (LostError, InternalError):
        check_segments(root, read.segments)  # Spark's message about a damaged file is useless
        raise


def partitions_of(read: SourceRead, cores: int) -> int:
    """Return the number of partitions of a read: enough for all cores, and small enough for memory."""
    size = size_of([read])
    return max(cores, -(-size.documents // _DOCUMENTS), -(-size.bytes // _BYTES))


def _rows(executor: SparkExecutor, root: Path, spec: CollectionSpec, read: SourceRead) -> Iterator[Any]:
    session = executor.session
    files = [str(root / segment.path) for segment in read.segments]
    columns = spark_columns(StoredRows.SCHEMA)
    stored = session.read.schema(columns).option(_CHECKED, True).parquet(*files)
    within = stored.where((stored.clock >= read.clock_begin) & (stored.clock < read.clock_end))
    partitions = partitions_of(read, session.sparkContext.defaultParallelism)
    grouped = within.repartitionByRange(partitions, KEY).sortWithinPartitions(*PER_KEY)
    return iter(grouped.mapInArrow(_fold(spec), spark_columns(_REDUCED)).toLocalIterator(prefetchPartitions=True))


def _fold(spec: CollectionSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for rows in contents_per_key(spec, map(StoredRows, batches)):
                if len(rows):
                    yield _reduced(_streamed(rows), None)
        except FlowError as error:  # a retry by Spark would fail the same way
            yield _reduced(b"", orjson.dumps(error.to_json()).decode())

    return run


def _streamed(rows: ContentRows) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ContentRows.SCHEMA) as writer:
        writer.write_batch(rows.batch)
    streamed: bytes = sink.getvalue().to_pybytes()
    return streamed


def _reduced(rows: bytes, error: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{_ROWS: rows, _ERROR: error}], schema=_REDUCED)
