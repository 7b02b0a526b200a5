"""Data in PostgreSQL's binary representation, as clients send and receive them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from derive.algebra.form import Form
from derive.algebra.types import ARRAYS, Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import array_of, elements_of
from derive.functions.types.datetime import (
    DATE_INFINITY,
    DAY,
    END_OF_MOMENTS,
    FIRST_DAY,
    FIRST_MOMENT,
    INFINITY,
    LAST_DAY,
    days_of,
)
from derive.functions.types.double import double_datum, float_of
from derive.functions.types.interval import Interval, interval_datum, interval_of
from derive.functions.types.jsonb import jsonb_of_text
from derive.functions.types.numeric import EXACT, decimal_of, numeric_of, scale_of
from derive.functions.types.type_info import INFOS

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

OIDS: Mapping[Type, int] = {
    Type.BOOLEAN: 16,
    Type.BYTEA: 17,
    Type.BIGINT: 20,
    Type.SMALLINT: 21,
    Type.INTEGER: 23,
    Type.TEXT: 25,
    Type.DOUBLE: 701,
    Type.DATE: 1082,
    Type.TIMESTAMP: 1114,
    Type.TIMESTAMPTZ: 1184,
    Type.INTERVAL: 1186,
    Type.NUMERIC: 1700,
    Type.JSONB: 3802,
    **{kind: info.oid for kind, info in INFOS.items()},
}
"""PostgreSQL's type numbers, which arrays contain for their elements."""
_TEXT_OIDS = {18, 19, 1042, 1043}
"""Type numbers of other types that are text here."""


def binary_of(kind: Type, datum: Datum) -> bytes:
    """Return a datum other than NULL in binary representation."""
    return _BINARY_OF[kind](datum)


def binary_function(kind: Type, form: Form | None = None) -> Callable[[Any], bytes]:
    """Return `binary_of` for one type and its modifier, for many data."""
    if form and kind is Type.NUMERIC:
        return lambda datum: _binary_of_numeric(datum, max(form.scale, 0))
    if form:
        return lambda datum: form.shown(datum).encode()
    return _BINARY_OF[kind]


def datum_of_binary(kind: Type, data: bytes) -> Datum:
    """Return the datum that a client sent in binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid for the type; 22021, text is not UTF-8, or contains a NUL.
    """
    try:
        return _OF_BINARY[kind](data)
    except UnicodeDecodeError as exc:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8"') from exc
    except (struct.error, ValueError, IndexError) as exc:
        raise _malformed(kind) from exc


def _malformed(kind: Type) -> SqlError:
    return SqlError("22P03", f"incorrect binary data format for type {kind.value}")


def _integer_of(layout: struct.Struct) -> Callable[[bytes], int]:
    return lambda data: int(layout.unpack(data)[0])


def _binary_of_numeric(datum: bytes, least_scale: int = 0) -> bytes:
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


def _numeric_of_binary(data: bytes) -> bytes:
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


def _binary_of_interval(datum: bytes) -> bytes:
    interval = interval_of(datum)
    return _INTERVAL.pack(interval.microseconds, interval.days, interval.months)


def _interval_of_binary(data: bytes) -> bytes:
    microseconds, days, months = _INTERVAL.unpack(data)
    return interval_datum(Interval(months, days, microseconds))


def _binary_of_date(days: int) -> bytes:
    if abs(days) == DATE_INFINITY:
        return _INT.pack(_INT_MOST if days > 0 else _INT_LEAST)
    return _INT.pack(days - _EPOCH_DAYS)


def _date_of_binary(data: bytes) -> int:
    days = _integer_of(_INT)(data)
    if days in {_INT_MOST, _INT_LEAST}:
        return DATE_INFINITY if days > 0 else -DATE_INFINITY
    if not FIRST_DAY <= days + _EPOCH_DAYS <= LAST_DAY:
        raise SqlError("22008", "date out of range")
    return days + _EPOCH_DAYS


def _binary_of_moment(moment: int) -> bytes:
    if abs(moment) == INFINITY:
        return _LONG.pack(_LONG_MOST if moment > 0 else _LONG_LEAST)
    return _LONG.pack(moment - _EPOCH_DAYS * DAY)


def _moment_of_binary(data: bytes) -> int:
    moment = _integer_of(_LONG)(data)
    if moment in {_LONG_MOST, _LONG_LEAST}:
        return INFINITY if moment > 0 else -INFINITY
    moment += _EPOCH_DAYS * DAY
    if not FIRST_MOMENT <= moment < END_OF_MOMENTS:
        raise SqlError("22008", "timestamp out of range")
    return moment


