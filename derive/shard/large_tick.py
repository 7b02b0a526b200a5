"""A tick whose published documents exceed the memory limit: sorted on disk, and combined from there.

Documents are sorted by key and processing order, and folded from the left as they are read. The result equals a fold in
memory byte for byte. A second sort restores the order of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow.compute as pc

from derive.protocol.specs import Document
from derive.shard.key_fold import KeyFold
from derive.storage.segments.partition import MakeLabels
from derive.storage.segments.rows import KEY, SEQ, NumberedRows, WrittenRows
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill

_Row: TypeAlias = tuple[int, int, bytes, Document]
"""Timestamp, sequence number, key and document."""

P = TypeVar("P", bound=NumberedRows)


class LargeTick(Generic[P]):
    """Combines the documents of one tick.

    Args:
        layout: layout of the published documents, with the sort columns of processing.
        fold: reducer of documents.
        labels: function from documents to labels.
        spill: files for rows.
    """

    def __init__(self, layout: type[P], fold: KeyFold, labels: MakeLabels, spill: Spill) -> None:
        self._layout = layout
        self._published = Sorter(layout.SCHEMA, [KEY, *layout.PROCESSED], spill)
        self._combined = Sorter(WrittenRows.SCHEMA, WrittenRows.ORDER, spill)
        self._fold = fold
        self._labels = labels
        self._key: bytes | None = None  # the key that is being folded
        self._clock = 0
        self._folded: list[Document] = []
        self._parked = Sorter(WrittenRows.SCHEMA, [SEQ], spill)
        self._parked_count = 0

    def add(self, rows: P) -> None:
        """Add published documents, in any order.

        Raises:
            DiskFullError: the documents do not fit on the disk.
        """
        self._published.add(rows.batch.select(self._layout.SCHEMA.names))

    def close(self) -> Iterator[WrittenRows]:
        """Combine the documents.

        Yields:
            Rows in storage order.

        Raises:
            DiskFullError: the combined documents do not fit on the disk.
        """
        for rows in map(self._layout, self._published.take()):
            alone = self._alone(rows)
            self._combined.add(rows.filter(alone).written().batch)
            self._fold_all(rows.filter(~alone))
        ended: list[_Row] = []
        self._end_key(ended)
        self._combined.add(self._rows(ended).batch)
        yield from map(WrittenRows, self._combined.take())

    def _alone(self, rows: P) -> np.ndarray:
        """Return the mask of rows that are certainly unique by key; the last row may have successors."""
        keys = rows.keys
        differ = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        is_alone: np.ndarray = np.concatenate([[keys[0].as_py() != self._key], differ]) & np.append(differ, False)
        return is_alone

    def _fold_all(self, rows: P) -> None:
        ended: list[_Row] = []
        for key, clock, number, document in zip(*rows.processed(), rows.documents(), strict=True):
            if key != self._key:
                self._end_key(ended)
                self._key = key
            if number < 0 or not self._folded:
                self._folded.append(document)
            else:
                self._fold.add(key, self._folded, document)
            self._clock = clock
        self._combined.add(self._rows(ended).batch)
        self._park(len(self._folded) - 1)

    def _end_key(self, ended: list[_Row]) -> None:
        """Add the folded documents of a key, at the timestamp of the last of its documents."""
        if self._parked_count:
            self._park(len(self._folded))
            for rows in map(WrittenRows, self._parked.take()):
                self._combined.add(rows.at(self._clock).batch)
            self._parked_count = 0
        elif self._key is not None:
            ended += [(self._clock, seq, self._key, document) for seq, document in enumerate(self._folded)]
        self._folded = []

    def _park(self, count: int) -> None:
        """Set folded documents of a key aside: they may be many, and their timestamp is still unknown."""
        if count > 0:
            assert self._key is not None
            parked = [(0, self._parked_count + seq, self._key, self._folded[seq]) for seq in range(count)]
            self._parked.add(self._rows(parked).batch)
            self._parked_count += count
            del self._folded[:count]

    def _rows(self, rows: list[_Row]) -> WrittenRows:
        clocks, seqs, keys, documents = zip(*rows, strict=True) if rows else ((), (), (), ())
        return WrittenRows.sorted_of(clocks, seqs, keys, documents, self._labels(documents))
