"""A tick whose published documents outgrow memory: they are sorted on disk, and combined from there.

Documents are sorted by key and then by their place in the order of processing, and folded from the left as they come.
So the result is that of folding them in memory, to the last byte. A second sort puts it in the order of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.protocol.specs import Document
from derive.shard.key_fold import KeyFold
from derive.shard.rows import STORED, as_they_are, rows_of
from derive.storage.segments.partition import MakeLabels
from derive.storage.segments.sorter import Sorter
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import parse_texts
from derive.storage.segments.writer import ROWS

_Row: TypeAlias = tuple[int, int, bytes, Document]
"""Clock, seq, key and document."""


class LargeTick:
    """Combines the documents of one tick.

    Args:
        schema: of what is added: it has `clock`, `key`, `doc` and `partition`, and a `number` which is negative where a
            document stays apart from the one before it, as they are combined already.
        processed: columns that give a document its place in the order of processing among those of its key.
        fold: folds documents.
        labels: makes labels of documents.
        spill: where rows go.
    """

    def __init__(
        self, schema: pa.Schema, processed: Sequence[str], fold: KeyFold, labels: MakeLabels, spill: Spill
    ) -> None:
        self._published = Sorter(schema, ["key", *processed], spill)
        self._combined = Sorter(ROWS, STORED, spill)
        self._fold = fold
        self._labels = labels
        self._key: bytes | None = None  # the one that is being folded
        self._clock = 0
        self._folded: list[Document] = []
        self._parked = Sorter(ROWS, ["seq"], spill)
        self._parked_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take published documents, in any order.

        Raises:
            DiskFullError: there is no space for them.
        """
        self._published.add(rows)

    def close(self) -> Iterator[pa.RecordBatch]:
        """Combine them.

        Yields:
            Rows (`ROWS`), sorted by (clock, seq, key).

        Raises:
            DiskFullError: there is no space for what they become.
        """
        for rows in self._published.take():
            alone = self._alone(rows)
            self._combined.add(as_they_are(rows.filter(pa.array(alone))))
            self._fold_all(rows.filter(pa.array(~alone)))
        ended: list[_Row] = []
        self._end_key(ended)
        self._combined.add(self._rows(ended))
        yield from self._combined.take()

    def _alone(self, rows: pa.RecordBatch) -> Any:
        """Which rows are certainly the only ones of their key: not the last one, behind which there may be more."""
        keys = rows.column("key")
        differ = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        return np.concatenate([[keys[0].as_py() != self._key], differ]) & np.concatenate([differ, [False]])

    def _fold_all(self, rows: pa.RecordBatch) -> None:
        ended: list[_Row] = []
        columns = [rows.column(name).to_pylist() for name in ("key", "clock", "number")]
        for key, clock, number, document in zip(*columns, parse_texts(rows.column("doc")), strict=True):
            if key != self._key:
                self._end_key(ended)
                self._key = key
            if number < 0 or not self._folded:
                self._folded.append(document)
            else:
                self._fold.add(key, self._folded, document)
            self._clock = clock
        self._combined.add(self._rows(ended))
        self._park(len(self._folded) - 1)

    def _end_key(self, ended: list[_Row]) -> None:
        """What the documents of a key became has the clock of the last of them."""
        if self._parked_count:
            self._park(len(self._folded))
            for rows in self._parked.take():
                clocks = pa.array(np.full(rows.num_rows, self._clock))
                self._combined.add(rows.set_column(0, ROWS.field(0), clocks))
            self._parked_count = 0
        elif self._key is not None:
            ended += [(self._clock, seq, self._key, document) for seq, document in enumerate(self._folded)]
        self._folded = []

    def _park(self, count: int) -> None:
        """Put aside documents of a key that stay apart: there may be many, and their clock is not known yet."""
        if count > 0:
            assert self._key is not None
            parked = [(0, self._parked_count + seq, self._key, self._folded[seq]) for seq in range(count)]
            self._parked.add(self._rows(parked))
            self._parked_count += count
            del self._folded[:count]

    def _rows(self, rows: list[_Row]) -> pa.RecordBatch:
        clocks, seqs, keys, documents = zip(*rows, strict=True) if rows else ((), (), (), ())
        return rows_of(np.array(clocks, dtype=np.int64), seqs, keys, documents, self._labels(documents))
