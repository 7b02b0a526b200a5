"""Data in PostgreSQL's text representation, and as Python values of functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

from derive.algebra.form import Form
from derive.algebra.types import ARRAYS, Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import array_of, elements_of, literal_of_texts, texts_of_literal
from derive.functions.types.datetime import date_of_text, moment_of_text, text_of_date, text_of_moment
from derive.functions.types.double import double_datum, double_of_text, float_of, text_of_double
from derive.functions.types.interval import interval_datum, interval_of, interval_of_text, text_of_interval
from derive.functions.types.jsonb import jsonb_of_text, parsed_json
from derive.functions.types.network import address_datum, address_of
from derive.functions.types.numeric import decimal_of, numeric_of, text_of_numeric
from derive.functions.types.type_info import INFOS

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
        SqlError: 22P02, the text is not a boolean.
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
        SqlError: 22023 or 22P02, the text is invalid.
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


def _array_of_text(kind: Type, text: str) -> bytes:
    """Return the array of a text, with elements of a type."""
    read = _OF_TEXT[kind]
    return array_of(kind, [None if element is None else read(element) for element in texts_of_literal(text)])


def _text_of_array(kind: Type, datum: bytes) -> str:
    write = _TEXT_OF[kind]
    return literal_of_texts([None if element is None else write(element) for element in elements_of(kind, datum)])


_OF_TEXT: Mapping[Type, Callable[[str], Datum]] = {
    Type.BOOLEAN: boolean_of_text,
    Type.SMALLINT: lambda text: integer_of_text(Type.SMALLINT, text),
    Type.INTEGER: lambda text: integer_of_text(Type.INTEGER, text),
    Type.BIGINT: lambda text: integer_of_text(Type.BIGINT, text),
    Type.MZ_TIMESTAMP: lambda text: integer_of_text(Type.MZ_TIMESTAMP, text),
    Type.DOUBLE: lambda text: double_datum(double_of_text(text)),
    Type.NUMERIC: lambda text: numeric_of(numeric_of_text(text)),
    Type.TEXT: str,
    Type.UNKNOWN: str,
    Type.BYTEA: bytea_of_text,
    Type.JSONB: jsonb_of_text,
    Type.DATE: date_of_text,
    Type.TIMESTAMP: lambda text: moment_of_text(text, has_zone=False),
    Type.TIMESTAMPTZ: lambda text: moment_of_text(text, has_zone=True),
    Type.INTERVAL: lambda text: interval_datum(interval_of_text(text)),
    **{kind: info.of_text for kind, info in INFOS.items()},
    **{kind: partial(_array_of_text, kind.element) for kind in ARRAYS if kind.element},
}

_TEXT_OF: Mapping[Type, Callable[[Any], str]] = {
    Type.BOOLEAN: lambda datum: "t" if datum else "f",
    Type.SMALLINT: str,
    Type.INTEGER: str,
    Type.BIGINT: str,
    Type.MZ_TIMESTAMP: str,
    Type.DOUBLE: lambda datum: text_of_double(float_of(datum)),
    Type.NUMERIC: lambda datum: text_of_numeric(decimal_of(datum)),
    Type.TEXT: str,
    Type.UNKNOWN: str,
    Type.BYTEA: lambda datum: f"\\x{datum.hex()}",
    Type.JSONB: str,
    Type.DATE: text_of_date,
    Type.TIMESTAMP: text_of_moment,
    Type.TIMESTAMPTZ: lambda datum: text_of_moment(datum, "+00"),
    Type.INTERVAL: lambda datum: text_of_interval(interval_of(datum)),
    **{kind: info.text_of for kind, info in INFOS.items()},
    **{kind: partial(_text_of_array, kind.element) for kind in ARRAYS if kind.element},
}

DECODERS: Mapping[Type, Callable[[Any], Any]] = {
    Type.DOUBLE: float_of,
    Type.NUMERIC: decimal_of,
    Type.JSONB: lru_cache(maxsize=16)(parsed_json),
    Type.INTERVAL: interval_of,
    Type.INET: address_of,
    Type.CIDR: address_of,
    **{kind: partial(elements_of, kind.element) for kind in ARRAYS if kind.element},
}
"""Functions that convert a datum to the value that functions take, for types whose values differ from their data.

Parsed JSON is cached, because queries often read several fields of one document; functions must not change it. The
value of an array is a tuple of data.
"""

ENCODERS: Mapping[Type, Callable[[Any], Datum]] = {
    Type.BOOLEAN: int,
    Type.DOUBLE: double_datum,
    Type.NUMERIC: numeric_of,
    Type.INTERVAL: interval_datum,
    Type.INET: address_datum,
    Type.CIDR: address_datum,
    **{kind: partial(array_of, kind.element) for kind in ARRAYS if kind.element},
}
"""Functions that convert a function's value to a datum. Functions of jsonb return data themselves, as None is NULL."""


def datum_of_text(kind: Type, text: str) -> Datum:
    """Return the datum of a text, as clients write values of the type.

    Raises:
        SqlError: 22P02, 22003, 22007, 22008, …: the text is invalid for the type.
    """
    return _OF_TEXT[kind](text)


def text_of(kind: Type, datum: Datum) -> str:
    """Return the text of a datum other than NULL, as clients receive it; booleans are `t` and `f`."""
    return _TEXT_OF[kind](datum)


def text_function(kind: Type, form: Form | None = None) -> Callable[[Any], str]:
    """Return `text_of` for one type and its modifier, for many data."""
    text = _TEXT_OF[kind]
    return text if form is None else lambda datum: form.shown(text(datum))
