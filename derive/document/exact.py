"""JSON text with integers of any size.

`orjson` silently reads an integer beyond 64 bits as a rounded float, and refuses to write one. JSON, keys, sums and
schemas have no such limit. A text is therefore scanned for digits of such an integer, which is many times faster than
parsing. Only a text with such digits is parsed by Python's `json`, which is slower.
"""

from __future__ import annotations

import json
import math
import re

import orjson

from derive.document.pointer import JSON
from derive.errors import DocumentError

MOST_LEVELS = 250
"""Largest number of nested objects and arrays in a document: `orjson` writes 254, and a few surround documents."""

TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Range of the integers that `orjson` reads and writes."""

_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else byte for byte in range(256))
_LONG, _LONG_NEGATIVE = b"0" * 20, b"-" + b"0" * 19
_SHORT_TEXT = 8192
_STRIDE = 4
_FEW = 256
_INTEGER = re.compile(rb"[\[,:\s](-?\d{19,})(?![^\],}\s])")
_RUN = re.compile(rb"\d{19,}")


def parse_exact(text: bytes) -> JSON:
    """Parse a JSON text with exact integers.

    Numbers with a fraction or an exponent are floats, and a float beyond a double's range is refused.

    Raises:
        ValueError: the text is not JSON (RFC 8259, in UTF-8), or an integer has more than 4,300 digits.
    """
    if not has_wide_integer(text):
        return orjson.loads(text)
    # Python's parser accepts more than JSON, for example lone surrogates. A digit is as valid as a run of digits.
    orjson.loads(_RUN.sub(b"0", text))
    try:
        return json.loads(text, parse_float=_finite)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except ValueError as exc:
        if "set_int_max_str_digits" in str(exc):  # advice for Python programmers
            raise ValueError("an integer has more than 4,300 digits") from None
        raise


def dump_exact(value: JSON) -> bytes:
    """Return the JSON text of a value, without spaces and with exact integers.

    Raises:
        TypeError: the value is not a JSON value; `orjson.Fragment`s within it are permitted.
        DocumentError: the value has too many levels.
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


def is_double(value: int | float) -> bool:
    """Return whether a double is equal to a number."""
    try:
        return float(value) == value
    except OverflowError:
        return False


def is_too_deep(value: JSON) -> bool:
    """Return true if a value has more than `MOST_LEVELS` levels."""
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
    """Return true if a JSON text may have an integer beyond 64 bits.

    A text with such digits inside a string may count too; every such integer is detected.
    """
    if not _has_long_run(text):
        return False
    return any(not _LEAST <= _number(match[1]) <= _MOST for match in _INTEGER.finditer(b" " + text))


def _number(digits: bytes) -> int:
    return int(digits[:40])  # no number of 40 digits is in range, and `int` rejects thousands of digits


def _has_long_run(text: bytes) -> bool:
    """Return true if the text has 20 consecutive digits, or 19 after a minus."""
    if len(text) >= _SHORT_TEXT:
        return _has_long_run_in_many(text)
    # In 19 consecutive digits, every fourth character is a digit, at least four times: a test for four such digits
    # rejects most texts.
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
    # Check the characters between four such digits, which also occur in UUIDs. The first places suffice for texts with
    # many long numbers.
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
