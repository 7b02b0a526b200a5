"""Reading a collection reduced: one document per key, or those of a multiset, in the order of keys.

Whoever reads chooses who does the work: this process, which begins at once, or Spark, which takes seconds to start and
then has many cores. Both fold the same rows in the same order, so what is read is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from derive.protocol.specs import CollectionSpec
from derive.storage.contents import ReadOptions, reading
from derive.storage.roles import Readable
from derive.storage.segments.condition import Condition
from derive.storage.segments.contents_fold import PER_KEY, contents_per_key
from derive.storage.segments.partition import NO_PARTITION
from derive.storage.segments.reader import read_segment
from derive.storage.segments.rows import ContentRows, StoredRows
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill
from derive.time.extent import size_of
from derive.time.source_read import SourceRead

SORT_BYTES = 256 << 20
"""About how much memory sorting takes before it goes on on disk."""

_SPARK_SECONDS, _HERE_SECONDS = 9e-6, 6e-6
"""What Spark takes for a document on one core, and what this process takes for one; measured."""

Reduced: TypeAlias = Callable[[Path, CollectionSpec, SourceRead], Iterator[ContentRows]]
"""From a data folder, a collection and what is read of it to the documents that it comes to, in the order of keys."""


def read_reduced(
    store: Readable, spec: CollectionSpec, options: ReadOptions, reduced: Reduced
) -> Generator[ContentRows]:
    """Documents of a collection, fully reduced per key, or those of a multiset, each as often as it is there.

    Yields:
        Rows in the order of packed keys.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer, or not yet, known.
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
    """
    spec = store.tables.as_stored(spec)
    with reading(store, spec, options) as read:
        if read.segments:
            yield from reduced(store.root, spec, read)


def is_little(read: SourceRead, most: int | None, cores: int | None, start_seconds: float) -> bool:
    """Whether a read is to be worked out in this process rather than on Spark.

    Args:
        read: what is read.
        most: up to how many documents it is; None for as many as are done before Spark would be.
        cores: of Spark; None for more than can be counted.
        start_seconds: how long Spark takes to start.
    """
    spared = _HERE_SECONDS - (_SPARK_SECONDS / cores if cores else 0.0)  # by Spark, for each document
    documents = size_of([read]).documents
    return documents * spared <= start_seconds if most is None else documents <= most


def reduced_here(
    root: Path,
    spec: CollectionSpec,
    read: SourceRead,
    scratch: Path,
    memory: int = SORT_BYTES,
    share: tuple[int, int] = (0, 1),
    conditions: Sequence[Condition] = (),
    appended: StoredRows | None = None,
) -> Iterator[ContentRows]:
    """What a read comes to, worked out in this process with flat memory.

    Args:
        root: the data folder.
        spec: the collection.
        read: what is read of it.
        scratch: folder for what does not fit in memory.
        memory: about how many bytes may be in memory while rows are sorted.
        share: which share of all keys, counted from 0, and of how many.
        conditions: what rows of segments are that are wanted; either all of a key and text fulfil them, or none does.
        appended: rows that are in no segment yet, all of which are part of the read.
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
