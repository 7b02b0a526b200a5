"""Data in PostgreSQL's text and binary forms, as clients send and receive them, for types without a module."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import MOST_DIMENSIONS, array_of, elements_of, sizes_of
from derive.functions.types.array_literal import literal_of_texts, texts_of_literal, too_many_dimensions
from derive.functions.types.datetime import (
    DATE_INFINITY,
    DAY,
    END_OF_TIMESTAMPS,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    INFINITY,
    LAST_DAY,
    Interval,
    days_of,
    interval_datum,
    interval_of,
)
from derive.functions.types.jsonb import jsonb_of_text
from derive.functions.types.numbers import EXACT, decimal_of, double_datum, float_of, numeric_of, scale_of

BITS: Mapping[Type, int] = {Type.SMALLINT: 16, Type.INTEGER: 32, Type.BIGINT: 64, Type.MZ_TIMESTAMP: 64}
"""Bits of integers."""

_MOST_DIGITS = 1000
"""Maximum number of digits of an integer: Python reads no more, and longer integers are out of range."""
_INTEGER = re.compile(r"[+-]?(?:\d+(?:_\d+)*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)", re.ASCII)
_NUMERIC = re.compile(r"[+-]?(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+)?", re.ASCII)
_NUMERIC_WORDS = {"nan": "NaN", "infinity": "Infinity", "inf": "Infinity"}


def integer_of_text(kind: Type, text: str) -> int:
    """Return the integer of a text.

    Raises:
        SqlError: 22P02, the text is not an integer; 22003, the integer is too large.
    """
    word = text.strip()
    if not _INTEGER.fullmatch(word):
        raise SqlError("22P02", f'invalid input syntax for type {kind.value}: "{text}"')
    digits = word.lstrip("+-").lower()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
    if len(digits) > _MOST_DIGITS:
        raise SqlError("22003", f'value "{text}" is out of range for type {kind.value}')
    number = int(digits if base == 10 else digits[2:].removeprefix("_"), base)
    number = -number if word.startswith("-") else number
    if not -1 << BITS[kind] - 1 <= number < 1 << BITS[kind] - 1:
        raise SqlError("22003", f'value "{text}" is out of range for type {kind.value}')
    return number


def numeric_of_text(text: str) -> Decimal:
    """Return the number of a text.

    Raises:
        SqlError: 22P02, the text is not a number; 22003, the number is too large.
    """
    word = text.strip()
    special = _NUMERIC_WORDS.get(word.lstrip("+-").lower()) if len(word) - len(word.lstrip("+-")) <= 1 else None
    if special is not None and not (special == "NaN" and word[0] in "+-"):
        return Decimal(f"-{special}" if word.startswith("-") else special)
    if not _NUMERIC.fullmatch(word):
        raise SqlError("22P02", f'invalid input syntax for type numeric: "{text}"')
    exponent = word.lower().partition("e")[2]
    if exponent and (len(exponent) > _MOST_DIGITS or abs(int(exponent)) > 1_000_000):
        raise SqlError("22003", "value overflows numeric format")
    return Decimal(word.replace("_", ""))


def scale_of_text(text: str) -> int | None:
    """Return the number of digits after the decimal point in a number's text; None for NaN and infinities."""
    number = numeric_of_text(text)
    return max(0, -int(number.as_tuple().exponent)) if number.is_finite() else None


def boolean_of_text(text: str) -> int:
    """Return 0 or 1 for a text.

    Raises:
        SqlError: the text is not a boolean (22P02).
    """
    word = text.strip().lower()
    for truth, names in ((1, ("true", "yes")), (0, ("false", "no"))):
        if word and any(name.startswith(word) for name in names):
            return truth
    if word in {"on", "1"}:
        return 1
    if word in {"of", "off", "0"}:
        return 0
    raise SqlError("22P02", f'invalid input syntax for type boolean: "{text}"')


def bytea_of_text(text: str) -> bytes:
    r"""Return the bytes of a text such as `\x01ff`, or of an escaped text.

    Raises:
        SqlError: the text is invalid (22023 or 22P02).
    """
    if text.startswith("\\x"):
        digits = re.sub(r"\s", "", text[2:])
        try:
            return bytes.fromhex(digits)
        except ValueError as exc:
            wrong = next((digit for digit in digits if digit not in "0123456789abcdefABCDEF"), None)
            what = (
                f'invalid hexadecimal digit: "{wrong}"' if wrong else "invalid hexadecimal data: odd number of digits"
            )
            raise SqlError("22023", what) from exc
    if re.fullmatch(r"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", text, re.DOTALL) is None:
        raise SqlError("22P02", "invalid input syntax for type bytea")
    pieces = re.findall(r"[^\\]+|\\\\|\\[0-3][0-7]{2}", text)
    unescaped = (b"\\" if piece == "\\\\" else bytes([int(piece[1:], 8)]) for piece in pieces if piece[0] == "\\")
    return b"".join(next(unescaped) if piece[0] == "\\" else piece.encode() for piece in pieces)


