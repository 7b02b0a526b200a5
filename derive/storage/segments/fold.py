"""Folds the history before a time: keeps the documents that reads at or after this time need.

A read at a time T reduces the documents of each key up to T fully, from the left. If the full reduction of a prefix
replaces the prefix, every later read still returns the same bytes. Partial reductions would change sums of
floating-point numbers. A deleted key leaves no document. The folded document has the position (clock, seq) of the last
document that it replaces.

The fold checks its result. A key keeps its documents if a second reduction would change the result, if the documents
cannot be reduced, or if the result is invalid. A key also keeps its documents after its first change of logical
partition, because a reader of one partition must find the documents in this partition.

A reduced collection keeps one document per key, and a multiset keeps one row per document.

Memory is constant. Documents are split by a hash of their key into buckets on disk, which are small enough to fold in
memory. The folded buckets are merged. Spark is not used, because it takes longer to start than most folds.
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
import pyarrow.compute as pc

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON, MISSING
from derive.errors import ReductionError, StorageError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec
from derive.reduce.combiner import Combiner
from derive.schema.validator import compile_validator
from derive.storage.location import Location, blobs_of
from derive.storage.segments.reader import all_columns, read_sorted
from derive.storage.segments.rows import ConsolidatedFold, ReadRows
from derive.storage.segments.writer import SegmentWriter
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import Segment, SourceRead


@dataclass(slots=True)
class _Key:
    """State of a key.

    Attributes:
        value: reduction of the documents so far; `MISSING` after a deletion.
        partition: logical partition of its first document.
        folded: number of reduced documents, which are the documents before the first document of another partition.
        is_open: true until a document of another partition is seen.
        text: JSON text that replaces the folded documents; empty for none.
        keeps: true if the documents stay unchanged.
        seen: number of documents that were written or dropped.
    """

    value: JSON
    partition: int
    folded: int = 0
    is_open: bool = True
    text: str = ""
    keeps: bool = False
    seen: int = 0


class ReducedFold:
    """Reduces documents per key.

    Args:
        spec: the collection.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        self._combiner = Combiner(spec.read_schema, name=spec.name)
        schemas = [spec.write_schema] + ([spec.read_schema] if spec.read_schema != spec.write_schema else [])
        self._validators = [compile_validator(schema, name=spec.name) for schema in schemas]

    def fold(self, read: Callable[[], Iterator[ReadRows]]) -> Iterator[ReadRows]:
        """Yield the folded documents, in order; their `transform` is the number of their logical partition."""
        keys: dict[bytes, _Key] = {}
        for rows in read():
            columns = (rows.keys.to_pylist(), rows.transforms.tolist(), rows.documents())
            for key, partition, document in zip(*columns, strict=True):
                known = keys.get(key)
                if known is None:
                    known = keys[key] = _Key(MISSING, partition)
                self._add(known, partition, document)
        for known in keys.values():
            self._finish(known)
        for rows in read():
            yield _left(rows, keys)

    def _add(self, known: _Key, partition: int, document: JSON) -> None:
        if partition != known.partition:
            known.is_open = False
        if not known.is_open:
            return
        known.folded += 1
        if known.keeps:
            return
        try:
            known.value = self._combiner.full_step(known.value, document)
        except ReductionError:  # readers of the key get the error
            known.keeps, known.value = True, MISSING

    def _finish(self, known: _Key) -> None:
        if known.keeps or known.value is MISSING:
            return
        text = dump_exact(known.value)
        known.keeps = not self._stands(known.value, text)
        known.text, known.value = text.decode(), MISSING

    def _stands(self, value: JSON, text: bytes) -> bool:
        """Return true if a document of this text can replace the history that reduces to `value`."""
        document = parse_exact(text)
        try:
            again = self._combiner.full([document])
        except ReductionError:
            return False
        is_same = document == value and again is not MISSING and dump_exact(again) == text
        return is_same and all(validator.is_valid(document) for validator in self._validators)


def _left(rows: ReadRows, keys: dict[bytes, _Key]) -> ReadRows:
    """Return the remaining rows; some get the text that replaces earlier documents."""
    kept: list[int] = []
    replaced: list[bool] = []
    texts: list[str] = []
    for row, key in enumerate(rows.keys.to_pylist()):
        known = keys[key]
        known.seen += 1
        if known.keeps or known.seen > known.folded:
            kept.append(row)
            replaced.append(False)
        elif known.seen == known.folded and known.text:
            kept.append(row)
            replaced.append(True)
            texts.append(known.text)
    left = rows.take(kept)
    mask, replacements = pa.array(replaced, pa.bool_()), pa.array(texts, pa.string())
    return left.with_texts(pc.replace_with_mask(left.texts, mask, replacements))


_MOST_PARTITIONS = 1 << 15


@dataclass(frozen=True, slots=True)
class FoldSizes:
    """Sizes of a fold.

    Attributes:
        bucket_documents: approximate number of documents in a bucket.
        bucket_bytes: approximate size of a bucket's segments, bytes.
        buckets: largest number of buckets.
        run_rows: approximate number of rows in a run, which is grouped by logical partition.
    """

    bucket_documents: int = 100_000
    bucket_bytes: int = 8 << 20
    buckets: int = 256
    run_rows: int = 200_000


FOLD_SIZES = FoldSizes()


class BucketFold(Protocol):
    """The fold of one kind of collection."""

    def fold(self, read: Callable[[], Iterator[ReadRows]]) -> Iterator[ReadRows]:
        """Yield the folded rows in storage order.

        Args:
            read: returns all rows of some keys below `since`, in storage order, with the logical partition's number as
                `transform`. The function may be called repeatedly.
        """
        ...


