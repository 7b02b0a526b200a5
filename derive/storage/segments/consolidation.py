"""Multisets: the sums of diffs of equal rows, and their documents with deletion markers.

A sum of zero leaves no row. The diff of a row is one byte in the files of all kinds of collections, so that all files
have one format and older files stay readable. A greater sum becomes several rows; counts above 127 are rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.errors import StorageError
from derive.storage.segments.rows import DIFF, DOC, KEY, TRANSFORM, ReadRows, ascending

MOST_DIFF = 127
"""Greatest diff of one row; the least diff is its negative."""

_GROUP = (KEY, DOC, TRANSFORM)
_COLUMNS = pa.schema([*map(ReadRows.SCHEMA.field, _GROUP), pa.field(DIFF, pa.int64())])
_GATHERED_ROWS = 200_000


class Consolidation:
    """Sums the diffs of rows with equal key, document and `transform`; memory holds the remaining rows.

    Args:
        parts: rows to consolidate.
        gathered_rows: number of rows that are summed at once.
    """

    def __init__(self, parts: Iterable[ReadRows], gathered_rows: int = _GATHERED_ROWS) -> None:
        self._sums = _COLUMNS.empty_table()
        gathered = [self._sums]
        for rows in parts:
            columns = [*(rows.batch.column(name) for name in _GROUP), pa.array(rows.diffs, pa.int64())]
            gathered.append(pa.table(columns, schema=_COLUMNS))
            if sum(table.num_rows for table in gathered[1:]) >= gathered_rows:
                gathered = [_summed(gathered)]
        self._sums = _summed(gathered).sort_by(ascending(_GROUP))

    def counts(self) -> Iterator[tuple[bytes, str, int]]:
        """Yield the packed key, JSON text and count of each document, in order."""
        keys, texts, counts = (self._sums.column(name).to_pylist() for name in (KEY, DOC, DIFF))
        return zip(keys, texts, counts, strict=True)

    def rows_at(self, clock: int) -> ReadRows:
        """Return rows with the same sums, all at one timestamp, in storage order."""
        sums = self._sums.column(DIFF).to_numpy()
        pieces = -(-np.abs(sums) // MOST_DIFF)
        indices = np.repeat(np.arange(len(sums)), pieces)
        last = np.cumsum(pieces) - 1
        diffs = np.full(len(indices), MOST_DIFF)
        diffs[last] = np.abs(sums) - MOST_DIFF * (pieces - 1)
        table = self._sums.take(pa.array(indices))
        keys, texts, transforms = (table.column(name).combine_chunks() for name in _GROUP)
        rows = ReadRows.from_columns(
            np.full(len(indices), clock), transforms, _numbered(keys), keys, (diffs * np.sign(sums)[indices]), texts
        )
        return rows.sorted(ReadRows.STORED_ORDER)


class ConsolidatedFold:
    """Reduces the history of a multiset to its contents just before `since`.

    Args:
        since: timestamp.
    """

    def __init__(self, since: int) -> None:
        self._clock = since - 1

    def fold(self, read: Callable[[], Iterator[ReadRows]]) -> Iterator[ReadRows]:
        """Yield the consolidated rows of all rows below `since`, in order."""
        yield Consolidation(read()).rows_at(self._clock)


def times_present(collection: str, text: str, count: int) -> int:
    """Return the count of a document whose diffs sum to `count`.

    Raises:
        StorageError: the sum is negative, because there are more retractions than insertions.
    """
    if count < 0:
        raise StorageError(
            f"'{collection}' has {-count} more retractions than insertions of a document: {text[:500]}",
            hint="find damaged files: flowctl verify",
        )
    return count


def _summed(tables: list[pa.Table]) -> pa.Table:
    sums = pa.concat_tables(tables).group_by(list(_GROUP), use_threads=False).aggregate([(DIFF, "sum")])
    columns = [*(sums.column(name) for name in _GROUP), sums.column(f"{DIFF}_sum")]
    table = pa.table(columns, schema=_COLUMNS)
    return table.filter(pc.not_equal(table.column(DIFF), 0))


def _numbered(keys: pa.Array) -> np.ndarray:
    """Return, for each of the sorted keys, the number of equal keys before it."""
    count = len(keys)
    differ = pc.not_equal(keys.slice(1), keys.slice(0, max(count - 1, 0))).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.concatenate([[True], differ])) if count else np.array([], dtype=np.int64)
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


_MARK = '"_meta":{"op":"d"}}'


def as_documents(stored: pa.Table) -> pa.Table:
    """Convert rows of a segment to documents; rows of a reduced collection are unchanged.

    Args:
        stored: rows with a column of diffs and, optionally, documents.
    """
    diffs = stored.column(DIFF).to_numpy()
    if not len(diffs) or (diffs == 1).all():
        return stored
    times = np.abs(diffs)
    if (times != 1).any():
        stored = stored.take(pa.array(np.repeat(np.arange(len(diffs)), times)))
        diffs = np.repeat(diffs, times)
    index = stored.schema.get_field_index(DOC)
    if index < 0 or not (diffs < 0).any():
        return stored
    texts = stored.column(index).combine_chunks()
    marked = pc.if_else(pa.array(diffs < 0), marked_texts(texts), texts)
    return stored.set_column(index, stored.schema.field(index), marked)


def with_deletions(rows: ReadRows) -> ReadRows:
    """Convert rows with diffs to documents."""
    table = as_documents(pa.Table.from_batches([rows.batch]))
    return ReadRows(table.combine_chunks().to_batches()[0]) if table.num_rows else rows


def marked_texts(texts: pa.StringArray) -> pa.StringArray:
    """Return texts of deleted documents with the marker `{"_meta": {"op": "d"}}`."""
    begun = pc.utf8_slice_codeunits(texts, 0, -1)
    comma = pc.if_else(pc.equal(texts, "{}"), "", ",")
    return pc.binary_join_element_wise(begun, comma, _MARK, "")
