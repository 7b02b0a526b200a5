"""Rows of a table held against the documents in them: what the typed columns beside a document must have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

from derive.document.pointer import MISSING, compile_pointer
from derive.protocol.collection import CollectionSpec

WHOLE = frozenset({"flow_document", "flow_published_at"})
"""Columns that are of no location of the document."""


def differences(spec: CollectionSpec, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What is wrong with rows, each of which is its document's text and the values of its columns.

    Args:
        spec: the collection; columns have the names of its fields.
        rows: of a table.
    """
    getters = {projection.field: (compile_pointer(projection.pointer), projection) for projection in spec.projections}
    reported = []
    for text, columns in rows:
        document = orjson.loads(text)
        for name, stored in columns.items():
            if name in WHOLE:
                continue
            get, projection = getters[name]
            value = get(document)
            if value is MISSING:
                value = projection.default[0] if projection.default else None
            if not _is_same(stored, value):
                reported.append(f"column '{name}' has {stored!r}, and its document {text}")
    return reported


def _is_same(stored: Any, value: Any) -> bool:
    if value is None or stored is None:
        return stored is value or (value is None and stored == "null")  # of a key, null is JSON text
    if isinstance(value, bool):
        return bool(stored) is value
    if isinstance(value, int | float):
        return Decimal(str(stored)) == Decimal(str(value))
    if isinstance(value, dict | list):
        return bool((orjson.loads(stored) if isinstance(stored, str) else stored) == value)
    if isinstance(stored, datetime):
        return (stored if stored.tzinfo else stored.replace(tzinfo=UTC)) == datetime.fromisoformat(value)
    return str(stored) in (value, orjson.dumps(value).decode())
