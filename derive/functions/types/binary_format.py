"""Data in PostgreSQL's binary representation, as clients send and receive them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import array_of, elements_of
from derive.functions.types.datetime import (
    DATE_INFINITY,
    DAY,
    END_OF_TIMESTAMPS,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    INFINITY,
    LAST_DAY,
    days_of,
)
from derive.functions.types.double import double_datum, float_of
from derive.functions.types.interval import Interval, interval_datum, interval_of
from derive.functions.types.jsonb import jsonb_of_text
from derive.functions.types.numeric import EXACT, decimal_of, numeric_of, scale_of

_EPOCH_DAYS = days_of(2000, 1, 1)
_SHORT, _INT, _LONG, _DOUBLE = (struct.Struct(f">{code}") for code in "hiqd")
_NUMERIC_HEAD = struct.Struct(">hhHH")
_INTERVAL = struct.Struct(">qii")
_NUMERIC_NAN, _NUMERIC_INFINITY, _NUMERIC_MINUS_INFINITY, _NUMERIC_NEGATIVE = 0xC000, 0xD000, 0xF000, 0x4000
_INFINITY_SCALE = 32
"""The scale that PostgreSQL writes for infinities; it reads any."""
_INT_LEAST, _INT_MOST, _LONG_LEAST, _LONG_MOST = -1 << 31, (1 << 31) - 1, -1 << 63, (1 << 63) - 1
_JSONB_VERSION = b"\x01"
_ARRAY_HEAD, _DIMENSION = struct.Struct(">iiI"), struct.Struct(">ii")
_NO_ELEMENT = _INT.pack(-1)

_TEXT_OIDS = {18, 19, 1042, 1043}
"""Oids of types other than `text` whose values are text here."""


def read_binary(kind: Type, read: Callable[[bytes], Datum], data: bytes) -> Datum:
    """Return the datum of a type that a client sent, with a reader of the binary form.

    Raises:
        SqlError: 22P03, it is no value of the type; 22021, text is not UTF-8, or has a NUL.
    """
    try:
        return read(data)
    except UnicodeDecodeError as exc:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8"') from exc
    except (struct.error, ValueError, IndexError) as exc:
        raise _malformed(kind) from exc


def _malformed(kind: Type) -> SqlError:
    return SqlError("22P03", f"incorrect binary data format for type {kind.value}")


def integer_format(size: int) -> tuple[Callable[[bytes], int], Callable[[int], bytes]]:
    """Return the reader and the writer of integers of a size."""
    layout = {2: _SHORT, 4: _INT, 8: _LONG}[size]
    return (lambda data: int(layout.unpack(data)[0])), layout.pack


def binary_of_double(datum: float | str) -> bytes:
    """Return a double in binary form."""
    return _DOUBLE.pack(float_of(datum))


def double_of_binary(data: bytes) -> float | str:
    """Read a double from its binary form."""
    return double_datum(_DOUBLE.unpack(data)[0])


def binary_of_jsonb(datum: str) -> bytes:
    """Return JSON in binary form."""
    return _JSONB_VERSION + datum.encode()


def binary_of_numeric(datum: bytes, least_scale: int = 0) -> bytes:
    """Return a number in binary form, with at least `least_scale` digits after the decimal point."""
    number = decimal_of(datum)
    if not number.is_finite():
        if number.is_nan():
            return _NUMERIC_HEAD.pack(0, 0, _NUMERIC_NAN, 0)
        return _NUMERIC_HEAD.pack(0, 0, _NUMERIC_INFINITY if number > 0 else _NUMERIC_MINUS_INFINITY, _INFINITY_SCALE)
    scale = max(scale_of(number), least_scale)
    digits_behind = -(-scale // 4) * 4
    units = int(number.copy_abs().scaleb(digits_behind, EXACT))
    groups: list[int] = []
    while units:
        units, group = divmod(units, 10_000)
        groups.append(group)
    weight = len(groups) - digits_behind // 4 - 1
    while groups and not groups[0]:
        groups.pop(0)
    sign = _NUMERIC_NEGATIVE if number < 0 else 0
    head = _NUMERIC_HEAD.pack(len(groups), weight if groups else 0, sign, scale)
    return head + struct.pack(f">{len(groups)}h", *reversed(groups))


def numeric_of_binary(data: bytes) -> bytes:
    """Read a number from its binary form."""
    count, weight, sign, scale = _NUMERIC_HEAD.unpack_from(data)
    special = {
        _NUMERIC_NAN: "NaN",
        _NUMERIC_INFINITY: "Infinity",
        _NUMERIC_MINUS_INFINITY: "-Infinity",
    }.get(sign)
    if special is not None:
        return numeric_of(Decimal(special))
    groups = struct.unpack(f">{count}h", data[_NUMERIC_HEAD.size :])
    if sign not in {0, _NUMERIC_NEGATIVE} or scale > 16_383 or any(not 0 <= group < 10_000 for group in groups):
        raise _malformed(Type.NUMERIC)
    digits = "".join(f"{group:04}" for group in groups) or "0"
    number = Decimal(f"{'-' if sign else ''}{digits}E{4 * (weight + 1 - count)}")
    return numeric_of(number)


def binary_of_interval(datum: bytes) -> bytes:
    """Return an interval in binary form."""
    interval = interval_of(datum)
    return _INTERVAL.pack(interval.microseconds, interval.days, interval.months)


def interval_of_binary(data: bytes) -> bytes:
    """Read an interval from its binary form."""
    microseconds, days, months = _INTERVAL.unpack(data)
    return interval_datum(Interval(months, days, microseconds))


def binary_of_date(days: int) -> bytes:
    """Return a date in binary form."""
    if abs(days) == DATE_INFINITY:
        return _INT.pack(_INT_MOST if days > 0 else _INT_LEAST)
    return _INT.pack(days - _EPOCH_DAYS)


def date_of_binary(data: bytes) -> int:
    """Read a date from its binary form."""
    days = int(_INT.unpack(data)[0])
    if days in {_INT_MOST, _INT_LEAST}:
        return DATE_INFINITY if days > 0 else -DATE_INFINITY
    if not FIRST_DAY <= days + _EPOCH_DAYS <= LAST_DAY:
        raise SqlError("22008", "date out of range")
    return days + _EPOCH_DAYS


def binary_of_timestamp(timestamp: int) -> bytes:
    """Return a timestamp in binary form."""
    if abs(timestamp) == INFINITY:
        return _LONG.pack(_LONG_MOST if timestamp > 0 else _LONG_LEAST)
    return _LONG.pack(timestamp - _EPOCH_DAYS * DAY)


def timestamp_of_binary(data: bytes) -> int:
    """Read a timestamp from its binary form."""
    timestamp = int(_LONG.unpack(data)[0])
    if timestamp in {_LONG_MOST, _LONG_LEAST}:
        return INFINITY if timestamp > 0 else -INFINITY
    timestamp += _EPOCH_DAYS * DAY
    if not FIRST_TIMESTAMP <= timestamp < END_OF_TIMESTAMPS:
        raise SqlError("22008", "timestamp out of range")
    return timestamp


def boolean_of_binary(data: bytes) -> int:
    """Read a boolean from its binary form."""
    if len(data) != 1:
        raise _malformed(Type.BOOLEAN)
    return int(data != b"\0")


def text_of_binary(data: bytes) -> str:
    """Read a text from its binary form."""
    if b"\0" in data:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8": 0x00', hint="no text may have a NUL")
    return data.decode()


def jsonb_of_binary(data: bytes) -> str:
    """Read JSON from its binary form."""
    if data[:1] != _JSONB_VERSION:
        raise _malformed(Type.JSONB)
    return jsonb_of_text(text_of_binary(data[1:]))


def binary_of_array(kind: Type, oid: int, write: Callable[[Any], bytes], datum: bytes) -> bytes:
    """Return an array of elements of a type in binary form, with the oid and a writer of its elements."""
    elements = elements_of(kind, datum)
    if not elements:
        return _ARRAY_HEAD.pack(0, 0, oid)
    parts = [_ARRAY_HEAD.pack(1, int(None in elements), oid), _DIMENSION.pack(len(elements), 1)]
    for element in elements:
        if element is None:
            parts.append(_NO_ELEMENT)
        else:
            data = write(element)
            parts += (_INT.pack(len(data)), data)
    return b"".join(parts)


def array_of_binary(kind: Type, oid: int, read: Callable[[bytes], Datum], data: bytes) -> bytes:
    """Read an array of elements of a type from its binary form, with the oid and a reader of its elements."""
    dimensions, _, actual = _ARRAY_HEAD.unpack_from(data)
    if dimensions not in {0, 1}:
        raise SqlError("0A000", "arrays of several dimensions are not supported", hint="Use jsonb.")
    if actual != oid and not (kind is Type.TEXT and actual in _TEXT_OIDS):
        raise SqlError("42804", f"binary data has array element type {actual} instead of expected {oid}")
    count, begin = _DIMENSION.unpack_from(data, _ARRAY_HEAD.size) if dimensions else (0, 1)
    if begin != 1:
        raise SqlError("0A000", "bounds of arrays are not supported", hint="Arrays begin with 1.")
    at, elements = _ARRAY_HEAD.size + _DIMENSION.size * dimensions, list[Datum]()
    for _ in range(count):
        size = int(_INT.unpack_from(data, at)[0])
        at += _INT.size
        if size < -1 or at + size > len(data):
            raise _malformed(kind)
        elements.append(None if size == -1 else read_binary(kind, read, data[at : at + size]))
        at += max(size, 0)
    if at != len(data):
        raise _malformed(kind)
    return array_of(kind, elements)
