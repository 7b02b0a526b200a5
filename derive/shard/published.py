"""What lambdas published: documents with their clocks and keys, as a list or as columns.

Sessions that publish documents one by one and those that publish columns meet here. Whoever combines published
documents asks for few of them: most are the only ones of their key and tick, and only their texts are written.
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
from derive.storage.segments.column_texts import write_columns
from derive.storage.segments.columns import compile_column_fields, compile_fields, fields_type, typed_columns
from derive.storage.segments.partition import NO_PARTITION, compile_column_labels, compile_label
from derive.storage.segments.rows import FIELDS, PublishedRows
from derive.storage.segments.texts import write_texts

_SAMPLE = 17
"""Of how many documents one is measured."""

_OBJECT_BYTES, _TEXT_BYTES = 400, 4
"""About how many bytes a document takes in memory, and for each byte of its JSON text."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents that a session published one by one."""

    listed: Sequence[Document]

    def __len__(self) -> int:
        return len(self.listed)

    def documents(self) -> Sequence[Document]:
        """The documents themselves."""
        return self.listed

    def slice(self, begin: int, end: int) -> Documents:
        """Documents from one number up to another."""
        return Documents(self.listed[begin:end])

    def take(self, numbers: np.ndarray) -> Documents:
        """The documents of these numbers, in the order of these."""
        return Documents([self.listed[number] for number in numbers.tolist()])


Content: TypeAlias = Documents | Columns
"""Documents, in order."""


class RowMaker:
    """Makes what segments hold of documents.

    Args:
        collection: what is written.
    """

    def __init__(self, collection: CollectionSpec) -> None:
        self._has_partitions = bool(collection.partitions)
        self._label, self._column_labels = compile_label(collection), compile_column_labels(collection)
        self._fields, self._column_fields = compile_fields(collection), compile_column_fields(collection)

    def texts(self, content: Content) -> pa.StringArray:
        """A column of JSON texts."""
        return write_columns(content) if isinstance(content, Columns) else write_texts(content.listed)

    def labels(self, content: Content) -> pa.StringArray:
        """A column of the labels of logical partitions."""
        if not self._has_partitions:
            return pa.repeat(pa.scalar(NO_PARTITION), len(content))
        return pa.array(self.listed_labels(content), pa.string())

    def listed_labels(self, content: Content) -> list[str]:
        """Labels of logical partitions."""
        if isinstance(content, Columns):
            return self._column_labels(content)
        return list(map(self._label, content.listed))

    def fields(self, content: Content) -> pa.StructArray | None:
        """Typed columns as one array, if the collection has such."""
        return self._column_fields(content) if isinstance(content, Columns) else self._fields(content.listed)


def published_schema(collection: CollectionSpec) -> pa.Schema:
    """The columns of published documents between shuffles, typed ones of the collection among them."""
    typed = typed_columns(collection)
    fields = [pa.field(FIELDS, fields_type([column.kind for column in typed]))] if typed else []
    return pa.schema([*PublishedRows.SCHEMA, *fields])


Keys: TypeAlias = list[bytes] | pa.Array
"""Packed keys: few of them as a list, many as an Arrow array."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Documents of one tick that were published and combined; the columns run in parallel.

    Attributes:
        clocks: of publication.
        seqs: numbers among documents of one clock and key.
        keys: packed keys; or what packs them of the content.
        content: the documents.
        labels: of their logical partitions.
    """

    clocks: list[int]
    seqs: list[int]
    keys: list[bytes] | KeyColumns
    content: Content
    labels: list[str]

    @property
    def key_list(self) -> list[bytes]:
        """Packed keys."""
        return _listed(_packed(self.keys, self.content))


@dataclass(frozen=True, slots=True)
class Published:
    """Some of what lambdas published for one batch, in order; causes, clocks, keys and content run in parallel.

    Attributes:
        causes: index in the batch of the source document that caused each.
        clocks: int64 array of clocks of publication, which ascend.
        keys: packed keys; or what packs them of the content, where it is known that all are different.
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
        """Packed keys, as a list."""
        return _listed(_packed(self.keys, self.content))

    @property
    def key_array(self) -> pa.BinaryArray:
        """Packed keys, as an Arrow array."""
        keys = _packed(self.keys, self.content)
        return pa.array(keys, pa.binary()) if isinstance(keys, list) else keys

    @property
    def weight(self) -> int:
        """About how many bytes the documents take in memory."""
        sample = self.content.take(np.arange(0, len(self), _SAMPLE)).documents()
        return weigh(sample, 1) * len(self) // max(len(sample), 1)

    def slice(self, begin: int, end: int) -> Published:
        """What was published from one number up to another."""
        if begin == 0 and end == len(self):
            return self
        keys = self.keys if isinstance(self.keys, KeyColumns) else self.keys[begin:end]
        return Published(self.causes[begin:end], self.clocks[begin:end], keys, self.content.slice(begin, end))

    def take(self, numbers: np.ndarray) -> Published:
        """What was published under these numbers, in the order of these."""
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
    """About how many bytes documents take in memory, of which one in `step` is measured."""
    sample = documents[::step]
    text = len(dump_exact(sample)) if sample else 0
    return len(documents) * _OBJECT_BYTES + _TEXT_BYTES * text * len(documents) // max(len(sample), 1)
