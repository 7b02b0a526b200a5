"""History below a time, folded: what remains of it is all that reads at or after that time can tell.

What that is depends on the collection's kind: one document per key where they are reduced, one row per document where
they are added up.

Memory is flat. Documents are split by a hash of their key into buckets on disk, few enough keys in each to fold them in
memory; what the buckets leave is merged. It needs no Spark, which takes longer to start than most collections to fold.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import orjson
import pyarrow as pa

from derive.errors import StorageError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec
from derive.storage.blobs import blobs_of
from derive.storage.segments.consolidation import ConsolidatedFold
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.reduced_fold import ReducedFold
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.selection import all_columns
from derive.storage.segments.writer import SegmentWriter
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

_MOST_PARTITIONS = 1 << 15


@dataclass(frozen=True, slots=True)
class FoldSizes:
    """How much of a collection is handled at once.

    Attributes:
        bucket_documents: about how many documents a bucket holds.
        bucket_bytes: about how many bytes of segments it holds.
        buckets: how many there are at most.
        run_rows: about how many rows are written before those of a logical partition come again.
    """

    bucket_documents: int = 100_000
    bucket_bytes: int = 8 << 20
    buckets: int = 256
    run_rows: int = 200_000


FOLD_SIZES = FoldSizes()


class BucketFold(Protocol):
    """What a collection's kind makes of its history."""

    def fold(self, read: Callable[[], Iterator[ReadRows]]) -> Iterator[ReadRows]:
        """What rows leave, in the order in which they are stored.

        Args:
            read: gives the rows of some keys, all those below `since`, in the order in which they are stored; their
                `transform` tells logical partitions apart. It may be called more than once.
        """
        ...


class Fold:
    """Folds the history of a collection below a time.

    Args:
        root: the data folder.
        spec: the collection.
        scratch: an empty folder for the buckets.
        sizes: how much is handled at once.
    """

    def __init__(self, root: Path, spec: CollectionSpec, scratch: Path, sizes: FoldSizes = FOLD_SIZES) -> None:
        self._sizes = sizes
        self._root = root
        self._spec = spec
        self._scratch = scratch

    def write(self, segments: Sequence[Segment], since: int, name: str) -> list[Segment]:
        """Write what documents below `since` leave.

        Args:
            segments: of all logical partitions, all that have clocks below `since`.
            since: clock.
            name: begins the names of the files, which are durable when this returns.
        """
        parts = by_partition(segments)
        if len(parts) > _MOST_PARTITIONS:
            raise StorageError(f"'{self._spec.name}' has too many logical partitions to compact: {len(parts):,}")
        reads = [
            SourceRead(index, 0, BEGINNING, since, tuple(partition)).within(BEGINNING, since)
            for index, partition in enumerate(parts.values())
        ]
        buckets = self._spill(reads, bucket_count(segments, self._sizes))
        reach("compaction.spilled")
        runs = SegmentWriter(self._root, self._spec, name)
        bucket_fold = _bucket_fold(self._spec, since)
        for bucket in buckets:
            for run in _runs(bucket_fold.fold(partial(_bucket_rows, bucket)), self._sizes.run_rows):
                _write_run(runs, run, list(parts))
            bucket.unlink()
        written = runs.close()
        return written if len(buckets) == 1 else self._merge(written, f"{name}-sorted")

    def _spill(self, reads: Sequence[SourceRead], count: int) -> list[Path]:
        """Split documents by their key, each bucket in order."""
        paths = [self._scratch / f"{number}.arrow" for number in range(count)]
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(path), ReadRows.SCHEMA)) for path in paths]
            for rows in read_sorted(self._root, reads, ReadRows.STORED_ORDER):
                if count == 1:
                    writers[0].write_batch(rows.batch)
                    continue
                hashes = np.fromiter(map(zlib.crc32, rows.keys.to_pylist()), np.uint32, len(rows))
                owners = hashes % count
                for owner in np.unique(owners):
                    writers[owner].write_batch(rows.filter(owners == owner).batch)
        return paths

    def _merge(self, runs: Sequence[Segment], name: str) -> list[Segment]:
        """Merge the runs of each logical partition, so that readers have few files open at a time."""
        writer = SegmentWriter(self._root, self._spec, name)
        for label, segments in by_partition(runs).items():
            copy_rows(self._root, self._spec, writer, SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(segments)), label)
        written = writer.close()
        blobs_of(self._root).delete(run.path for run in runs)
        return written


def by_partition(segments: Sequence[Segment]) -> dict[str, list[Segment]]:
    """Segments by their logical partition: JSON text of its values."""
    partitions: dict[str, list[Segment]] = {}
    for segment in segments:
        partitions.setdefault(orjson.dumps(list(segment.partition)).decode(), []).append(segment)
    return partitions


def bucket_count(segments: Sequence[Segment], sizes: FoldSizes = FOLD_SIZES) -> int:
    """Into how many buckets to split the documents of these segments."""
    documents, size = sum(segment.documents for segment in segments), sum(segment.bytes for segment in segments)
    return min(max(-(-documents // sizes.bucket_documents), -(-size // sizes.bucket_bytes), 1), sizes.buckets)


def _bucket_fold(spec: CollectionSpec, since: int) -> BucketFold:
    return ConsolidatedFold(since) if spec.kind == "consolidated" else ReducedFold(spec)


def copy_rows(root: Path, spec: CollectionSpec, writer: SegmentWriter, read: SourceRead, label: str) -> None:
    """Write what a read of one logical partition gives, in order."""
    for rows in read_sorted(root, [read], selection=all_columns(spec)):
        writer.write(rows.written(label))


def _bucket_rows(bucket: Path) -> Iterator[ReadRows]:
    with pa.ipc.open_stream(str(bucket)) as reader:
        yield from map(ReadRows, reader)


def _runs(parts: Iterator[ReadRows], run_rows: int) -> Iterator[list[ReadRows]]:
    """Parts gathered until they have some size."""
    gathered: list[ReadRows] = []
    for rows in parts:
        gathered.append(rows)
        if sum(map(len, gathered)) >= run_rows:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _write_run(writer: SegmentWriter, run: Sequence[ReadRows], labels: Sequence[str]) -> None:
    """Write rows in order, one logical partition after the other, so that few files are open."""
    for partition in np.unique(np.concatenate([rows.transforms for rows in run])):
        for rows in run:
            writer.write(rows.filter(rows.transforms == partition).written(labels[partition]))
