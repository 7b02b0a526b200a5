"""The documents of a collection at a time: reduced per key, or those of a multiset, in the order of keys.

The caller chooses the executor: this process starts at once, and Spark takes seconds to start and has many cores. Both
fold the same rows in the same order, so the results are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias
from zlib import crc32

import pyarrow as pa

from derive.contents.per_key import PER_KEY, contents_per_key
from derive.contents.reads import ReadOptions, reading
from derive.protocol.specs import CollectionSpec
from derive.storage.roles import Readable
from derive.storage.segments.partition import NO_PARTITION
from derive.storage.segments.reader import read_segment
from derive.storage.segments.rows import KEY, ContentRows, StoredRows
from derive.storage.segments.selection import Condition
from derive.storage.segments.sorter import Sorter, Spill
from derive.time.extent import size_of
from derive.time.source_read import SourceRead

SORT_BYTES = 256 << 20
"""Approximate memory limit of a sort before it spills to disk."""

_BATCH = 10_000
_SPARK_SECONDS, _LOCAL_SECONDS = 9e-6, 6e-6
"""Measured seconds per document: on one core of Spark, and in this process."""

Reduced: TypeAlias = Callable[[Path, CollectionSpec, SourceRead], Iterator[ContentRows]]
"""Function from a data folder, a collection and a read to the reduced documents, in the order of keys."""


def read_reduced(
    store: Readable, spec: CollectionSpec, options: ReadOptions, reduced: Reduced
) -> Generator[ContentRows]:
    """Yield the documents of a collection: reduced per key, or those of a multiset, each as often as its count.

    Yields:
        Rows in the order of packed keys.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
    """
    spec = store.tables.as_stored(spec)
    with reading(store, spec, options) as read:
        if read.segments:
            yield from reduced(store.root, spec, read)


def reduced_documents(
    store: Readable, spec: CollectionSpec, options: ReadOptions, keys: Collection[bytes] | None = None
) -> Generator[ContentRows]:
    """Yield documents as `read_reduced` does, evaluated in this process.

    Args:
        store: the data folder.
        spec: the collection.
        options: time and logical partitions of the read.
        keys: needed packed keys, others may be left out; None for all.
    """
    conditions = () if keys is None else (Condition(KEY, pa.array(keys, pa.binary())),)
    with TemporaryDirectory(prefix="flowctl-") as scratch:

        def reduced(root: Path, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
            return reduced_locally(root, spec, read, Path(scratch), conditions=conditions)

        yield from read_reduced(store, spec, options, reduced)


def batches_of(parts: Iterable[ContentRows]) -> Iterator[ContentRows]:
    """Yield the same rows in batches of at most 10,000 rows."""
    for part in parts:
        for begin in range(0, len(part), _BATCH):
            yield part.slice(begin, _BATCH)


def is_little(read: SourceRead, most: int | None, cores: int | None, start_seconds: float) -> bool:
    """Return true if this process should evaluate a read rather than Spark.

    Args:
        read: segments and timestamps of the read.
        most: largest number of documents for this process; None to compare the estimated durations.
        cores: number of Spark's cores; None for unlimited.
        start_seconds: time that Spark takes to start.
    """
    spared = _LOCAL_SECONDS - (_SPARK_SECONDS / cores if cores else 0.0)  # seconds that Spark saves per document
    documents = size_of([read]).documents
    return documents * spared <= start_seconds if most is None else documents <= most


def reduced_locally(
    root: Path,
    spec: CollectionSpec,
    read: SourceRead,
    scratch: Path,
    memory: int = SORT_BYTES,
    share: tuple[int, int] = (0, 1),
    conditions: Sequence[Condition] = (),
    appended: StoredRows | None = None,
) -> Iterator[ContentRows]:
    """Evaluate a read in this process, with constant memory.

    Args:
        root: the data folder.
        spec: the collection.
        read: segments and timestamps of the read.
        scratch: folder for spilled rows.
        memory: approximate memory limit for the sort, bytes.
        share: number of this share of the keys, from 0, and number of shares.
        conditions: filters on rows of segments; either all rows of a key and text pass, or none.
        appended: rows of the read that are in no segment yet.
    """
    number, count = share
    with Spill(scratch, memory) as spill:
        sorter = Sorter(StoredRows.SCHEMA, PER_KEY, spill)
        for segment in read.segments:
            for rows in read_segment(root, read, segment, conditions=conditions):
                if count > 1:
                    rows = rows.filter([crc32(key) % count == number for key in rows.keys.to_pylist()])  # noqa: PLW2901
                sorter.add(rows.written(NO_PARTITION).stored().batch)
        if appended is not None:
            sorter.add(appended.batch)
        yield from contents_per_key(spec, map(StoredRows, sorter.take()))
