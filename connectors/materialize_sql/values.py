"""Values on their way into columns: exact, or not at all.

Packed values are those of JSON, with objects and arrays as the bytes of their JSON text. What a column's kind cannot
hold is refused with the row it is of, so that nothing is ever rounded, cut off or stored as something else. Columns
are looked at as a whole: what is said once of the types of all values need not be asked of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from connectors.kit.stored import Value
from connectors.materialize_sql.kind import Kind
from derive.document.exact import dump_exact

Encoder: TypeAlias = Callable[[Sequence[Value]], Sequence[Any]]
"""What makes of a column's packed values what the database is given; raises `Unfit`."""

_NONE = type(None)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_INTEGER = re.compile(r"(-?\d{1,4000})(\.0+)?", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,4})?|NaN|-?Infinity", re.ASCII)
_DATE = re.compile(r"(?!0000)\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"(?!0000)\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:[0-5]\d(\.\d{1,6}0*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_SHOWN = 80


class Unfit(Exception):
    """A value that its column cannot hold.

    Attributes:
        row: of the value, among those encoded together.
        reason: what is wrong with it.
    """

    def __init__(self, row: int, value: object, reason: str) -> None:
        text = repr(value)
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        super().__init__(f"{shown} {reason}")
        self.row = row
        self.reason = f"{shown} {reason}"


def encoder(kind: Kind) -> Encoder:
    """The encoder of a kind: booleans, integers, floats and texts come out, and None."""
    return _ENCODERS[kind]


def unfit(values: Sequence[Value], fits: Callable[[Any], bool], reason: str) -> Unfit:
    """The fault of the first value that does not fit; None fits always.

    Args:
        values: of which one at least does not fit.
        fits: whether a value does.
        reason: what is wrong with one that does not.
    """
    row = next(row for row, value in enumerate(values) if value is not None and not fits(value))
    return Unfit(row, values[row], reason)


def _typed(*types: type, reason: str) -> Encoder:
    allowed = frozenset((*types, _NONE))

    def encode(values: Sequence[Value]) -> Sequence[Any]:
        if not allowed.issuperset(map(type, values)):
            raise unfit(values, lambda value: type(value) in allowed, reason)
        return values

    return encode


_booleans = _typed(bool, reason="is no boolean")
_integers = _typed(int, reason="is no integer")
_numbers = _typed(int, float, reason="is no number")
_texts = _typed(str, reason="is no string")


def _bigints(values: Sequence[Value]) -> Sequence[Any]:
    integers = _any_integers(values)
    present = [value for value in integers if value is not None]
    if present and not _LEAST <= min(present) <= max(present) <= _MOST:
        raise unfit(integers, lambda value: _LEAST <= value <= _MOST, "does not fit 64 bits")
    return integers


def _any_integers(values: Sequence[Value]) -> Sequence[Any]:
    types = set(map(type, values))
    if types <= {int, _NONE}:
        return values
    if not types <= {int, str, float, _NONE}:
        raise unfit(values, lambda value: type(value) in (int, str, float), "is no integer")
    return [_integer(row, value) for row, value in enumerate(values)]


def _integer(row: int, value: Any) -> int | None:
    kind = type(value)
    written = _INTEGER.fullmatch(value) if kind is str else None
    if written:
        return int(written[1])
    if kind is str or (kind is float and not value.is_integer()):
        raise Unfit(row, value, "is no integer")
    return None if value is None else int(value)


def _decimals(values: Sequence[Value]) -> Sequence[Any]:
    if not {int, float, str, _NONE}.issuperset(map(type, values)):
        raise unfit(values, lambda value: type(value) in (int, float, str), "is no number")
    texts = [value if value is None or type(value) is str else repr(value) for value in values]
    if not all(text is None or _DECIMAL.fullmatch(text) for text in texts):
        raise unfit(texts, lambda text: _DECIMAL.fullmatch(text) is not None, "is no number")
    return texts


def _matching(pattern: re.Pattern[str], reason: str) -> Encoder:
    def encode(values: Sequence[Value]) -> Sequence[Any]:
        texts = _texts(values)
        if None in map(pattern.fullmatch, filter(_is_there, texts)):
            raise unfit(texts, lambda text: pattern.fullmatch(text) is not None, reason)
        return texts

    return encode


def _is_there(value: Any) -> bool:
    return value is not None


def _jsons(values: Sequence[Value]) -> Sequence[Any]:
    return list(map(json_text, values))


def json_text(value: Value) -> str | None:
    """The JSON text of a packed value; None of null, which is the column's own."""
    if value is None:
        return None
    return value.decode() if type(value) is bytes else dump_exact(value).decode()


def key_text(value: Value) -> str:
    """The JSON text of a component of a key, of which null is one."""
    return json_text(value) or "null"


_ENCODERS: dict[Kind, Encoder] = {
    Kind.BOOLEAN: _booleans,
    Kind.BIGINT: _bigints,
    Kind.INTEGER: _any_integers,
    Kind.NUMBER: _numbers,
    Kind.DECIMAL: _decimals,
    Kind.TEXT: _texts,
    Kind.DATE: _matching(_DATE, "is no date of the years 1 to 9999"),
    Kind.TIMESTAMP: _matching(_TIMESTAMP, "is no moment that has microseconds at most"),
    Kind.JSON: _jsons,
}
