"""Data of `jsonb`: JSON text of one form for equal values, which is how PostgreSQL shows them; and its order.

JSON texts have limits of the number of values, because a parser needs up to 200 bytes for a value of one byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from derive.errors import SqlError
from derive.functions.types.numbers import MOST_EXPONENT, MOST_SCALE, numeric_of, text_of_numeric

FEW_VALUES = 1_000_000
"""Number of values, and size in bytes of a text, below which nothing is counted."""

_BYTES_A_VALUE = 16
"""Bytes of a document's size limit per permitted value; `FEW_VALUES` values are always permitted."""

_PART_BYTES = 1 << 20


def most_values(limit: int) -> int:
    """Return the maximum number of a document's values, by the limit of its size in bytes."""
    return max(limit // _BYTES_A_VALUE, FEW_VALUES)


def exceeds_values(texts: Iterable[bytes], most: int) -> bool:
    """Return whether JSON texts together have more than `most` values.

    The number of values is estimated by the commas and opening brackets outside strings.
    """
    listed = list(texts)
    estimate = sum(text.count(mark) for text in listed for mark in (b",", b"[", b"{"))
    return estimate > most and sum(map(_count_values, listed)) > most


def _count_values(text: bytes) -> int:
    """Return the number of commas and opening brackets outside strings."""
    import numpy as np

    characters = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    count, is_inside = 0, False
    for begin in range(0, len(characters), _PART_BYTES):
        part = characters[begin : begin + _PART_BYTES]
        inside = np.logical_xor.accumulate(part == ord('"')) ^ is_inside
        is_inside = bool(inside[-1])
        marks = (part == ord(",")) | (part == ord("[")) | (part == ord("{"))
        count += int(np.count_nonzero(marks & ~inside))
    return count


Json: TypeAlias = Any
"""None, a boolean, an int, a Decimal, a text, or a list or a dict of these."""

_MOST_VALUES = most_values(128 << 20)
"""Maximum number of values in a JSON text: the number for a document of the default size limit."""

_encode_text = json.encoder.encode_basestring


def _refuse(constant: str) -> Json:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def jsonb_of_text(text: str) -> str:
    """Return the datum of JSON text.

    Raises:
        SqlError: 22P02, the text is malformed; 54000, the text has too many values.
    """
    return jsonb_datum(parsed_json(text))


def parsed_json(text: str) -> Json:
    """Parse JSON text.

    Raises:
        SqlError: 22P02, the text is malformed; 54000, the text has too many values.
    """
    if len(text) > FEW_VALUES and exceeds_values([text.encode("utf-8", "surrogatepass")], _MOST_VALUES):
        raise SqlError("54000", f"a value of type json has more than {_MOST_VALUES:,} values")
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError, ArithmeticError) as exc:
        raise SqlError("22P02", "invalid input syntax for type json", detail=f"{exc}") from exc


def jsonb_datum(value: Json) -> str:
    """Return the datum of a JSON value; floats have the value of their shortest text.

    Raises:
        SqlError: 22003, a number is too large; 22P05, a text has U+0000 or a lone surrogate.
    """
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _number(Decimal(repr(value)) if isinstance(value, float) else value)
    if isinstance(value, dict):
        members = sorted((len(key.encode(errors="surrogatepass")), key) for key in value)
        return "{" + ", ".join(f"{_text(key)}: {jsonb_datum(value[key])}" for _, key in members) + "}"
    return "[" + ", ".join(map(jsonb_datum, value)) + "]"


def _text(text: str) -> str:
    if "\0" in text:
        raise SqlError("22P05", "unsupported Unicode escape sequence", detail="\\u0000 cannot be converted to text.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            what = "Unicode high surrogate must not follow a high surrogate."
            raise SqlError("22P02", "invalid input syntax for type json", detail=what) from exc
    return _encode_text(text)


def _number(number: Decimal) -> str:
    if not number.is_finite():
        raise SqlError("22P02", "invalid input syntax for type json", detail=f"{number} is no JSON number")
    if number and number.adjusted() > MOST_EXPONENT:
        raise SqlError("22003", "value overflows numeric format")
    if number and number.adjusted() < -MOST_SCALE:
        return "0"
    return text_of_numeric(number)


_EMPTY_ARRAY, _SCALAR, _ARRAY_OF_ALL, _OBJECT_OF_ALL = (bytes([kind]) for kind in range(4))
_NULL, _TEXT, _NUMBER, _BOOLEAN, _ARRAY, _OBJECT = (bytes([kind]) for kind in range(1, 7))
_ZERO, _ESCAPED_ZERO, _END = b"\0", b"\0\xff", b"\0\0"
_COUNT_BYTES = 4


@lru_cache(maxsize=4096)
def jsonb_key(datum: str) -> bytes:
    """Return bytes by which data of `jsonb` sort; the bytes are equal only for equal data."""
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
    """Return bytes that sort as the given bytes, and never begin the result of other bytes."""
    return data.replace(_ZERO, _ESCAPED_ZERO) + _END
