"""JSON text with integers of any size.

`orjson` silently reads an integer beyond 64 bits as a rounded float, and refuses to write one. JSON has no such limit,
and neither have keys, sums or schemas. So a text is scanned for runs of digits that could be such an integer, which is
many times faster than parsing; only a text that has one is read by Python's own, slower parser.
"""

from __future__ import annotations

import json
import math
import re

import orjson

from derive.document.pointer import JSON
from derive.errors import DocumentError

MOST_LEVELS = 250
"""How many levels of objects and arrays a document may have: `orjson` writes 254, and some are around documents."""

TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""The integers that `orjson` reads and writes."""

_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else byte for byte in range(256))
_LONG, _LONG_NEGATIVE = b"0" * 20, b"-" + b"0" * 19
_SHORT_TEXT = 8192
_STRIDE = 4
_FEW = 256
_INTEGER = re.compile(rb"[\[,:\s](-?\d{19,})(?![^\],}\s])")
_RUN = re.compile(rb"\d{19,}")


def parse_exact(text: bytes) -> JSON:
    """The value of a JSON text, every integer of it exact.

    Numbers with a fraction or an exponent are floats, and a float beyond a double's range is refused.

    Raises:
        ValueError: the text is not JSON (RFC 8259, in UTF-8), or an integer has more digits than Python converts
            (4,300).
    """
    if not has_wide_integer(text):
        return orjson.loads(text)
    # Python's parser lets more pass than JSON: lone surrogates, for one. A run of digits is as valid as a digit.
    orjson.loads(_RUN.sub(b"0", text))
    try:
        return json.loads(text, parse_float=_finite)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except ValueError as exc:
        if "set_int_max_str_digits" in str(exc):  # advice for who writes Python
            raise ValueError("an integer has more than 4,300 digits") from None
        raise


def dump_exact(value: JSON) -> bytes:
    """The JSON text of a value, without spaces, every integer of it exact.

    Raises:
        TypeError: the value is no JSON value; it may hold `orjson.Fragment`s.
        DocumentError: the value is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return orjson.dumps(_writable(value))
        except (TypeError, RecursionError):
            if is_too_deep(value):
                raise DocumentError(TOO_DEEP) from None
            raise


def is_too_deep(value: JSON) -> bool:
    """Whether a value is of more than `MOST_LEVELS` levels."""
    level: list[JSON] = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for value in level
            if type(value) is dict or type(value) is list
            for inner in (value.values() if isinstance(value, dict) else value)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def has_wide_integer(text: bytes) -> bool:
    """Whether a JSON text has an integer that does not fit 64 bits.

    A text that has such digits only inside a string may be counted too; no such integer is ever missed.
    """
    if not _has_long_run(text):
        return False
    return any(not _LEAST <= _number(match[1]) <= _MOST for match in _INTEGER.finditer(b" " + text))


def _number(digits: bytes) -> int:
    return int(digits[:40])  # of 40 digits none fits, and `int` refuses thousands


def _has_long_run(text: bytes) -> bool:
    """Whether 20 digits follow one another, or 19 follow a minus."""
    if len(text) >= _SHORT_TEXT:
        return _has_long_run_in_many(text)
    # Of 19 digits in a row, every fourth character is one, four times. This alone answers for most texts.
    if b"0000" not in text[::_STRIDE].translate(_DIGITS):
        return False
    digits = text.translate(_DIGITS)
    return _LONG in digits or _LONG_NEGATIVE in digits


def _has_long_run_in_many(text: bytes) -> bool:
    import numpy as np

    characters = np.frombuffer(text, np.uint8)
    quarter = characters[::_STRIDE] - np.uint8(48) < 10
    pairs = quarter[:-1] & quarter[1:]
    starts = np.flatnonzero(pairs[:-2] & pairs[2:]) * _STRIDE
    # Where four are digits (in UUIDs, now and then), the characters between are looked at; where long numbers are
    # usual, the first places show it.
    for some in (starts[:_FEW], starts[_FEW:]):
        for between in (1, 2, 3, 5, 6, 7, 9, 10, 11):
            if not some.size:
                break
            some = some[characters[some + between] - np.uint8(48) < 10]  # noqa: PLW2901 (ever fewer of them)
        if some.size:
            break
    else:
        return False
    run = characters - np.uint8(48) < 10
    for step in (1, 2, 4, 8):
        run = run[:-step] & run[step:]
    if (run[:-4] & run[4:]).any():
        return True
    return bool((run[1:-3] & run[4:] & (characters[:-19] == 45)).any())


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"number is beyond a double's range: {text[:40]}")
    return number


def _writable(value: JSON) -> JSON:
    kind = type(value)
    if kind is int and not _LEAST <= value <= _MOST:
        return orjson.Fragment(str(value).encode())
    if kind is dict:
        return {name: _writable(child) for name, child in value.items()}
    return list(map(_writable, value)) if kind is list else value