def array_of_text(kind: Type, read: Callable[[str], Datum], text: str) -> bytes:
    """Return the array that a text denotes, given the function that reads one element."""
    texts, sizes = texts_of_literal(text)
    return array_of(kind, [None if element is None else read(element) for element in texts], sizes)


def text_of_array(kind: Type, write: Callable[[Any], str], datum: bytes) -> str:
    """Return an array as text, given the function that writes one element."""
    texts = [None if element is None else write(element) for element in elements_of(kind, datum)]
    return literal_of_texts(texts, sizes_of(kind, datum))


_EPOCH_DAYS = days_of(2000, 1, 1)
_SHORT, _INT, _LONG, _DOUBLE = (struct.Struct(f">{code}") for code in "hiqd")
_NUMERIC_HEAD = struct.Struct(">hhHH")
_INTERVAL = struct.Struct(">qii")
_NUMERIC_NAN, _NUMERIC_INFINITY, _NUMERIC_MINUS_INFINITY, _NUMERIC_NEGATIVE = 0xC000, 0xD000, 0xF000, 0x4000
_INFINITY_SCALE = 32
"""The scale that PostgreSQL writes for infinities; any scale is read."""
_INT_LEAST, _INT_MOST, _LONG_LEAST, _LONG_MOST = -1 << 31, (1 << 31) - 1, -1 << 63, (1 << 63) - 1
_JSONB_VERSION = b"\x01"
_ARRAY_HEAD, _DIMENSION = struct.Struct(">iiI"), struct.Struct(">ii")
_NO_ELEMENT = _INT.pack(-1)

_TEXT_OIDS = {18, 19, 1042, 1043}
"""Oids of types other than `text` whose values are text here."""


def read_binary(kind: Type, read: Callable[[bytes], Datum], data: bytes) -> Datum:
    """Return the datum of a client's binary value, given the function that reads the binary form of its type.

    Raises:
        SqlError: 22P03, the bytes are not a value of the type; 22021, text is not UTF-8, or has a NUL.
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
    """Return a date, given in days since 1970-01-01, in PostgreSQL's binary form."""
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
        raise SqlError(
            "22021", 'invalid byte sequence for encoding "UTF8": 0x00', hint="A text must not contain a NUL."
        )
    return data.decode()


def jsonb_of_binary(data: bytes) -> str:
    """Read JSON from its binary form."""
    if data[:1] != _JSONB_VERSION:
        raise _malformed(Type.JSONB)
    return jsonb_of_text(text_of_binary(data[1:]))


def binary_of_array(kind: Type, oid: int, write: Callable[[Any], bytes], datum: bytes) -> bytes:
    """Return an array in binary form, given the oid of the element type and the function that writes one element."""
    elements = elements_of(kind, datum)
    if not elements:
        return _ARRAY_HEAD.pack(0, 0, oid)
    sizes = sizes_of(kind, datum) or (len(elements),)
    parts = [_ARRAY_HEAD.pack(len(sizes), int(None in elements), oid), *(_DIMENSION.pack(size, 1) for size in sizes)]
    for element in elements:
        if element is None:
            parts.append(_NO_ELEMENT)
        else:
            data = write(element)
            parts += (_INT.pack(len(data)), data)
    return b"".join(parts)


def array_of_binary(kind: Type, oid: int, read: Callable[[bytes], Datum], data: bytes) -> bytes:
    """Read an array from its binary form, given the oid of the element type and the function that reads one element."""
    dimensions, _, actual = _ARRAY_HEAD.unpack_from(data)
    if dimensions > MOST_DIMENSIONS:
        raise too_many_dimensions(dimensions)
    if dimensions < 0:
        raise _malformed(kind)
    if actual != oid and not (kind is Type.TEXT and actual in _TEXT_OIDS):
        raise SqlError(
            "42804",
            f"binary data has array element type {actual} instead of expected {oid}",
            hint="The numbers are oids in pg_type. Send the array with elements of the expected type, or as text.",
        )
    at, elements = _ARRAY_HEAD.size + _DIMENSION.size * dimensions, list[Datum]()
    bounds = [_DIMENSION.unpack_from(data, begin) for begin in range(_ARRAY_HEAD.size, at, _DIMENSION.size)]
    if bounds and {begin for _, begin in bounds} != {1}:
        raise SqlError("0A000", "lower bounds other than 1 are not supported", hint="Arrays begin with 1.")
    sizes = tuple(int(size) for size, _ in bounds)
    if sizes and min(sizes) < 0:
        raise _malformed(kind)
    count = math.prod(sizes) if sizes else 0
    for _ in range(count):
        size = int(_INT.unpack_from(data, at)[0])
        at += _INT.size
        if size < -1 or at + size > len(data):
            raise _malformed(kind)
        elements.append(None if size == -1 else read_binary(kind, read, data[at : at + size]))
        at += max(size, 0)
    if at != len(data):
        raise _malformed(kind)
    return array_of(kind, elements, sizes if count else ())