class Fold:
    """Folds the history of a collection below a time.

    Args:
        location: location of the segments.
        spec: the collection.
        scratch: an empty folder for the buckets.
        sizes: sizes of the fold.
    """

    def __init__(self, location: Location, spec: CollectionSpec, scratch: Path, sizes: FoldSizes = FOLD_SIZES) -> None:
        self._sizes = sizes
        self._location = location
        self._spec = spec
        self._scratch = scratch

    def write(
        self,
        segments: Sequence[Segment],
        since: int,
        name: str,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[Segment]:
        """Write the folded history below `since`.

        Args:
            segments: all segments with timestamps below `since`, of all logical partitions.
            since: timestamp.
            name: prefix of the file names.
            progress: called with numbers of documents: each is counted when it is read, and when it is folded.

        Returns:
            The durable segments.
        """
        parts = by_partition(segments)
        if len(parts) > _MOST_PARTITIONS:
            raise StorageError(
                f"'{self._spec.name}' has {len(parts):,} logical partitions, and at most {_MOST_PARTITIONS:,} can"
                " be compacted",
                hint="compact without --since; or partition by fields with fewer values",
            )
        reads = [
            SourceRead(index, 0, BEGINNING, since, tuple(partition)).within(BEGINNING, since)
            for index, partition in enumerate(parts.values())
        ]
        buckets = self._spill(reads, bucket_count(segments, self._sizes), progress)
        reach("compaction.spilled")
        runs = SegmentWriter(self._location, self._spec, name)
        bucket_fold = _bucket_fold(self._spec, since)
        for bucket, documents in buckets:
            for run in _runs(bucket_fold.fold(partial(_bucket_rows, bucket)), self._sizes.run_rows):
                _write_run(runs, run, list(parts))
            bucket.unlink()
            progress(documents)
        written = runs.close()
        return written if len(buckets) == 1 else self._merge(written, f"{name}-sorted")

    def _spill(
        self, reads: Sequence[SourceRead], count: int, progress: Callable[[int], None]
    ) -> list[tuple[Path, int]]:
        """Split documents by key into buckets, each in order; return the file and number of documents of each."""
        paths = [self._scratch / f"{number}.arrow" for number in range(count)]
        counts = [0] * count
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(path), ReadRows.SCHEMA)) for path in paths]
            for rows in read_sorted(self._location, reads, ReadRows.STORED_ORDER):
                progress(len(rows))
                if count == 1:
                    writers[0].write_batch(rows.batch)
                    counts[0] += len(rows)
                    continue
                hashes = np.fromiter(map(zlib.crc32, rows.keys.to_pylist()), np.uint32, len(rows))
                owners = hashes % count
                for owner in np.unique(owners):
                    batch = rows.filter(owners == owner).batch
                    writers[owner].write_batch(batch)
                    counts[owner] += batch.num_rows
        return list(zip(paths, counts, strict=True))

    def _merge(self, runs: Sequence[Segment], name: str) -> list[Segment]:
        """Merge the runs of each logical partition, so that readers open few files at a time."""
        writer = SegmentWriter(self._location, self._spec, name)
        for label, segments in by_partition(runs).items():
            copy_rows(
                self._location, self._spec, writer, SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(segments)), label
            )
        written = writer.close()
        blobs_of(self._location).delete(run.path for run in runs)
        return written


def by_partition(segments: Sequence[Segment]) -> dict[str, list[Segment]]:
    """Group segments by logical partition, which the JSON text of its values identifies."""
    partitions: dict[str, list[Segment]] = {}
    for segment in segments:
        partitions.setdefault(orjson.dumps(list(segment.partition)).decode(), []).append(segment)
    return partitions


def bucket_count(segments: Sequence[Segment], sizes: FoldSizes = FOLD_SIZES) -> int:
    """Return the number of buckets for the documents of these segments."""
    documents, size = sum(segment.documents for segment in segments), sum(segment.bytes for segment in segments)
    return min(max(-(-documents // sizes.bucket_documents), -(-size // sizes.bucket_bytes), 1), sizes.buckets)


def _bucket_fold(spec: CollectionSpec, since: int) -> BucketFold:
    return ConsolidatedFold(since) if spec.kind == "consolidated" else ReducedFold(spec)


def copy_rows(
    location: Location,
    spec: CollectionSpec,
    writer: SegmentWriter,
    read: SourceRead,
    label: str,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the rows of a read of one logical partition, in order; `progress` is called with their number."""
    for rows in read_sorted(location, [read], selection=all_columns(spec)):
        writer.write(rows.written(label))
        progress(len(rows))


def _bucket_rows(bucket: Path) -> Iterator[ReadRows]:
    with pa.ipc.open_stream(str(bucket)) as reader:
        yield from map(ReadRows, reader)


def _runs(parts: Iterator[ReadRows], run_rows: int) -> Iterator[list[ReadRows]]:
    """Yield groups of consecutive parts; each group, except the last, has at least `run_rows` rows."""
    gathered: list[ReadRows] = []
    for rows in parts:
        gathered.append(rows)
        if sum(map(len, gathered)) >= run_rows:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _write_run(writer: SegmentWriter, run: Sequence[ReadRows], labels: Sequence[str]) -> None:
    """Write ordered rows partition by partition, so that few files are open."""
    for partition in np.unique(np.concatenate([rows.transforms for rows in run])):
        for rows in run:
            writer.write(rows.filter(rows.transforms == partition).written(labels[partition]))
