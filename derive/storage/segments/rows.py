"""Row layouts: documents as columns, on their way from a segment through a shard into another segment.

| layout | where |
|---|---|
| `StoredRows` | in a segment |
| `ReadRows` | read from segments, on their way to a lambda, in the order of processing |
| `PublishedRows` | published by a lambda, on their way to the owner of their key |
| `WrittenRows` | combined per tick and key, on their way into a segment |
| `ContentRows` | what a collection holds at a time, on their way to whoever reads it |

A layout names the columns of a record batch and gives access to them, so that nobody else needs to know their names and
numbers. All of it costs something per batch and nothing per document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from derive.protocol.specs import Document
from derive.storage.segments.order import sort_batch
from derive.storage.segments.texts import parse_texts, write_texts

Column: TypeAlias = Any
"""Values of one column: a sequence, a NumPy array or an Arrow array."""

CLOCK, ADJUSTED, TRANSFORM, SEQ, NUMBER = "clock", "adjusted", "transform", "seq", "number"
DIFF, KEY, SOURCE_KEY, DOC, PARTITION = "diff", "key", "source_key", "doc", "partition"
FIELDS, UNCHECKED = "fields", "unchecked"
"""What rows may have beyond their layout: the typed columns of their documents, as one array (see
`derive.storage.segments.columns`); and whether each document has yet to be validated by whoever reads it."""

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
        """Rows of all columns of the layout, in their order."""
        arrays = [_array(column, field.type) for column, field in zip(columns, cls.SCHEMA, strict=True)]
        return cls(pa.RecordBatch.from_arrays(arrays, schema=cls.SCHEMA))

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return int(self.batch.nbytes)

    @property
    def fields(self) -> pa.StructArray | None:
        """Typed columns of the documents; None if the rows do not have them."""
        return self.batch.column(FIELDS) if self.batch.schema.get_field_index(FIELDS) >= 0 else None

    def with_fields(self, fields: pa.StructArray | None) -> Self:
        """These rows, which have none, with the typed columns of their documents; None for none."""
        return self if fields is None else type(self)(self.batch.append_column(FIELDS, fields))

    def slice(self, begin: int, count: int | None = None) -> Self:
        """So many rows from one on, or all behind it, without a copy."""
        return type(self)(self.batch.slice(begin, count))

    def take(self, indices: Column) -> Self:
        """The rows of these numbers, in the order of these."""
        return type(self)(self.batch.take(_array(indices, pa.int64())))

    def sorted(self, order: Sequence[str]) -> Self:
        """These rows, by some columns."""
        return type(self)(sort_batch(self.batch, order))

    def filter(self, mask: Column) -> Self:
        """The rows for which the mask is true."""
        return type(self)(self.batch.filter(_array(mask, pa.bool_())))


R = TypeVar("R", bound=Rows)


def concat(parts: Sequence[R]) -> R:
    """The rows of several parts, of which there is at least one, behind one another."""
    return type(parts[0])(pa.concat_batches([part.batch for part in parts]))


class _Keys(Rows):
    """Rows with packed keys."""

    __slots__ = ()

    @property
    def keys(self) -> pa.Array:
        """Packed keys, as an Arrow array."""
        return self.batch.column(KEY)


class _Clocked(_Keys):
    """Rows with packed keys and clocks of publication."""

    __slots__ = ()

    @property
    def clocks(self) -> np.ndarray:
        """Clocks."""
        clocks: np.ndarray = self.batch.column(CLOCK).to_numpy()
        return clocks


class _Keyed(_Keys):
    """Rows with the packed key and the JSON text of a document."""

    __slots__ = ()

    @property
    def texts(self) -> pa.Array:
        """JSON texts of the documents, as an Arrow array."""
        return self.batch.column(DOC)

    def documents(self) -> list[Document]:
        """The documents, parsed; each call parses them again."""
        return parse_texts(self.texts)

    def pairs(self) -> Iterator[tuple[bytes, Document]]:
        """Packed key and document of each row."""
        return zip(self.keys.to_pylist(), self.documents(), strict=True)


class _Changes(_Keyed):
    """Rows that add their documents, or take them away."""

    __slots__ = ()

    @property
    def diffs(self) -> np.ndarray:
        """How often each row adds its document; -1 takes it away once."""
        diffs: np.ndarray = self.batch.column(DIFF).to_numpy()
        return diffs


class StoredRows(_Clocked, _Changes):
    """Rows of a segment: publication time, number among equal clocks and keys, diff, packed key, JSON text."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, DIFF, KEY, DOC)
    ORDER: ClassVar[tuple[str, ...]] = (CLOCK, SEQ, KEY)
    """The columns that order documents as they are stored."""

    def sort_key(self, row: int) -> tuple[int, int, bytes]:
        """Values of the columns by which one of the rows is ordered."""
        clock, seq, key = (self.batch.column(name)[row].as_py() for name in self.ORDER)
        return clock, seq, key

    def sort_keys(self) -> Iterator[tuple[int, int, bytes]]:
        """Values of the columns by which rows are ordered, of each row."""
        return zip(*(self.batch.column(name).to_pylist() for name in self.ORDER), strict=True)