def _boolean_of_binary(data: bytes) -> int:
    if len(data) != 1:
        raise _malformed(Type.BOOLEAN)
    return int(data != b"\0")


def _text_of_binary(data: bytes) -> str:
    if b"\0" in data:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8": 0x00', hint="no text may have a NUL")
    return data.decode()


def _jsonb_of_binary(data: bytes) -> str:
    if data[:1] != _JSONB_VERSION:
        raise _malformed(Type.JSONB)
    return jsonb_of_text(_text_of_binary(data[1:]))


def _binary_of_array(kind: Type, datum: bytes) -> bytes:
    elements = elements_of(kind, datum)
    if not elements:
        return _ARRAY_HEAD.pack(0, 0, OIDS[kind])
    parts = [_ARRAY_HEAD.pack(1, int(None in elements), OIDS[kind]), _DIMENSION.pack(len(elements), 1)]
    for element in elements:
        if element is None:
            parts.append(_NO_ELEMENT)
        else:
            data = _BINARY_OF[kind](element)
            parts += (_INT.pack(len(data)), data)
    return b"".join(parts)


def _array_of_binary(kind: Type, data: bytes) -> bytes:
    dimensions, _, oid = _ARRAY_HEAD.unpack_from(data)
    if dimensions not in {0, 1}:
        raise SqlError("0A000", "arrays of several dimensions are not supported", hint="Use jsonb.")
    if oid != OIDS[kind] and not (kind is Type.TEXT and oid in _TEXT_OIDS):
        raise SqlError("42804", f"binary data has array element type {oid} instead of expected {OIDS[kind]}")
    count, begin = _DIMENSION.unpack_from(data, _ARRAY_HEAD.size) if dimensions else (0, 1)
    if begin != 1:
        raise SqlError("0A000", "bounds of arrays are not supported", hint="Arrays begin with 1.")
    at, elements = _ARRAY_HEAD.size + _DIMENSION.size * dimensions, list[Datum]()
    for _ in range(count):
        size = int(_INT.unpack_from(data, at)[0])
        at += _INT.size
        if size < -1 or at + size > len(data):
            raise _malformed(kind)
        elements.append(None if size == -1 else datum_of_binary(kind, data[at : at + size]))
        at += max(size, 0)
    if at != len(data):
        raise _malformed(kind)
    return array_of(kind, elements)


_BINARY_OF: Mapping[Type, Callable[[Any], bytes]] = {
    Type.BOOLEAN: lambda datum: b"\x01" if datum else b"\0",
    Type.SMALLINT: _SHORT.pack,
    Type.INTEGER: _INT.pack,
    Type.BIGINT: _LONG.pack,
    Type.MZ_TIMESTAMP: _LONG.pack,
    Type.DOUBLE: lambda datum: _DOUBLE.pack(float_of(datum)),
    Type.NUMERIC: _binary_of_numeric,
    Type.TEXT: str.encode,
    Type.UNKNOWN: str.encode,
    Type.BYTEA: bytes,
    Type.JSONB: lambda datum: _JSONB_VERSION + datum.encode(),
    Type.DATE: _binary_of_date,
    Type.TIMESTAMP: _binary_of_moment,
    Type.TIMESTAMPTZ: _binary_of_moment,
    Type.INTERVAL: _binary_of_interval,
    **{kind: info.binary_of for kind, info in INFOS.items()},
    **{kind: partial(_binary_of_array, kind.element) for kind in ARRAYS if kind.element},
}

_OF_BINARY: Mapping[Type, Callable[[bytes], Datum]] = {
    Type.BOOLEAN: _boolean_of_binary,
    Type.SMALLINT: _integer_of(_SHORT),
    Type.INTEGER: _integer_of(_INT),
    Type.BIGINT: _integer_of(_LONG),
    Type.MZ_TIMESTAMP: _integer_of(_LONG),
    Type.DOUBLE: lambda data: double_datum(_DOUBLE.unpack(data)[0]),
    Type.NUMERIC: _numeric_of_binary,
    Type.TEXT: _text_of_binary,
    Type.UNKNOWN: _text_of_binary,
    Type.BYTEA: bytes,
    Type.JSONB: _jsonb_of_binary,
    Type.DATE: _date_of_binary,
    Type.TIMESTAMP: _moment_of_binary,
    Type.TIMESTAMPTZ: _moment_of_binary,
    Type.INTERVAL: _interval_of_binary,
    **{kind: info.of_binary for kind, info in INFOS.items()},
    **{kind: partial(_array_of_binary, kind.element) for kind in ARRAYS if kind.element},
}
