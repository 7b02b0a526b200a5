"""An external sort: rows that fit in memory are sorted there, more of them as sorted runs on disk that are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from derive.storage.disk_errors import translated
from derive.storage.segments.merge import Cursor, SortKey, merge
from derive.storage.segments.spill import Spill

_RUNS = 32
"""How many runs of one size there may be: as many as that are merged into one."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class Sorter:
    """Sorts rows.

    Args:
        schema: of the rows.
        order: columns by which to sort; no two rows may be equal in all of them.
        spill: where runs go, and how many bytes may be in memory before there are any.
    """

    def __init__(self, schema: pa.Schema, order: Sequence[str], spill: Spill) -> None:
        self._schema = schema
        self._order = order
        self._spill = spill
        self._most_bytes = spill.memory // 4  # sorting copies them
        self._batch_bytes = self._most_bytes // _RUNS
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._tiers: list[list[Cursor]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows, in any order.

        Raises:
            DiskFullError: there is no space for a run.
        """
        if not rows.num_rows:
            return
        if self._held and self._held_bytes + rows.nbytes > self._most_bytes:
            self.spill()
        self._held.append(rows)
        self._held_bytes += rows.nbytes

    def spill(self) -> None:
        """Put what is in memory on disk.

        Raises:
            DiskFullError: there is no space for a run.
        """
        if self._held:
            self._keep(self._written(self._sorted()), 0)

    def take(self, until: SortKey | None = None) -> Iterator[pa.RecordBatch]:
        """Take rows out, in order; none may be added before the iterator ends.

        Args:
            until: take only rows before this bound; None for all.
        """
        if self._held:
            self._keep(Cursor((), self._sorted(), self._order), 0)
        yield from merge([cursor for tier in self._tiers for cursor in tier], until)
        self._tiers = [[cursor for cursor in tier if cursor.load()] for tier in self._tiers]

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """The rows in memory, which are so no longer, in order and in batches of which many may be in memory."""
        rows = pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        order = pc.sort_indices(rows, sort_keys=[(column, "ascending") for column in self._order])
        step = max(1, self._batch_bytes * rows.num_rows // rows.nbytes)
        for begin in range(0, rows.num_rows, step):
            yield rows.take(order.slice(begin, step))

    def _keep(self, run: Cursor, tier: int) -> None:
        """Add a run to those of about its size."""
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
