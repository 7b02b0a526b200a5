"""JSON values of documents as data of `jsonb`: canonical text, optimized for speed.

The form is that of `derive.functions`: keys ordered by their lengths in bytes, then by their bytes; numbers in decimal,
without trailing zeros. Documents may contain the character U+0000, which PostgreSQL's jsonb refuses; it is written as
an escape here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from derive.document.pointer import JSON

_quoted = json.encoder.encode_basestring


def jsonb_text(value: JSON) -> str:
    """Return the datum of a JSON value."""
    kind = type(value)
    write = _SCALARS.get(kind)
    if write is not None:
        return write(value)
    if kind is dict:
        ordered, labels = _ordered(tuple(value))
        return (
            "{" + ", ".join([label + jsonb_text(value[key]) for key, label in zip(ordered, labels, strict=True)]) + "}"
        )
    return "[" + ", ".join(map(jsonb_text, value)) + "]"


@lru_cache(maxsize=4096)
def _ordered(keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return keys in their order, and the text before the value of each."""
    ordered = tuple(sorted(keys, key=lambda key: (len(key.encode()), key)))
    return ordered, tuple(f"{_quoted(key)}: " for key in ordered)


def _number(number: float) -> str:
    text = repr(number)
    if "e" not in text:
        text = text.removesuffix(".0")
        return "0" if text == "-0" else text
    digits, _, exponent = text.removeprefix("-").partition("e")
    sign = "-" if number < 0 else ""
    before, _, behind = digits.partition(".")
    power = int(exponent)
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{before}{behind.rstrip('0') if behind != '0' else ''}"
    behind = "" if behind == "0" else behind
    return f"{sign}{before}{behind}{'0' * (power - len(behind))}"


_SCALARS: Mapping[type, Callable[[Any], str]] = {
    str: _quoted,
    int: int.__repr__,
    float: _number,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}
