"""Row layouts: documents as columns, from a segment through a shard into another segment.

| layout | content |
|---|---|
| `StoredRows` | rows of a segment |
| `ReadRows` | rows read from segments for a lambda, in the order of processing |
| `PublishedRows` | documents of a lambda on their way to the owner of their key |
| `WrittenRows` | documents combined per tick and key on their way into a segment |
| `ContentRows` | contents of a collection at a time on their way to a reader |

A layout names the columns of a record batch and gives access to them, so that other modules need not know the names.
The cost of a layout is per batch, and not per document.

Rows of equal contents form a multiset: `Consolidation` computes the sums of their diffs. A sum of zero leaves no row.
The diff of a row is one byte in the files of all kinds of collections, so that all files have one format and older
files stay readable. A greater sum becomes several rows; counts above 127 are rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.errors import StorageError
from derive.plural import counted
from derive.protocol.specs import Document
from derive.storage.segments.texts import parse_texts, write_texts


def ascending(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return an ascending order by columns, in Arrow's format."""
    return [(column, "ascending") for column in columns]


def sort_batch(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Sort the rows of a batch by columns; this is twice as fast as `sort_by`, which first converts to a table."""
    return batch.take(pc.sort_indices(batch, sort_keys=ascending(columns)))


Column: TypeAlias = Any
"""Values of one column: a sequence, a NumPy array or an Arrow array."""

CLOCK, ADJUSTED, TRANSFORM, SEQ, NUMBER = "clock", "adjusted", "transform", "seq", "number"
DIFF, KEY, SOURCE_KEY, DOC, PARTITION = "diff", "key", "source_key", "doc", "partition"
FIELDS, UNCHECKED = "fields", "unchecked"
"""Optional columns in addition to a layout.

The documents' typed columns as one array (see `derive.storage.segments.columns`), and whether the reader must still
validate each document.
"""

_TYPES = {
    CLOCK: pa.int64(),
    ADJUSTED: pa.int64(),
    TRANSFORM: pa.int16(),
    SEQ: pa.int32(),
    NUMBER: pa.int64(),
    DIFF: pa.int8(),
    KEY: pa.binary(),
    SOURCE_KEY: pa.binary(),
    DOC: pa.string(),
    PARTITION: pa.string(),
}


def _schema(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[name], nullable=False) for name in names])


def _array(values: Column, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one layout.

    Attributes:
        batch: a record batch of the layout's `SCHEMA`.
    """

    SCHEMA: ClassVar[pa.Schema] = _schema()
    batch: pa.RecordBatch

    @classmethod
    def from_columns(cls, *columns: Column) -> Self:
        """Return rows from all columns of the layout, in order."""
        arrays = [_array(column, field.type) for column, field in zip(columns, cls.SCHEMA, strict=True)]
        return cls(pa.RecordBatch.from_arrays(arrays, schema=cls.SCHEMA))

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return int(self.batch.nbytes)

    @property
    def fields(self) -> pa.StructArray | None:
        """Return the typed columns of the documents; None without them."""
        return self.batch.column(FIELDS) if self.batch.schema.get_field_index(FIELDS) >= 0 else None

    def with_fields(self, fields: pa.StructArray | None) -> Self:
        """Return these rows with typed columns of their documents; None for no change."""
        return self if fields is None else type(self)(self.batch.append_column(FIELDS, fields))

    def slice(self, begin: int, count: int | None = None) -> Self:
        """Return `count` rows, or all rows, from index `begin` on, without a copy."""
        return type(self)(self.batch.slice(begin, count))

    def take(self, indices: Column) -> Self:
        """Return the rows with these indices, in their order."""
        return type(self)(self.batch.take(_array(indices, pa.int64())))

    def sorted(self, order: Sequence[str]) -> Self:
        """Return these rows sorted by columns."""
        return type(self)(sort_batch(self.batch, order))

    def filter(self, mask: Column) -> Self:
        """Return the rows for which the mask is true."""
        return type(self)(self.batch.filter(_array(mask, pa.bool_())))


R = TypeVar("R", bound=Rows)


def concat(parts: Sequence[R]) -> R:
    """Concatenate the rows of one or more parts."""
    return type(parts[0])(pa.concat_batches([part.batch for part in parts]))


class _Keys(Rows):
    """Rows with packed keys."""

    __slots__ = ()

    @property
    def keys(self) -> pa.Array:
        """Return packed keys, as an Arrow array."""
        return self.batch.column(KEY)


class _Clocked(_Keys):
    """Rows with packed keys and timestamps of publication."""

    __slots__ = ()

    @property
    def clocks(self) -> np.ndarray:
        """Return the timestamps."""
        clocks: np.ndarray = self.batch.column(CLOCK).to_numpy()
        return clocks


class _Keyed(_Keys):
    """Rows with the packed key and the JSON text of a document."""

    __slots__ = ()

    @property
    def texts(self) -> pa.Array:
        """Return the JSON texts of the documents, as an Arrow array."""
        return self.batch.column(DOC)

    def documents(self) -> list[Document]:
        """Return the documents; each call parses them again."""
        return parse_texts(self.texts)

    def pairs(self) -> Iterator[tuple[bytes, Document]]:
        """Yield the packed key and the document of each row."""
        return zip(self.keys.to_pylist(), self.documents(), strict=True)


class _Changes(_Keyed):
    """Rows that insert or retract their documents."""

    __slots__ = ()

    @property
    def diffs(self) -> np.ndarray:
        """Return the number of insertions by each row; -1 is a retraction."""
        diffs: np.ndarray = self.batch.column(DIFF).to_numpy()
        return diffs


class StoredRows(_Clocked, _Changes):
    """Rows of a segment: timestamp, sequence number among equal timestamps and keys, diff, packed key, JSON text."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, DIFF, KEY, DOC)
    ORDER: ClassVar[tuple[str, ...]] = (CLOCK, SEQ, KEY)
    """Sort columns of stored documents."""

    def sort_key(self, row: int) -> tuple[int, int, bytes]:
        """Return the sort columns' values of one row."""
        clock, seq, key = (self.batch.column(name)[row].as_py() for name in self.ORDER)
        return clock, seq, key

    def sort_keys(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the sort columns' values of each row."""
        return zip(*(self.batch.column(name).to_pylist() for name in self.ORDER), strict=True)


class WrittenRows(StoredRows):
    """Rows to write into a segment, each with the label of its logical partition."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, DIFF, KEY, DOC, PARTITION)

    @staticmethod
    def of(clocks: Column, seqs: Column, keys: Column, texts: pa.Array, labels: Column) -> WrittenRows:
        """Return rows that insert one document each."""
        return WrittenRows.from_columns(clocks, seqs, _ones(len(texts)), keys, texts, labels)

    @staticmethod
    def sorted_of(
        clocks: Column,
        seqs: Column,
        keys: Column,
        documents: Sequence[Document],
        labels: Column,
        fields: pa.StructArray | None = None,
    ) -> WrittenRows:
        """Return rows that insert one document each, in storage order."""
        return WrittenRows.of(clocks, seqs, keys, write_texts(documents), labels).with_fields(fields).in_order()

    def in_order(self) -> WrittenRows:
        """Return these rows in storage order."""
        return self if bool(np.all(np.diff(self.clocks) > 0)) else self.sorted(self.ORDER)

    @property
    def labels(self) -> pa.Array:
        """Return the labels of the logical partitions, as an Arrow array."""
        return self.batch.column(PARTITION)

    def published_keys(self) -> KeyRows:
        """Return each published key once per tick; documents of one key and tick are numbered from 0."""
        seqs = self.batch.column(SEQ).to_numpy()
        firsts = self if not seqs.any() else self.filter(seqs == 0)
        return KeyRows(firsts.batch.select(KeyRows.SCHEMA.names))

    def stored(self) -> StoredRows:
        """Return these rows in the layout of a segment."""
        return StoredRows(self.batch.select(StoredRows.SCHEMA.names)).with_fields(self.fields)

    def at(self, clock: int) -> WrittenRows:
        """Return these rows, all with the same timestamp."""
        clocks = pa.array(np.full(len(self), clock))
        return WrittenRows(self.batch.set_column(0, self.SCHEMA.field(CLOCK), clocks))

    def lists(self) -> tuple[list[int], list[int], list[bytes], list[Document], list[str]]:
        """Return timestamps, sequence numbers, keys, documents and labels."""
        clocks, seqs, keys, labels = (self.batch.column(name).to_pylist() for name in (CLOCK, SEQ, KEY, PARTITION))
        return clocks, seqs, keys, self.documents(), labels


class ReadRows(_Changes):
    """Source documents for a lambda, by adjusted timestamp, transform index, sequence number and packed key.

    Outside of transforms the adjusted timestamp is the timestamp.
    """

    __slots__ = ()
    SCHEMA = pa.schema([*_schema(ADJUSTED, TRANSFORM, SEQ, KEY, DIFF), pa.field(DOC, _TYPES[DOC])])
    ORDER: ClassVar[tuple[str, ...]] = (ADJUSTED, TRANSFORM, SEQ, KEY)
    """Sort columns of documents for lambdas (law L4)."""

    STORED_ORDER: ClassVar[tuple[str, ...]] = (ADJUSTED, SEQ, KEY)
    """Sort columns of documents in a collection, where `transform` has another meaning."""

    STORED: ClassVar[tuple[str, ...]] = (CLOCK, SEQ, KEY, DIFF, DOC)
    """Columns of a segment that are read, except typed columns."""

    @staticmethod
    def of(adjusted: Column, transforms: Column, seqs: Column, keys: Column, texts: Column) -> ReadRows:
        """Return rows that insert one document each."""
        return ReadRows.from_columns(adjusted, transforms, seqs, keys, _ones(len(texts)), texts)

    @staticmethod
    def of_stored(stored: pa.Table, transform: int, offset: int) -> list[ReadRows]:
        """Return the rows that one transform reads of a segment.

        Args:
            stored: columns `STORED` of a segment, and optional columns beyond the layout; documents may be null.
            transform: index of the transform.
            offset: microseconds from timestamp to adjusted timestamp.
        """
        clocks, *columns = (stored.column(name) for name in ReadRows.STORED)
        transforms = pa.array(np.full(stored.num_rows, transform, dtype=np.int16))
        table = pa.table([pa.array(clocks.to_numpy() + offset), transforms, *columns], schema=ReadRows.SCHEMA)
        for name in stored.schema.names[len(ReadRows.STORED) :]:
            table = table.append_column(stored.schema.field(name), stored.column(name))
        return [ReadRows(batch) for batch in table.to_batches()]

    def like(self, other: ReadRows) -> ReadRows:
        """Return these rows with the optional columns of other rows.

        The typed columns are null, and the documents are marked as valid.
        """
        batch = self.batch
        for field in list(other.batch.schema)[len(self.SCHEMA) :]:
            is_mark = field.name == UNCHECKED
            more = pa.repeat(pa.scalar(False), len(self)) if is_mark else pa.nulls(len(self), field.type)
            batch = batch.append_column(field, more)
        return ReadRows(batch)

    @property
    def adjusted(self) -> np.ndarray:
        """Return the adjusted timestamps."""
        adjusted: np.ndarray = self.batch.column(ADJUSTED).to_numpy()
        return adjusted

    @property
    def unchecked(self) -> np.ndarray | None:
        """Return the mask of documents that must still be validated; None if unknown."""
        if self.batch.schema.get_field_index(UNCHECKED) < 0:
            return None
        unchecked: np.ndarray = self.batch.column(UNCHECKED).to_numpy(zero_copy_only=False)
        return unchecked

    @property
    def transforms(self) -> np.ndarray:
        """Return the index of the transform that reads each document."""
        transforms: np.ndarray = self.batch.column(TRANSFORM).to_numpy()
        return transforms

    def lists(self) -> tuple[list[int], list[int], list[int], list[bytes]]:
        """Return the sort columns: adjusted timestamps, transform indices, sequence numbers and keys."""
        adjusted, transforms, seqs, keys = (self.batch.column(name).to_pylist() for name in self.ORDER)
        return adjusted, transforms, seqs, keys

    def tuples(self) -> Iterator[tuple[int, int, bytes, str]]:
        """Yield the adjusted timestamp, sequence number, packed key and JSON text of each row."""
        return zip(*(self.batch.column(name).to_pylist() for name in (*self.STORED_ORDER, DOC)), strict=True)

    def sort_columns(self, indices: Column) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Return the sort columns of the rows with these indices."""
        adjusted, transforms, seqs, keys = (self.batch.column(name).take(indices) for name in self.ORDER)
        return adjusted, transforms, seqs, keys

    def with_texts(self, texts: pa.Array) -> ReadRows:
        """Return these rows with other documents."""
        return ReadRows.from_columns(*(self.batch.column(name) for name in (*self.ORDER, DIFF)), texts)

    def written(self, label: str) -> WrittenRows:
        """Return rows to write into one logical partition; their timestamp is the adjusted timestamp."""
        clocks, seqs, keys = (self.batch.column(name) for name in self.STORED_ORDER)
        labels = pa.repeat(pa.scalar(label), len(self))
        rows = WrittenRows.from_columns(clocks, seqs, self.batch.column(DIFF), keys, self.texts, labels)
        return rows.with_fields(self.fields)


class ContentRows(_Keyed):
    """Documents of a collection at a time, with position (clock, seq) of the last update of their key."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, KEY, DOC)

    def clocks(self) -> list[int]:
        """Return the timestamps of the last updates."""
        clocks: list[int] = self.batch.column(CLOCK).to_pylist()
        return clocks

    def tuples(self) -> Iterator[tuple[int, int, bytes, str]]:
        """Yield the timestamp, sequence number, packed key and JSON text of each row."""
        return zip(*(column.to_pylist() for column in self.batch.columns), strict=True)


class NumberedRows(_Clocked, _Keyed):
    """Published documents of one tick, numbered in the order of processing.

    A negative number marks a document that is already combined, and stays separate from the previous document.
    """

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY, DOC, PARTITION, NUMBER)
    PROCESSED: ClassVar[tuple[str, ...]] = (NUMBER,)
    """Sort columns of the order of processing."""

    def processed(self) -> tuple[list[bytes], list[int], list[int]]:
        """Return keys, timestamps and numbers."""
        keys, clocks, numbers = (self.batch.column(name).to_pylist() for name in (KEY, CLOCK, NUMBER))
        return keys, clocks, numbers

    def written(self) -> WrittenRows:
        """Return rows to write, for documents that are unique by key and tick."""
        clocks, keys, texts, labels = (self.batch.column(name) for name in (CLOCK, KEY, DOC, PARTITION))
        rows = WrittenRows.of(clocks, np.zeros(len(self), dtype=np.int32), keys, texts, labels)
        return rows.with_fields(self.fields)


class PublishedRows(NumberedRows):
    """Published documents between shuffles.

    The last five columns are the position in the order of processing: the position of the causing source document, and
    a running number.
    """

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY, DOC, PARTITION, ADJUSTED, TRANSFORM, SEQ, SOURCE_KEY, NUMBER)
    PROCESSED = (ADJUSTED, TRANSFORM, SEQ, SOURCE_KEY, NUMBER)


class KeyRows(_Clocked):
    """Keys that one shard has published, once per tick, with their timestamps of publication."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY)


def _ones(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.int8)


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
            f"'{collection}' has {counted(-count, 'retraction')} of a document without an insertion: {text[:500]}",
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
