"""Labels: which logical partition a document belongs to."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from derive.document.pointer import MISSING, compile_pointer
from derive.protocol.specs import JSON, CollectionSpec, Document
from derive.storage.segment import NO_PARTITION


def compile_label(collection: CollectionSpec) -> Callable[[Document], str]:
    """A function from a document to its logical partition: a JSON array of values, in field order."""
    if not collection.partitions:
        return lambda _: NO_PARTITION
    getters = [(compile_pointer(each.pointer), each.default) for each in collection.partitions]
    labels: dict[tuple[tuple[type, JSON], ...], str] = {}

    def label(document: Document) -> str:
        values = []
        for get, default in getters:
            value = get(document)
            values.append((default[0] if default else None) if value is MISSING else value)
        # The type is part of the cache's key because Python takes True for 1.
        known = tuple((type(value), value) for value in values)
        found = labels.get(known)
        if found is None:
            found = labels[known] = orjson.dumps(values).decode()
        return found

    return label
