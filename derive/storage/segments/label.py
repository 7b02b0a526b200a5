"""Labels: which logical partition a document belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from derive.document.pointer import MISSING, compile_pointer
from derive.protocol.specs import CollectionSpec, Document
from derive.storage.segments.writer import NO_PARTITION

MakeLabels: TypeAlias = Callable[[Sequence[Document]], pa.StringArray]
"""From documents to a column of their labels."""


def compile_label(collection: CollectionSpec) -> Callable[[Document], str]:
    """A function from a document to its logical partition: a JSON array of values, in field order."""
    if not collection.partitions:
        return lambda _: NO_PARTITION
    labels: dict[Any, str] = {}
    getters = [
        (compile_pointer(each.pointer), each.default[0] if each.default else None) for each in collection.partitions
    ]

    def label(document: Document) -> str:
        values = [default if (value := get(document)) is MISSING else value for get, default in getters]
        # The type is part of the cache's key because Python takes True for 1.
        known = (*values, *map(type, values))
        found = labels.get(known)
        if found is None:
            found = labels[known] = orjson.dumps(values).decode()
        return found

    return label


def compile_labels(collection: CollectionSpec) -> MakeLabels:
    """A function from documents to a column of their labels."""
    if not collection.partitions:
        return lambda documents: pa.repeat(pa.scalar(NO_PARTITION), len(documents))
    label = compile_label(collection)
    return lambda documents: pa.array(list(map(label, documents)), pa.string())
