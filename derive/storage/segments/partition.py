"""Logical partitions as Hive-style folders, so that other tools can read a collection without us.

The metadata database keeps a partition's exact values; the folder name is for people and for DuckDB, pandas or Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from derive.protocol.specs import JSON

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and its successors write for a null partition value."""

_NAME_MAX = 200


_OWN = "@"
"""Ends the folder that is one collection's own: no name holds it, so no other collection's folder is below."""


def collection_folder(name: str) -> str:
    """Folder of a collection, relative to the data folder; nothing of another collection is ever below it."""
    return former_folder(name) + _OWN


def former_folder(name: str) -> str:
    """Where a collection's folder was up to format 4: that of `acme/orders/daily` was below that of `acme/orders`."""
    return "/".join(["collections", *(_safe(token) for token in name.split("/"))])


def partition_folder(fields: Sequence[str], values: Sequence[JSON]) -> str:
    """Folder of a logical partition below its collection's, such as `outcome=approve`; empty for none."""
    return "/".join(f"{_safe(field)}={_value(value)}" for field, value in zip(fields, values, strict=True))


def _value(value: JSON) -> str:
    if value is None:
        return HIVE_NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _safe(str(value))
    return text.replace("_", "%5F") if text == HIVE_NULL else text


def _safe(text: str) -> str:
    """Percent-encode what a path or a Hive reader would take for something else; no two texts become one name."""
    encoded = quote(text, safe=" +@,;()!") if text not in (".", "..") else text.replace(".", "%2E")
    if len(encoded) <= _NAME_MAX:
        return encoded
    return encoded[:_NAME_MAX] + "~" + hashlib.sha256(text.encode()).hexdigest()[:16]