class WrittenRows(StoredRows):
    """Rows that a segment is to hold, with the label of each one's logical partition."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, DIFF, KEY, DOC, PARTITION)

    @staticmethod
    def of(clocks: Column, seqs: Column, keys: Column, texts: pa.Array, labels: Column) -> WrittenRows:
        """Rows that each add one document."""
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
        """Rows that each add one document, sorted as they are stored."""
        return WrittenRows.of(clocks, seqs, keys, write_texts(documents), labels).with_fields(fields).in_order()

    def in_order(self) -> WrittenRows:
        """These rows, sorted as they are stored."""
        return self if bool(np.all(np.diff(self.clocks) > 0)) else self.sorted(self.ORDER)

    @property
    def labels(self) -> pa.Array:
        """Labels of the logical partitions, as an Arrow array."""
        return self.batch.column(PARTITION)

    def published_keys(self) -> KeyRows:
        """Their keys, each once for each tick: documents of one key and tick are numbered from 0 on."""
        seqs = self.batch.column(SEQ).to_numpy()
        firsts = self if not seqs.any() else self.filter(seqs == 0)
        return KeyRows(firsts.batch.select(KeyRows.SCHEMA.names))

    def stored(self) -> StoredRows:
        """What a segment holds of these rows."""
        return StoredRows(self.batch.select(StoredRows.SCHEMA.names)).with_fields(self.fields)

    def at(self, clock: int) -> WrittenRows:
        """These rows, all of one clock."""
        clocks = pa.array(np.full(len(self), clock))
        return WrittenRows(self.batch.set_column(0, self.SCHEMA.field(CLOCK), clocks))

    def lists(self) -> tuple[list[int], list[int], list[bytes], list[Document], list[str]]:
        """Clocks, seqs, keys, documents and labels."""
        clocks, seqs, keys, labels = (self.batch.column(name).to_pylist() for name in (CLOCK, SEQ, KEY, PARTITION))
        return clocks, seqs, keys, self.documents(), labels


class ReadRows(_Changes):
    """Source documents on their way to a lambda, by adjusted clock, index of the transform, seq and packed key.

    Where no transform reads them, the adjusted clock is the clock.
    """

    __slots__ = ()
    SCHEMA = pa.schema([*_schema(ADJUSTED, TRANSFORM, SEQ, KEY, DIFF), pa.field(DOC, _TYPES[DOC])])
    ORDER: ClassVar[tuple[str, ...]] = (ADJUSTED, TRANSFORM, SEQ, KEY)
    """The columns that order documents for lambdas (law L4)."""

    STORED_ORDER: ClassVar[tuple[str, ...]] = (ADJUSTED, SEQ, KEY)
    """The order of documents in a collection, where `transform` does not tell a transform."""

    STORED: ClassVar[tuple[str, ...]] = (CLOCK, SEQ, KEY, DIFF, DOC)
    """The columns of a segment that are read, beside typed ones."""

    @staticmethod
    def of(adjusted: Column, transforms: Column, seqs: Column, keys: Column, texts: Column) -> ReadRows:
        """Rows that each add one document."""
        return ReadRows.from_columns(adjusted, transforms, seqs, keys, _ones(len(texts)), texts)

    @staticmethod
    def of_stored(stored: pa.Table, transform: int, offset: int) -> list[ReadRows]:
        """What one transform reads of a segment.

        Args:
            stored: columns `STORED` of a segment, and what rows have beyond their layout; documents may be null.
            transform: its index.
            offset: microseconds from clock to adjusted clock.
        """
        clocks, *columns = (stored.column(name) for name in ReadRows.STORED)
        transforms = pa.array(np.full(stored.num_rows, transform, dtype=np.int16))
        table = pa.table([pa.array(clocks.to_numpy() + offset), transforms, *columns], schema=ReadRows.SCHEMA)
        for name in stored.schema.names[len(ReadRows.STORED) :]:
            table = table.append_column(stored.schema.field(name), stored.column(name))
        return [ReadRows(batch) for batch in table.to_batches()]

    def like(self, other: ReadRows) -> ReadRows:
        """These rows, which are as their layout has them, with what others have beyond it: nothing to read or check."""
        batch = self.batch
        for field in list(other.batch.schema)[len(self.SCHEMA) :]:
            is_mark = field.name == UNCHECKED
            more = pa.repeat(pa.scalar(False), len(self)) if is_mark else pa.nulls(len(self), field.type)
            batch = batch.append_column(field, more)
        return ReadRows(batch)

    @property
    def adjusted(self) -> np.ndarray:
        """Adjusted clocks."""
        adjusted: np.ndarray = self.batch.column(ADJUSTED).to_numpy()
        return adjusted

    @property
    def unchecked(self) -> np.ndarray | None:
        """Which documents have yet to be validated; None if that is not known."""
        if self.batch.schema.get_field_index(UNCHECKED) < 0:
            return None
        unchecked: np.ndarray = self.batch.column(UNCHECKED).to_numpy(zero_copy_only=False)
        return unchecked

    @property
    def transforms(self) -> np.ndarray:
        """Indexes of the transforms that read each document."""
        transforms: np.ndarray = self.batch.column(TRANSFORM).to_numpy()
        return transforms

    def lists(self) -> tuple[list[int], list[int], list[int], list[bytes]]:
        """Adjusted clocks, indexes of transforms, seqs and keys: the columns that order documents."""
        adjusted, transforms, seqs, keys = (self.batch.column(name).to_pylist() for name in self.ORDER)
        return adjusted, transforms, seqs, keys

    def tuples(self) -> Iterator[tuple[int, int, bytes, str]]:
        """Adjusted clock, seq, packed key and JSON text of each row."""
        return zip(*(self.batch.column(name).to_pylist() for name in (*self.STORED_ORDER, DOC)), strict=True)

    def sort_columns(self, indices: Column) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """The columns that order documents, of the rows of these numbers."""
        adjusted, transforms, seqs, keys = (self.batch.column(name).take(indices) for name in self.ORDER)
        return adjusted, transforms, seqs, keys

    def with_texts(self, texts: pa.Array) -> ReadRows:
        """These rows with other documents."""
        return ReadRows.from_columns(*(self.batch.column(name) for name in (*self.ORDER, DIFF)), texts)

    def written(self, label: str) -> WrittenRows:
        """Rows to write into one logical partition, with the adjusted clock for their clock."""
        clocks, seqs, keys = (self.batch.column(name) for name in self.STORED_ORDER)
        labels = pa.repeat(pa.scalar(label), len(self))
        rows = WrittenRows.from_columns(clocks, seqs, self.batch.column(DIFF), keys, self.texts, labels)
        return rows.with_fields(self.fields)


class ContentRows(_Keyed):
    """Documents of a collection at a time, with clock and seq of the last update of their key."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, SEQ, KEY, DOC)

    def clocks(self) -> list[int]:
        """Clocks of the last updates."""
        clocks: list[int] = self.batch.column(CLOCK).to_pylist()
        return clocks

    def tuples(self) -> Iterator[tuple[int, int, bytes, str]]:
        """Clock, seq, packed key and JSON text of each row."""
        return zip(*(column.to_pylist() for column in self.batch.columns), strict=True)


