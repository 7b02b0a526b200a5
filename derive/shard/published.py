"""Publications of lambdas: documents with timestamps and keys, as a list or as columns.

Some sessions publish single documents, and others publish columns; this module has one interface for both. The combiner
inspects few documents: most documents are unique by key and tick, and only their texts are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from derive.document.columns import Columns
from derive.document.exact import dump_exact
from derive.document.key_columns import KeyColumns
from derive.protocol.derive import Causes
from derive.protocol.specs import CollectionSpec, Document
from derive.storage.segments.columns import compile_column_fields, compile_fields, fields_type, typed_columns
from derive.storage.segments.partition import NO_PARTITION, compile_column_labels, compile_label
from derive.storage.segments.rows import FIELDS, PublishedRows
from derive.storage.segments.texts import write_columns, write_texts

_SAMPLE = 17
"""Sampling interval for the size of documents."""

_OBJECT_BYTES, _TEXT_BYTES = 400, 4
"""Approximate memory of a document in bytes, and additional bytes per byte of its JSON text."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents that a session published one by one."""

    listed: Sequence[Document]

    def __len__(self) -> int:
        return len(self.listed)

    def documents(self) -> Sequence[Document]:
        """Return the documents."""
        return self.listed

    def slice(self, begin: int, end: int) -> Documents:
        """Return the documents with indices in `[begin, end)`."""
        return Documents(self.listed[begin:end])

    def take(self, numbers: np.ndarray) -> Documents:
        """Return the documents with these indices, in their order."""
        return Documents([self.listed[number] for number in numbers.tolist()])


Content: TypeAlias = Documents | Columns
"""Documents, in order."""


class RowMaker:
    """Converts documents to the columns of a segment.

    Args:
        collection: the collection.
    """

    def __init__(self, collection: CollectionSpec) -> None:
        self._has_partitions = bool(collection.partitions)
        self._label, self._column_labels = compile_label(collection), compile_column_labels(collection)
        self._fields, self._column_fields = compile_fields(collection), compile_column_fields(collection)

    def texts(self, content: Content) -> pa.StringArray:
        """Return a column of JSON texts."""
        return write_columns(content) if isinstance(content, Columns) else write_texts(content.listed)

    def labels(self, content: Content) -> pa.StringArray:
        """Return a column of the labels of logical partitions."""
        if not self._has_partitions:
            return pa.repeat(pa.scalar(NO_PARTITION), len(content))
        return pa.array(self.listed_labels(content), pa.string())

    def listed_labels(self, content: Content) -> list[str]:
        """Return the labels of logical partitions."""
        if isinstance(content, Columns):
            return self._column_labels(content)
        return list(map(self._label, content.listed))

    def fields(self, content: Content) -> pa.StructArray | None:
        """Return the typed columns as one array; None if the collection has none."""
        return self._column_fields(content) if isinstance(content, Columns) else self._fields(content.listed)


def published_schema(collection: CollectionSpec) -> pa.Schema:
    """Return the schema of published documents between shuffles, including the collection's typed columns."""
    typed = typed_columns(collection)
    fields = [pa.field(FIELDS, fields_type([column.kind for column in typed]))] if typed else []
    return pa.schema([*PublishedRows.SCHEMA, *fields])


Keys: TypeAlias = list[bytes] | pa.Array
"""Packed keys: a list if they are few, an Arrow array if they are many."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Combined documents of one tick; the columns are parallel.

    Attributes:
        clocks: timestamps of publication.
        seqs: sequence numbers among documents of one timestamp and key.
        keys: packed keys, or their packer.
        content: the documents.
        labels: labels of their logical partitions.
    """

    clocks: list[int]
    seqs: list[int]
    keys: list[bytes] | KeyColumns
    content: Content
    labels: list[str]

    @property
    def key_list(self) -> list[bytes]:
        """Return packed keys."""
        return _listed(_packed(self.keys, self.content))


@dataclass(frozen=True, slots=True)
class Published:
    """A part of a batch's publications, in order; causes, timestamps, keys and content are parallel.

    Attributes:
        causes: index in the batch of the source document that caused each publication.
        clocks: ascending timestamps of publication, an int64 array.
        keys: packed keys, or their packer if they are known to be distinct.
        content: the documents, valid under the write schema.
    """

    causes: Causes
    clocks: np.ndarray
    keys: Keys | KeyColumns
    content: Content

    def __len__(self) -> int:
        return len(self.causes)

    @property
    def key_list(self) -> list[bytes]:
        """Return packed keys, as a list."""
        return _listed(_packed(self.keys, self.content))

    @property
    def key_array(self) -> pa.BinaryArray:
        """Return packed keys, as an Arrow array."""
        keys = _packed(self.keys, self.content)
        return pa.array(keys, pa.binary()) if isinstance(keys, list) else keys

    @property
    def weight(self) -> int:
        """Return the approximate memory of the documents as objects, bytes."""
        if isinstance(self.content, Columns) and (size := self.content.text_bytes()) is not None:
            return len(self) * _OBJECT_BYTES + _TEXT_BYTES * size
        sample = self.content.take(np.arange(0, len(self), _SAMPLE)).documents()
        return weigh(sample, 1) * len(self) // max(len(sample), 1)

    def slice(self, begin: int, end: int) -> Published:
        """Return the publications with indices in `[begin, end)`."""
        if begin == 0 and end == len(self):
            return self
        keys = self.keys if isinstance(self.keys, KeyColumns) else self.keys[begin:end]
        return Published(self.causes[begin:end], self.clocks[begin:end], keys, self.content.slice(begin, end))

    def take(self, numbers: np.ndarray) -> Published:
        """Return the publications with these indices, in their order."""
        keys = self.key_array.take(pa.array(numbers))
        return Published(np.asarray(self.causes)[numbers], self.clocks[numbers], keys, self.content.take(numbers))


def _packed(keys: Keys | KeyColumns, content: Content) -> Keys:
    if isinstance(keys, KeyColumns):
        assert isinstance(content, Columns)
        return keys.pack(content)
    return keys


def _listed(keys: Keys) -> list[bytes]:
    listed: list[bytes] = keys if isinstance(keys, list) else keys.to_pylist()
    return listed


def weigh(documents: Sequence[Document], step: int = _SAMPLE) -> int:
    """Return the approximate memory of documents in bytes, from a sample of one document in `step`."""
    sample = documents[::step]
    text = len(dump_exact(sample)) if sample else 0
    return len(documents) * _OBJECT_BYTES + _TEXT_BYTES * text * len(documents) // max(len(sample), 1)
