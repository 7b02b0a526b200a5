"""External sort: sorts in memory if the rows fit, and otherwise merges sorted runs on disk.

One batch of each sequence is loaded. Rows up to the least end of these batches precede every other row, so they
are sorted in Arrow and yielded. The merge compares whole sort keys, so rows with equal first columns need not fit in
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from derive.storage.blobs import translated
from derive.storage.segments.rows import sort_batch


class Spill:
    """Unnamed files in one folder, closed at the end of the context or of the process.

    Args:
        folder: folder of the files, created on demand.
        memory: approximate memory limit for the rows of a user, bytes.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder = folder
        self.memory = memory
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def open(self) -> IO[bytes]:
        """Return a new file, to write and then to read. Closing the file frees its space.

        Raises:
            StorageError: the file cannot be created.
        """
        with translated(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: `close` has no data to flush, so it cannot fail.
            return self._files.enter_context(TemporaryFile(dir=self.folder, buffering=0))


SortKey: TypeAlias = tuple[Any, ...]
"""Values of all sort columns, or of the first ones; a prefix is a lower bound of every key that begins with it."""


class Cursor:
    """One sorted sequence with its read position.

    Args:
        first: lower bound of the first row.
        batches: batches of rows, loaded on demand.
        order: sort columns; rows are unique in them.
    """

    def __init__(self, first: SortKey, batches: Iterator[pa.RecordBatch], order: Sequence[str]) -> None:
        self.first = first
        self.last: SortKey = ()
        self.order = order
        self._batches = batches
        self._rows: pa.RecordBatch | None = None

    def load(self) -> bool:
        """Load a batch, with `last` as its last sort key; return False at the end of the sequence."""
        while self._rows is None:
            rows = next(self._batches, None)
            if rows is None:
                return False
            if rows.num_rows:
                self._rows = rows
                self.first, self.last = self._sort_key(rows, 0), self._sort_key(rows, rows.num_rows - 1)
        return True

    def take_through(self, end: SortKey) -> pa.RecordBatch | None:
        """Take the loaded rows up to `end`, inclusive."""
        rows = self._rows
        if rows is None or self.first > end:
            return None
        if self.last <= end:
            self._rows = None
            return rows
        count = bisect_right(range(rows.num_rows), end, key=lambda row: self._sort_key(rows, row))
        self._rows = rows.slice(count)
        self.first = self._sort_key(rows, count)
        return rows.slice(0, count)

    def _sort_key(self, rows: pa.RecordBatch, row: int) -> SortKey:
        return tuple(rows.column(name)[row].as_py() for name in self.order)


def merge(cursors: Iterable[Cursor], until: SortKey | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several sequences in order.

    Args:
        cursors: sequences with the same order; their positions move past the yielded rows.
        until: exclusive upper bound; None for all rows.
    """
    waiting = sorted(cursors, key=attrgetter("first"), reverse=True)
    active: list[Cursor] = []
    while waiting or active:
        if not active:
            active = [waiting.pop()]
        active = [cursor for cursor in active if cursor.load()]
        end = min((cursor.last for cursor in active), default=None)
        while end is not None and waiting and waiting[-1].first <= end:
            cursor = waiting.pop()
            if cursor.load():
                active.append(cursor)
                end = min(end, cursor.last)
        if end is None:
            continue
        if until is not None:
            end = min(end, until)
        yield from _in_order([cursor.take_through(end) for cursor in active], active[0].order)
        if end == until:
            return


def _in_order(parts: Sequence[pa.RecordBatch | None], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    ready = [rows for rows in parts if rows is not None]
    if len(ready) == 1:
        yield ready[0]
    elif ready:
        yield sort_batch(pa.concat_batches(ready), order)


_RUNS = 32
"""Largest number of runs of one size, which are then merged into one."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class Sorter:
    """Sorts rows.

    Args:
        schema: schema of the rows.
        order: sort columns; rows are unique in them.
        spill: files for runs, and the memory limit.
    """

    def __init__(self, schema: pa.Schema, order: Sequence[str], spill: Spill) -> None:
        self._schema = schema
        self._order = order
        self._spill = spill
        self._most_bytes = spill.memory // 4  # a sort copies the rows
        self._batch_bytes = self._most_bytes // _RUNS
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._tiers: list[list[Cursor]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows in any order.

        Raises:
            DiskFullError: a run does not fit on the disk.
        """
        if not rows.num_rows:
            return
        if self._held and self._held_bytes + rows.nbytes > self._most_bytes:
            self.spill()
        self._held.append(rows)
        self._held_bytes += rows.nbytes

    def spill(self) -> None:
        """Write the rows in memory to disk.

        Raises:
            DiskFullError: a run does not fit on the disk.
        """
        if self._held:
            self._keep(self._written(self._sorted()), 0)

    def take(self, until: SortKey | None = None) -> Iterator[pa.RecordBatch]:
        """Yield and remove rows in order; no rows may be added before the iterator ends.

        Args:
            until: exclusive upper bound; None for all rows.
        """
        if self._held:
            self._keep(Cursor((), self._sorted(), self._order), 0)
        yield from merge([cursor for tier in self._tiers for cursor in tier], until)
        self._tiers = [[cursor for cursor in tier if cursor.load()] for tier in self._tiers]

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield and release the rows in memory, sorted; batches are small, so that many runs can be merged."""
        rows = pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        order = pc.sort_indices(rows, sort_keys=[(column, "ascending") for column in self._order])
        step = max(1, self._batch_bytes * rows.num_rows // rows.nbytes)
        for begin in range(0, rows.num_rows, step):
            yield rows.take(order.slice(begin, step))

    def _keep(self, run: Cursor, tier: int) -> None:
        """Add a run to the tier of its size."""
        if tier == len(self._tiers):
            self._tiers.append([])
        runs = self._tiers[tier]
        runs.append(run)
        if len(runs) == _RUNS:
            self._tiers[tier] = []
            self._keep(self._written(merge(runs)), tier + 1)

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Cursor:
        file = self._spill.open()
        with translated(self._spill.folder):
            with pa.ipc.new_stream(file, self._schema, options=_COMPRESSED) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.seek(0)
        return Cursor((), _read(file), self._order)


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    with file, pa.ipc.open_stream(file) as reader:
        yield from reader
