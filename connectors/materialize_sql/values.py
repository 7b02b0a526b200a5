"""Converts values to values of columns, exactly; a value without an exact conversion is refused.

Packed values are JSON values, with objects and arrays as bytes of their JSON text. A value that does not fit the kind
of a column is refused with its row, so no value is rounded, cut off or stored as another value. Columns are converted
as a whole, so that types are checked once for all values, if possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, TypeAlias

from connectors.kit.requests import Value
from connectors.materialize_sql.column import Kind
from derive.document.exact import dump_exact

Encoder: TypeAlias = Callable[[Sequence[Value]], Sequence[Any]]
"""Function from a column's packed values to values of the database; it raises `Unfit`."""

_NONE = type(None)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_INTEGER = re.compile(r"(-?\d{1,4300})(\.0+)?", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,4})?|NaN|-?Infinity", re.ASCII)
_DATE = re.compile(r"(?!0000)\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?!0000)\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:[0-5]\d(\.\d{1,6}0*)?([Zz]|[+-](0\d|1[0-5]):\d\d)", re.ASCII
)
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|([+-])(\d\d):(\d\d))", re.ASCII)
_LEAP_SECOND, _LAST_HOUR, _LAST_MINUTE = 60, 23, 59
_PER_SECOND = 1_000_000
_SHOWN = 80


class Unfit(Exception):
    """A value that its column cannot hold.

    Attributes:
        row: index of the value among the values that are encoded together.
        reason: reason of the refusal.
    """

    def __init__(self, row: int, value: object, reason: str) -> None:
        text = repr(value)
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        super().__init__(f"{shown} {reason}")
        self.row = row
        self.reason = f"{shown} {reason}"


def encoder(kind: Kind) -> Encoder:
    """Return the encoder of a kind, whose results are booleans, integers, floats, texts and None."""
    return _ENCODERS[kind]


def unfit(values: Sequence[Value], fits: Callable[[Any], bool], reason: str) -> Unfit:
    """Return the fault of the first value that does not fit; None always fits.

    Args:
        values: values, at least one of which does not fit.
        fits: function that returns whether a value fits.
        reason: reason of the refusal.
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


_booleans = _typed(bool, reason="is not a boolean")
_numbers = _typed(int, float, reason="is not a number")
_texts = _typed(str, reason="is not a string")


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
        raise unfit(values, lambda value: type(value) in (int, str, float), "is not an integer")
    return [_integer(row, value) for row, value in enumerate(values)]


def _integer(row: int, value: Any) -> int | None:
    kind = type(value)
    written = _INTEGER.fullmatch(value) if kind is str else None
    if written:
        return int(written[1])
    if kind is str or (kind is float and not value.is_integer()):
        raise Unfit(row, value, "is not an integer")
    return None if value is None else int(value)


def _decimals(values: Sequence[Value]) -> Sequence[Any]:
    if not {int, float, str, _NONE}.issuperset(map(type, values)):
        raise unfit(values, lambda value: type(value) in (int, float, str), "is not a number")
    texts = [value if value is None or type(value) is str else repr(value) for value in values]
    if not all(text is None or _DECIMAL.fullmatch(text) for text in texts):
        raise unfit(texts, lambda text: _DECIMAL.fullmatch(text) is not None, "is not a number")
    return texts


def _matching(pattern: re.Pattern[str], reason: str) -> Encoder:
    def encode(values: Sequence[Value]) -> Sequence[Any]:
        texts = _texts(values)
        if None in map(pattern.fullmatch, filter(_is_there, texts)):
            raise unfit(texts, lambda text: pattern.fullmatch(text) is not None, reason)
        return texts

    return encode


def _timestamps(values: Sequence[Value]) -> Sequence[Any]:
    """Return timestamps that databases accept.

    A timestamp with more parts than a database reads is converted to UTC.
    """
    texts = _texts(values)
    if None not in map(_TIMESTAMP.fullmatch, filter(_is_there, texts)):
        return texts
    return [
        text if text is None or _TIMESTAMP.fullmatch(text) else _in_utc(row, text) for row, text in enumerate(texts)
    ]


def _in_utc(row: int, text: Any) -> str:
    """Return a timestamp in UTC, rounded to microseconds as in PostgreSQL; a leap second is 0 s of the next minute."""
    written = _DATE_TIME.fullmatch(text)
    if written is None:
        raise Unfit(row, text, "is not an RFC 3339 time")
    if text.startswith("0000"):
        raise Unfit(row, text, "has the year 0000, but a timestamp has a year from 1 to 9999")
    day, hour, minute, second, fraction, _, sign, *offset = written.groups()
    try:
        begin = datetime.fromisoformat(f"{day}T{hour}:{minute}:00")
        hours, minutes = (int(part or 0) for part in offset)
        if int(second) > _LEAP_SECOND or hours > _LAST_HOUR or minutes > _LAST_MINUTE:
            raise ValueError
    except ValueError:
        raise Unfit(row, text, "is not an RFC 3339 time") from None
    micros = int((Decimal(f"0{fraction or '.0'}") * _PER_SECOND).to_integral_value(ROUND_HALF_EVEN))
    ahead = timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
    try:
        timestamp = begin + (timedelta(seconds=int(second), microseconds=micros) - ahead)
    except OverflowError:
        raise Unfit(row, text, "is beyond the years 1 to 9999 in UTC") from None
    return f"{timestamp.isoformat(timespec='microseconds')}Z"


def _is_there(value: Any) -> bool:
    return value is not None


def _jsons(values: Sequence[Value]) -> Sequence[Any]:
    return list(map(json_text, values))


def json_text(value: Value) -> str | None:
    """Return the JSON text of a packed value; None for null, which is NULL in the column."""
    if value is None:
        return None
    return value.decode() if type(value) is bytes else dump_exact(value).decode()


def key_text(value: Value) -> str:
    """Return the JSON text of a component of a key, with the text `null` for null."""
    return json_text(value) or "null"


_ENCODERS: dict[Kind, Encoder] = {
    Kind.BOOLEAN: _booleans,
    Kind.BIGINT: _bigints,
    Kind.INTEGER: _any_integers,
    Kind.NUMBER: _numbers,
    Kind.DECIMAL: _decimals,
    Kind.TEXT: _texts,
    Kind.DATE: _matching(_DATE, "is not a date of the years 1 to 9999"),
    Kind.TIMESTAMP: _timestamps,
    Kind.JSON: _jsons,
}
