"""Encoding of plans, sources and rows: equal values have equal bytes, and decoding creates only such values.

A value is MessagePack. A list begins with a tag: the name of a class whose fields follow, or the kind of list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import ormsgpack

from derive import position
from derive.algebra import expression, relation, types
from derive.algebra.types import Row
from derive.errors import ProtocolError
from derive.protocol import collection
from derive.schema import projection
from derive.storage import table

_TUPLE, _LIST, _SET, _INTEGER = "t", "l", "s", "i"


def _classes(*modules: ModuleType) -> dict[str, type]:
    """Return the classes defined in some modules, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (is_dataclass(value) or issubclass(value, Enum))
    }


_CLASSES = _classes(expression, relation, types, collection, projection, table, position)
"""Classes of encoded values; decoding creates no others."""

_FIELDS = {cls: tuple(item.name for item in fields(cls)) for cls in _CLASSES.values() if is_dataclass(cls)}


def encode(value: object) -> bytes:
    """Encode a value of the algebra, a source, or data."""
    return ormsgpack.packb(_encoded(value))


def decode(data: bytes) -> Any:
    """Decode a value of `encode`.

    Raises:
        ProtocolError: the bytes are malformed.
    """
    try:
        return _decoded(ormsgpack.unpackb(data))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ProtocolError(f"what was sent is no plan: {error}") from error


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Encode rows."""
    return ormsgpack.packb(rows)


def decode_rows(data: bytes) -> list[Row]:
    """Decode rows of `encode_rows`.

    Raises:
        ProtocolError: the bytes are malformed.
    """
    try:
        return list(map(tuple, ormsgpack.unpackb(data)))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"what was sent is no rows: {error}") from error


def _encoded(value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else [_INTEGER, str(value)]
    if isinstance(value, Enum):
        return [type(value).__name__, value.value]
    if type(value) in _FIELDS:
        return [type(value).__name__, *(_encoded(getattr(value, name)) for name in _FIELDS[type(value)])]
    if isinstance(value, tuple):
        return [_TUPLE, *map(_encoded, value)]
    if isinstance(value, list):
        return [_LIST, *map(_encoded, value)]
    if isinstance(value, frozenset):
        return [_SET, *sorted(map(_encoded, value))]
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    raise TypeError(f"a {type(value).__name__} is not sent")


def _decoded(value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    tag, *parts = value
    if tag == _TUPLE:
        return tuple(map(_decoded, parts))
    if tag == _LIST:
        return list(map(_decoded, parts))
    if tag == _SET:
        return frozenset(map(_decoded, parts))
    if tag == _INTEGER:
        return int(parts[0])
    return _CLASSES[tag](*map(_decoded, parts))
