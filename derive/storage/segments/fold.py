"""History below a time, folded: what remains of it is one document per key.

Reading a collection at a time T fully reduces each key's documents up to T, from the left. A beginning of these can
therefore be replaced by what it reduces to, fully and in the same order, and every later read gives the same bytes; not
even sums of floating-point numbers come out differently, as they might by partial reductions. What is deleted leaves
nothing behind. The document left is in the place (clock, seq) of the last one that it stands for.

This is checked and not assumed: where reducing the result once more would change it, or it cannot be reduced, or is no
valid document, the key keeps the documents it has. So it does behind the first change of its logical partition, because
who reads one partition must find what is in it.

Memory is flat. Documents are split by a hash of their key into buckets on disk, few enough keys in each to fold them in
memory; what the buckets leave is merged. It needs no Spark, which takes longer to start than most collections to fold.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import MISSING
from derive.errors import ReductionError, StorageError
from derive.failpoint import reach
from derive.protocol.specs import JSON, CollectionSpec
from derive.reduce.combiner import Combiner
from derive.schema.validator import compile_validator
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.writer import SegmentWriter
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

_BUCKET_DOCUMENTS, _BUCKET_BYTES = 100_000, 8 << 20
_MOST_BUCKETS = 256
_MOST_PARTITIONS = 1 << 15
_RUN_ROWS = 200_000


@dataclass(slots=True)
class _Key:
    """What is known of a key.

    Attributes:
        value: what its documents reduce to so far; `MISSING` once it is deleted.
        partition: the logical partition of its first document.
        folded: how many documents are reduced: those before one of another partition.
        is_open: no document of another partition has come.
        text: JSON text of what takes the place of the folded ones; empty for none.
        keeps: they stay as they are.
        seen: how many documents have been written or left out.
    """

    value: JSON
    partition: int
    folded: int = 0
    is_open: bool = True
    text: str = ""
    keeps: bool = False
    seen: int = 0


class Fold:
    """Folds the history of a collection below a time.

    Args:
        root: the data folder.
        spec: the collection.
        scratch: an empty folder for the buckets.
    """

    def __init__(self, root: Path, spec: CollectionSpec, scratch: Path) -> None:
        self._root = root
        self._spec = spec
        self._scratch = scratch
        self._combiner = Combiner(spec.read_schema, name=spec.name)
        schemas = [spec.write_schema] + ([spec.read_schema] if spec.read_schema != spec.write_schema else [])
        self._validators = [compile_validator(each, name=spec.name) for each in schemas]

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
            SourceRead(place, 0, BEGINNING, since, tuple(each)).within(BEGINNING, since)
            for place, each in enumerate(parts.values())
        ]
        buckets = self._spill(reads, bucket_count(segments))
        reach("compaction.spilled")
        runs = SegmentWriter(self._root, self._spec, name)
        for bucket in buckets:
            for run in _runs(self._fold(bucket)):
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

    def _fold(self, bucket: Path) -> Iterator[ReadRows]:
        """What the documents of a bucket leave, in order."""
        keys: dict[bytes, _Key] = {}
        for rows in _bucket_rows(bucket):
            columns = (rows.keys.to_pylist(), rows.transforms.tolist(), rows.documents())
            for key, partition, document in zip(*columns, strict=True):
                known = keys.get(key)
                if known is None:
                    known = keys[key] = _Key(MISSING, partition)
                self._add(known, partition, document)
        for known in keys.values():
            self._finish(known)
        for rows in _bucket_rows(bucket):
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
        except ReductionError:  # whoever reads it is told
            known.keeps, known.value = True, MISSING

    def _finish(self, known: _Key) -> None:
        if known.keeps or known.value is MISSING:
            return
        text = dump_exact(known.value)
        known.keeps = not self._stands(known.value, text)
        known.text, known.value = text.decode(), MISSING

    def _stands(self, value: JSON, text: bytes) -> bool:
        """Whether a document of this text can stand for the history that reduces to `value`."""
        document = parse_exact(text)
        try:
            again = self._combiner.full([document])
        except ReductionError:
            return False
        is_same = document == value and again is not MISSING and dump_exact(again) == text
        return is_same and all(each.is_valid(document) for each in self._validators)

    def _merge(self, runs: Sequence[Segment], name: str) -> list[Segment]:
        """Merge the runs of each logical partition, so that readers have few files open at a time."""
        writer = SegmentWriter(self._root, self._spec, name)
        for label, segments in by_partition(runs).items():
            copy_rows(self._root, writer, SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(segments)), label)
        written = writer.close()
        for each in runs:
            (self._root / each.path).unlink()
        return written


def by_partition(segments: Sequence[Segment]) -> dict[str, list[Segment]]:
    """Segments by their logical partition: JSON text of its values."""
    found: dict[str, list[Segment]] = {}
    for each in segments:
        found.setdefault(orjson.dumps(list(each.partition)).decode(), []).append(each)
    return found


def bucket_count(segments: Sequence[Segment]) -> int:
    """Into how many buckets to split the documents of these segments."""
    documents, size = sum(each.documents for each in segments), sum(each.bytes for each in segments)
    return min(max(-(-documents // _BUCKET_DOCUMENTS), -(-size // _BUCKET_BYTES), 1), _MOST_BUCKETS)


def copy_rows(root: Path, writer: SegmentWriter, read: SourceRead, label: str) -> None:
    """Write what a read of one logical partition gives, in order."""
    for rows in read_sorted(root, [read]):
        writer.write(rows.written(label))


def _bucket_rows(bucket: Path) -> Iterator[ReadRows]:
    with pa.ipc.open_stream(str(bucket)) as reader:
        yield from map(ReadRows, reader)


def _left(rows: ReadRows, keys: dict[bytes, _Key]) -> ReadRows:
    """The rows that stay, with the text of what they stand for."""
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
    return left.with_texts(_replaced(left.texts, replaced, texts))


def _replaced(column: Any, mask: Sequence[bool], texts: Sequence[str]) -> Any:
    import pyarrow.compute as pc

    return pc.replace_with_mask(column, pa.array(mask, pa.bool_()), pa.array(texts, pa.string()))


def _runs(parts: Iterator[ReadRows]) -> Iterator[list[ReadRows]]:
    """Parts gathered until they have some size."""
    gathered: list[ReadRows] = []
    for rows in parts:
        gathered.append(rows)
        if sum(map(len, gathered)) >= _RUN_ROWS:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _write_run(writer: SegmentWriter, run: Sequence[ReadRows], labels: Sequence[str]) -> None:
    """Write rows in order, one logical partition after the other, so that few files are open."""
    for partition in np.unique(np.concatenate([rows.transforms for rows in run])):
        for rows in run:
            writer.write(rows.filter(rows.transforms == partition).written(labels[partition]))
