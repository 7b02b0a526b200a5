"""Data of `jsonb`: JSON text that is canonical for equal values, as PostgreSQL formats them.

Numbers are decimal, without trailing zeros; keys of objects are ordered by their lengths in bytes, then by their bytes;
the last of equal keys counts.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, TypeAlias

from derive.errors import SqlError
from derive.functions.types.numeric import MOST_EXPONENT, MOST_SCALE, text_of_numeric

Json: TypeAlias = Any
"""None, a boolean, an int, a Decimal, a text, or a list or a dict of these."""

_encode_text = json.encoder.encode_basestring


def _refuse(constant: str) -> Json:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def jsonb_of_text(text: str) -> str:
    """Return the datum of JSON text.

    Raises:
        SqlError: 22P02, it is malformed.
    """
    return jsonb_datum(parsed_json(text))


def parsed_json(text: str) -> Json:
    """Parse JSON text.

    Raises:
        SqlError: 22P02, it is malformed.
    """
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
