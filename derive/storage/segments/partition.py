"""Logical partitions: the partition of a document, and the Hive-style folder of its segments.

A label, the JSON array of a partition's values in field order, identifies the partition in the metadata database.
People, and DuckDB, pandas or Spark, use the name of the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import orjson

from derive.document.columns import Columns
from derive.document.pointer import JSON, MISSING, compile_pointer, parse_pointer
from derive.protocol.specs import CollectionSpec, Document

if TYPE_CHECKING:
    import pyarrow as pa

MakeLabels: TypeAlias = "Callable[[Sequence[Document]], pa.StringArray]"
"""Function from documents to a column of their labels."""

MakeColumnLabels: TypeAlias = "Callable[[Columns], list[str]]"
"""Function from documents as columns to their labels."""

NO_PARTITION = "[]"
"""Label of all documents in a collection without logical partitions."""

FOLDER = "collections"
"""Folder of the segments of all collections."""

COMPACTED, INGESTED = "compact-", "ingest-"
"""Prefixes of the files of compaction and ingestion; the identifier of the capability follows `ingest-`."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Folder name of a null partition value in Hive's convention."""

_NAME_MAX = 200

_OWN = "@"
"""Suffix of a collection's folder; no collection name contains it, so the folder has no other collection."""


def compile_label(collection: CollectionSpec) -> Callable[[Document], str]:
    """Return a function from a document to the label of its logical partition."""
    if not collection.partitions:
        return lambda _: NO_PARTITION
    labels: dict[Any, str] = {}
    getters = [
        (compile_pointer(partition.pointer), partition.default[0] if partition.default else None)
        for partition in collection.partitions
    ]

    if len(getters) == 1:
        ((get_one, default_one),) = getters

        def label_of_one(document: Document) -> str:
            value = get_one(document)
            if value is MISSING:
                value = default_one
            text = labels.get((value, type(value)))
            if text is None:
                text = labels[value, type(value)] = orjson.dumps([value]).decode()
            return text

        return label_of_one

    def label(document: Document) -> str:
        values = [default if (value := get(document)) is MISSING else value for get, default in getters]
        # The type is part of the cache's key because Python's True equals 1.
        typed_values = (*values, *map(type, values))
        text = labels.get(typed_values)
        if text is None:
            text = labels[typed_values] = orjson.dumps(values).decode()
        return text

    return label


def compile_labels(collection: CollectionSpec) -> MakeLabels:
    """Return a function from documents to a column of their labels."""
    import pyarrow as pa

    if not collection.partitions:
        return lambda documents: pa.repeat(pa.scalar(NO_PARTITION), len(documents))
    label = compile_label(collection)
    return lambda documents: pa.array(list(map(label, documents)), pa.string())


def compile_column_labels(collection: CollectionSpec) -> MakeColumnLabels:
    """Return a function from documents as columns to their labels."""
    if not collection.partitions:
        return lambda columns: [NO_PARTITION] * len(columns)
    label = compile_label(collection)
    located = [(parse_pointer(partition.pointer), partition.default) for partition in collection.partitions]
    labels: dict[tuple[str, ...], str] = {}

    def of_columns(columns: Columns) -> list[str]:
        values = [column for item in located if (column := _text_column(columns, *item)) is not None]
        if len(values) < len(located):
            return list(map(label, columns.documents()))
        rows = list(zip(*values, strict=True))
        for row in set(rows) - labels.keys():
            labels[row] = orjson.dumps(row).decode()
        return list(map(labels.__getitem__, rows))

    return of_columns


def _text_column(columns: Columns, tokens: tuple[str, ...], default: tuple[JSON, ...]) -> Sequence[str] | None:
    """Return the values of a partition's field if all are texts; None otherwise.

    Equal values of other types have different labels.
    """
    values, kinds = columns.at(tokens)
    if type(MISSING) in kinds:
        values = [(*default, None)[0] if value is MISSING else value for value in values]
        kinds = frozenset(map(type, values))
    return values if kinds == {str} else None


def collection_folder(name: str) -> str:
    """Return the folder of a collection, relative to the data folder; the folder has files of no other collection."""
    return "/".join([FOLDER, *(_safe(token) for token in name.split("/"))]) + _OWN


def own_path(kind: str, task: str) -> str:
    """Return the folder of a task's files of one kind, such as `state`, relative to the data folder."""
    return f"{kind}/{collection_folder(task).partition('/')[2]}"


def partition_folder(fields: Sequence[str], values: Sequence[JSON]) -> str:
    """Return the folder of a logical partition in the collection's folder, such as `outcome=approve`; empty for none.

    >>> partition_folder(["outcome", "n"], ["approve", None])
    'outcome=approve/n=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(f"{_safe(field)}={_value(value)}" for field, value in zip(fields, values, strict=True))


def _value(value: JSON) -> str:
    if value is None:
        return HIVE_NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _safe(str(value))
    return text.replace("_", "%5F") if text == HIVE_NULL else text


def _safe(text: str) -> str:
    """Percent-encode characters with a meaning in paths or for Hive readers.

    Different texts have different encodings.
    """
    encoded = quote(text, safe=" +@,;()!") if text not in (".", "..") else text.replace(".", "%2E")
    if len(encoded) <= _NAME_MAX:
        return encoded
    return encoded[:_NAME_MAX] + "~" + hashlib.sha256(text.encode()).hexdigest()[:16]
