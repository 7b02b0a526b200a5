"""External sort: in memory as long as the rows fit, then with sorted runs on disk that are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from derive.storage.disk_errors import translated
from derive.storage.segments.merge import Cursor, SortKey, merge
from derive.storage.segments.spill import Spill

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
        self._most_bytes = spill.memory // 4  # sorting copies the rows
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
        """Yield and release the rows in memory, sorted, in batches small enough for a merge of many runs."""
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
