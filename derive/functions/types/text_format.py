"""Data read from text in PostgreSQL's forms, for types that have no module of their own; and arrays as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.types.array import array_of, elements_of, literal_of_texts, texts_of_literal

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


def array_of_text(kind: Type, read: Callable[[str], Datum], text: str) -> bytes:
    """Return the array of elements of a type that a text denotes, with a reader of one element."""
    return array_of(kind, [None if element is None else read(element) for element in texts_of_literal(text)])


def text_of_array(kind: Type, write: Callable[[Any], str], datum: bytes) -> str:
    """Return an array of elements of a type as text, with a writer of one element."""
    return literal_of_texts([None if element is None else write(element) for element in elements_of(kind, datum)])
