"""Segments of tables: written for a large commit, or from rows that were appended over some time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from derive.errors import FencedError
from derive.storage.capability.table import Capability, acquire, release, require_live
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.segment import insert_segments
from derive.storage.metadata.tables import name_of
from derive.storage.segments.partition import INGESTED, NO_PARTITION
from derive.storage.table import AppendedRow, GlobalId, RowUpdate, Table, in_order
from derive.time.frontier import END_OF_TIME
from derive.time.source_read import Segment

if TYPE_CHECKING:
    from derive.storage.segments.writer import SegmentWriter

_MOST_DIFF = 127
_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class TableFile:
    """Durable segments of a table that are not committed yet.

    Attributes:
        capability: write capability that keeps the segments from removal; it bounds no frontier.
        segments: segments of the table.
        writer: writer of the segments.
    """

    capability: Capability
    segments: Sequence[Segment]
    writer: SegmentWriter


def appended_rows(updates: Sequence[RowUpdate], first: int) -> list[AppendedRow]:
    """Return the updates of one commit as rows in order, with sequence numbers from `first` on."""
    return [
        (update.clock, number, update.diff, update.key, update.text)
        for number, update in enumerate(in_order(updates), start=first)
    ]


class TableFiles:
    """Writes segments of tables.

    Args:
        root: the data folder.
        metadata: metadata database of the data folder.
    """

    def __init__(self, root: Path, metadata: Metadata) -> None:
        self._root = root
        self._metadata = metadata

    def write(self, table: Table, rows: Sequence[AppendedRow]) -> TableFile:
        """Write segments of a table.

        Args:
            table: table of the rows; its files get its name, also if it is not yet bound to the name.
            rows: rows, ordered by timestamp and sequence number.
        """
        from derive.storage.segments.rows import WrittenRows
        from derive.storage.segments.writer import SegmentWriter

        with self._metadata.transaction(synced=False) as db:  # a loss of power ends the capability anyway
            capability = acquire(db, "write", str(name_of(db, table.id)), END_OF_TIME)
        writer = SegmentWriter(self._root, table.spec, f"{INGESTED}{capability.id}", is_valid=True)
        try:
            pieces = pieces_of(rows)
            for begin in range(0, len(pieces), _BATCH):
                clocks, seqs, diffs, keys, texts = zip(*pieces[begin : begin + _BATCH], strict=True)
                labels = [NO_PARTITION] * len(clocks)
                writer.write(WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, labels))
            return TableFile(capability, writer.close(), writer)
        except BaseException:
            self.remove(TableFile(capability, (), writer))
            raise

    def remove(self, file: TableFile) -> None:
        """Remove segments that were not committed."""
        file.writer.abort()
        with self._metadata.transaction(synced=False) as db:
            release(db, file.capability.id)


def adopt(db: apsw.Connection, identifier: GlobalId, file: TableFile) -> None:
    """Add segments to their table, in a write transaction.

    Raises:
        FencedError: the capability has expired, so the segments are garbage.
    """
    require_live(db, file.capability)
    name = name_of(db, identifier)
    if name is None:
        raise FencedError(f"table {identifier} is gone")
    insert_segments(db, name, file.segments)
    release(db, file.capability.id)


def pieces_of(rows: Sequence[AppendedRow]) -> list[AppendedRow]:
    """Split each row whose diff exceeds the limit of a segment into several rows.

    >>> pieces_of([(5, 0, 300, b"k", "{}")])
    [(5, 0, 127, b'k', '{}'), (5, 0, 127, b'k', '{}'), (5, 0, 46, b'k', '{}')]
    """
    pieces: list[AppendedRow] = []
    for row in rows:
        clock, seq, diff, key, text = row
        while abs(diff) > _MOST_DIFF:
            piece = _MOST_DIFF if diff > 0 else -_MOST_DIFF
            pieces.append((clock, seq, piece, key, text))
            diff -= piece
        pieces.append((clock, seq, diff, key, text))
    return pieces
