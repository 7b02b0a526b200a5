"""Writes segments: immutable Parquet files of updates, sorted by (clock, seq, key), with typed columns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derive.errors import ObjectStoreError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec
from derive.schema.validator import fingerprint
from derive.storage.blobs import Blobs, translated
from derive.storage.location import Location, blobs_of
from derive.storage.segments.columns import compile_fields, stored_columns
from derive.storage.segments.partition import NO_PARTITION, collection_folder, partition_folder
from derive.storage.segments.rows import KEY, StoredRows, WrittenRows
from derive.storage.segments.segment_file import VALIDATED
from derive.time.positions import Segment


class Background:
    """Runs pieces of work one after the other in a thread; after a failure all later calls raise its error.

    The encoder of a row group releases Python's lock, so it can use an idle processor while the caller continues.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Start work in the thread after the previous work has ended; if no thread can start, run the work here.

        Raises:
            BaseException: error of the previous work.
        """
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,), name="background")
        try:
            self._thread.start()
        except RuntimeError:  # the limit of threads is reached
            self._thread = None
            self._do(work)

    def do(self, work: Callable[[], None]) -> None:
        """Run work here after the previous work has ended.

        Raises:
            BaseException: error of this or the previous work.
        """
        self.wait()
        self._do(work)
        self.wait()

    def join(self) -> None:
        """Wait until the work has ended, and ignore errors."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait until the work has ended.

        Raises:
            BaseException: error of the work.
        """
        self.join()
        if self._error is not None:
            raise self._error

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised in the waiting thread
            self._error = error


@dataclass(frozen=True, slots=True)
class WriteSizes:
    """Sizes of a writer.

    Attributes:
        row_group: number of rows in a row group.
        buffer_bytes: limit for the buffered rows of all open files, bytes; the encoder may hold the same size again.
        file_rows: approximate limit for the rows of a file.
        open_files: limit for the number of open files.
        held_bytes: approximate limit for the encoded bytes of open files that an object store gets at the end, bytes.
    """

    row_group: int = 16_384
    buffer_bytes: int = 16 << 20
    file_rows: int = 2_000_000
    open_files: int = 64
    held_bytes: int = 64 << 20


WRITE_SIZES = WriteSizes()

_UPLOADS = 8
"""Number of objects that are stored at the same time."""

_Named: TypeAlias = tuple[str, str, tuple[Any, ...]]
"""Collection, path and logical partition of a file."""


class _OpenFile:
    """A segment file in writing."""

    def __init__(
        self, blobs: Blobs, segment: _Named, schema: pa.Schema, row_group: int, background: Background
    ) -> None:
        self.background = background
        self.collection, self.path, self.partition = segment
        self.schema = schema
        self.row_group = row_group
        self.buffered: list[pa.RecordBatch] = []
        self.buffered_rows = self.buffered_bytes = 0
        self.rows = 0
        self.clock_min = 0
        self.last: tuple[int, int, bytes] | None = None
        self.blob = blobs.create(self.path)
        # Neighbouring integers are often close, so delta encoding halves the space and saves time.
        encoding = {field.name: "DELTA_BINARY_PACKED" for field in schema if field.type == pa.int64()}
        # Keys share prefixes, like the texts of many fields, such as times.
        texts = [field.name for field in list(schema)[len(StoredRows.SCHEMA) :] if field.type == pa.string()]
        encoding |= dict.fromkeys([KEY, *texts], "DELTA_BYTE_ARRAY")
        try:
            self.writer = pq.ParquetWriter(
                self.blob.sink,
                schema,
                compression="zstd",
                use_dictionary=False,
                column_encoding=encoding,
                write_page_checksum=True,
            )
        except BaseException:
            with suppress(OSError):
                self.blob.sink.close()
            blobs.delete([self.path])
            raise

    def append(self, rows: StoredRows) -> None:
        if self.last is None:
            self.clock_min, _, _ = rows.sort_key(0)
        self.last = rows.sort_key(len(rows) - 1)
        self.buffered.append(self._flat(rows))
        self.buffered_rows += len(rows)
        self.buffered_bytes += rows.nbytes
        self.rows += len(rows)
        if self.buffered_rows >= self.row_group:
            self.flush(self.buffered_rows // self.row_group * self.row_group)

    def _flat(self, rows: StoredRows) -> pa.RecordBatch:
        """Return rows in the file's schema, in which each typed column is a column of its own."""
        fields = rows.fields
        if fields is None:
            return rows.batch
        arrays = [*rows.batch.columns[: len(StoredRows.SCHEMA)], *map(fields.field, range(fields.type.num_fields))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def flush(self, count: int | None = None) -> None:
        """Encode and write the first `count` buffered rows, or all of them, in the background."""
        if self.buffered:
            rows = pa.Table.from_batches(self.buffered)
            first = rows.slice(0, count)
            self.background.begin(partial(self.writer.write_table, first, row_group_size=self.row_group))
            self.buffered = rows.slice(len(first)).to_batches()
            self.buffered_rows = len(rows) - len(first)
            self.buffered_bytes = self.buffered_bytes * self.buffered_rows // len(rows)

    def end(self) -> None:
        """Encode and write the rest of the rows."""
        self.background.do(self._end)
        reach("segment.closed")

    def finish(self) -> Segment:
        """Make the file durable."""
        size, checksum = self.blob.finish()
        reach("segment.synced")
        assert self.last is not None
        clocks = (self.clock_min, self.last[0])
        return Segment(self.collection, self.path, self.partition, *clocks, self.rows, size, checksum)

    def _end(self) -> None:
        if self.buffered:
            self.writer.write_table(pa.Table.from_batches(self.buffered), row_group_size=self.row_group)
        reach("segment.closing")
        self.writer.close()
        self.blob.sink.close()

    def abort(self) -> None:
        for file in (self.writer, self.blob.sink):
            with suppress(Exception):  # ignored: the disk may be full, and the file is removed
                file.close()


class SegmentWriter:
    """Writes sorted rows into segments with constant memory, one open file per logical partition.

    Files are durable when `close` returns, and belong to no collection until their descriptors are committed.

    Args:
        location: location of the segments.
        collection: the collection.
        name: prefix of the file names, which no other writer ever uses.
        sizes: sizes of the writer.
        is_valid: all documents are validated against the collection's write schema, which the files record.
    """

    def __init__(
        self,
        location: Location,
        collection: CollectionSpec,
        name: str,
        sizes: WriteSizes = WRITE_SIZES,
        *,
        is_valid: bool = False,
    ) -> None:
        self._sizes = sizes
        self._blobs = blobs_of(location)
        self._collection = collection.name
        self._folder = collection_folder(collection.name)
        self._shown = str(location / self._folder)
        self._partitions = [partition.field for partition in collection.partitions]
        schema = stored_columns(collection, StoredRows.SCHEMA)
        validated = {VALIDATED: fingerprint(collection.write_schema)} if is_valid else {}
        self._schema = schema.with_metadata({**(schema.metadata or {}), **validated})
        self._make_fields = compile_fields(collection)
        self._name = name
        self._background = Background()
        self._paths: list[str] = []
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._closed: list[Segment] = []

    def write(self, rows: WrittenRows) -> None:
        """Append rows in storage order; missing typed columns are computed from the documents."""
        if not len(rows):
            return
        if rows.fields is None and len(self._schema) > len(StoredRows.SCHEMA):
            rows = rows.with_fields(self._make_fields(rows.documents()))
        with translated(self._shown):
            stored = rows.stored()
            if not self._partitions:
                self._append(NO_PARTITION, stored)
                return
            for label in pc.unique(rows.labels).to_pylist():
                self._append(label, stored.filter(pc.equal(rows.labels, label)))

    def _append(self, label: str, rows: StoredRows) -> None:
        file = self._open.get(label)
        # Each file is sorted: rows with an earlier timestamp begin a new file.
        if file and (file.rows >= self._sizes.file_rows or (file.last is not None and rows.sort_key(0) < file.last)):
            self._finish(label)
            file = None
        if file is None:
            if len(self._open) >= self._sizes.open_files:
                self._finish(next(iter(self._open)))
            values = orjson.loads(label)
            below = partition_folder(self._partitions, values)
            folder = f"{self._folder}/{below}" if below else self._folder
            path = f"{folder}/{self._name}-{len(self._paths)}.parquet"
            named = (self._collection, path, tuple(values))
            file = _OpenFile(self._blobs, named, self._schema, self._sizes.row_group, self._background)
            self._open[label] = file
            self._paths.append(path)
        self._open.move_to_end(label)
        file.append(rows)
        if sum(open_file.buffered_bytes for open_file in self._open.values()) > self._sizes.buffer_bytes:
            max(self._open.values(), key=lambda open_file: open_file.buffered_bytes).flush()
        if sum(open_file.blob.held for open_file in self._open.values()) > self._sizes.held_bytes:
            self._finish(max(self._open, key=lambda label: self._open[label].blob.held))

    def _finish(self, label: str) -> None:
        """Finish a file; a file that cannot be finished stays open."""
        self._open[label].end()
        self._closed.append(self._open[label].finish())
        del self._open[label]

    def close(self) -> list[Segment]:
        """Finish all files, so that they are durable; return their descriptions."""
        with translated(self._shown):
            if self._blobs.is_local:
                while self._open:
                    self._finish(next(reversed(self._open)))
            else:
                self._finish_together()
        return self._closed

    def _finish_together(self) -> None:
        """Finish all files at the same time, because each waits for an answer."""
        files = list(reversed(self._open.values()))
        for file in files:
            file.end()
        with ThreadPoolExecutor(max(1, min(_UPLOADS, len(files))), "upload") as threads:
            self._closed += threads.map(_OpenFile.finish, files)
        self._open.clear()

    def abort(self) -> None:
        """Remove all written files; files that cannot be removed become garbage.

        Errors of the removal are ignored, so that the error that caused the removal is reported.
        """
        self._background.join()
        while self._open:
            _, file = self._open.popitem()
            file.abort()
        for paths in [[path] for path in self._paths] if self._blobs.is_local else [self._paths]:
            with suppress(OSError, ObjectStoreError):
                self._blobs.delete(paths)
        self._paths = []