class NumberedRows(_Clocked, _Keyed):
    """Published documents of one tick, numbered in the order of processing.

    A document stays apart from the one before it where its number is negative: they are combined already.
    """

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY, DOC, PARTITION, NUMBER)
    PROCESSED: ClassVar[tuple[str, ...]] = (NUMBER,)
    """The columns that order documents as they are processed."""

    def processed(self) -> tuple[list[bytes], list[int], list[int]]:
        """Keys, clocks and numbers."""
        keys, clocks, numbers = (self.batch.column(name).to_pylist() for name in (KEY, CLOCK, NUMBER))
        return keys, clocks, numbers

    def written(self) -> WrittenRows:
        """Rows to write of documents that are the only ones of their key and tick."""
        clocks, keys, texts, labels = (self.batch.column(name) for name in (CLOCK, KEY, DOC, PARTITION))
        rows = WrittenRows.of(clocks, np.zeros(len(self), dtype=np.int32), keys, texts, labels)
        return rows.with_fields(self.fields)


class PublishedRows(NumberedRows):
    """Published documents between shuffles.

    The last five columns are their place in the order of processing: that of the source document that caused them, and
    a running number.
    """

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY, DOC, PARTITION, ADJUSTED, TRANSFORM, SEQ, SOURCE_KEY, NUMBER)
    PROCESSED = (ADJUSTED, TRANSFORM, SEQ, SOURCE_KEY, NUMBER)


class KeyRows(_Clocked):
    """Keys that one shard has published, each once for a tick, with their clocks of publication."""

    __slots__ = ()
    SCHEMA = _schema(CLOCK, KEY)


def _ones(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.int8)
