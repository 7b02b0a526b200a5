"""The order of `jsonb`: bytes that sort as PostgreSQL's btree sorts values.

Null comes before texts, then numbers, booleans, arrays and objects. Arrays and objects are ordered by their number of
members, then by their members, in the order of their keys: a key, then its value. A top-level empty array comes before
everything else.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from derive.functions.types.jsonb import Json, parsed_json
from derive.functions.types.numeric import numeric_of

_EMPTY_ARRAY, _SCALAR, _ARRAY_OF_ALL, _OBJECT_OF_ALL = (bytes([kind]) for kind in range(4))
_NULL, _TEXT, _NUMBER, _BOOLEAN, _ARRAY, _OBJECT = (bytes([kind]) for kind in range(1, 7))
_ZERO, _ESCAPED_ZERO, _END = b"\0", b"\0\xff", b"\0\0"
_COUNT_BYTES = 4


@lru_cache(maxsize=4096)
def jsonb_key(datum: str) -> bytes:
    """Return the bytes by which a datum of `jsonb` sorts; equal only for equal data."""
    value = parsed_json(datum)
    if isinstance(value, dict):
        return _OBJECT_OF_ALL + _members(value)
    if isinstance(value, list):
        return _ARRAY_OF_ALL + _elements(value) if value else _EMPTY_ARRAY
    return _SCALAR + _part(value)


def _part(value: Json) -> bytes:
    """Return the bytes of a nested value, or of a scalar."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        return _TEXT + _closed(value.encode())
    if isinstance(value, bool):
        return _BOOLEAN + bytes([value])
    if isinstance(value, list):
        return _ARRAY + _elements(value)
    return _OBJECT + _members(value) if isinstance(value, dict) else _NUMBER + _closed(numeric_of(Decimal(value)))


def _elements(value: list[Json]) -> bytes:
    return len(value).to_bytes(_COUNT_BYTES, "big") + b"".join(map(_part, value))


def _members(value: dict[str, Json]) -> bytes:
    keys = sorted((len(key.encode()), key.encode(), key) for key in value)
    members = b"".join(_closed(data) + _part(value[key]) for _, data, key in keys)
    return len(value).to_bytes(_COUNT_BYTES, "big") + members


def _closed(data: bytes) -> bytes:
    """Return prefix-free bytes in the same order."""
    return data.replace(_ZERO, _ESCAPED_ZERO) + _END
