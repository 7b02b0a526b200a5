"""Assertions beyond JSON Schema: formats, bounds of numbers as text, and `type: fractional`."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from typing import Any

from derive.document.pointer import JSON
from derive.schema.dialect import subschemas
from derive.schema.values import type_of

_INTEGER = re.compile(r"-?\d+(\.0+)?", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FRACTIONAL = "x-derive-fractional"


def is_number(text: str) -> bool:
    """Return true if a text is a number of any size and precision, or `NaN`, `Infinity` or `-Infinity`."""
    return text in ("NaN", "Infinity", "-Infinity") or _NUMBER.fullmatch(text) is not None


_BYTE = "(?:[0-9A-Fa-f]{2})"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def _address(size: int) -> re.Pattern[str]:
    """Return a pattern of hardware addresses with this number of bytes, in PostgreSQL's input formats."""
    pairs = size // 2
    forms = [
        *(f"{_BYTE}(?:{sign}{_BYTE}){{{size - 1}}}" for sign in ":-"),
        f"{_BYTE}{{2}}(?:\\.{_BYTE}{{2}}){{{pairs - 1}}}",
        *(f"{_BYTE}{{3}}{sign}{_BYTE}{{{size - 3}}}" for sign in ":-"),
        f"{_BYTE}{{{size}}}",
    ]
    return re.compile("|".join(f"(?:{form})" for form in forms), re.ASCII)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, str) or pattern.fullmatch(value) is not None


FORMATS: dict[str, Callable[[Any], bool]] = {
    "integer": _matches(_INTEGER),
    "macaddr": _matches(_address(6)),
    "macaddr8": _matches(_address(8)),
    "sha256": _matches(_SHA256),
    "number": lambda value: not isinstance(value, str) or is_number(value),
}
"""Checks of formats by name; the validator has those of the draft built in."""

ASSERTED = frozenset(
    {
        *FORMATS, "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6",
        "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference",
        "uri-template", "uuid",
    }
)  # fmt: skip
"""Formats that are assertions; other formats are annotations."""


class Fractional:
    """The keyword that replaces `type: fractional`: numbers that are not integers."""

    def __init__(self, _schema: JSON, _value: JSON, _path: list[str | int]) -> None: ...

    def validate(self, instance: JSON) -> None:
        """Refuse an integer, whether written 1 or 1.0.

        Raises:
            ValueError: the value is an integer.
        """
        if type_of(instance) == "integer":
            raise ValueError(f'{instance} is not of type "fractional"')


class _TextBound:
    """A bound of numbers that are written as text; other values are ignored."""

    sign = 0
    fault = ""

    def __init__(self, _schema: JSON, value: JSON, _path: list[str | int]) -> None:
        text = str(value)
        if isinstance(value, bool) or not is_number(text) or text == "NaN":
            raise ValueError(f"{value!r} is not a number")
        self._bound = Decimal(text)

    def validate(self, instance: JSON) -> None:
        """Refuse a text that is a number beyond the bound.

        Raises:
            ValueError: the value is beyond the bound.
        """
        if not isinstance(instance, str) or not is_number(instance) or instance == "NaN":
            return
        if self.sign * Decimal(instance).compare(self._bound) > 0:
            raise ValueError(f'"{instance}" is {self.fault} {self._bound}')


class TextMinimum(_TextBound):
    """`x-str-minimum`: the least permitted numeric text."""

    sign = -1
    fault = "less than the minimum of"


class TextMaximum(_TextBound):
    """`x-str-maximum`: the greatest permitted numeric text."""

    sign = 1
    fault = "greater than the maximum of"


KEYWORDS: dict[str, type[Any]] = {
    _FRACTIONAL: Fractional,
    "x-str-minimum": TextMinimum,
    "x-str-maximum": TextMaximum,
}
"""Implementations of own keywords, by name."""

KEYWORD_OF = {_FRACTIONAL: "type"}
"""Written keyword of each own keyword that replaces one."""


def standard(schema: JSON) -> JSON:
    """Return the schema without `type: fractional`, which no meta-schema knows; the same object if it has none."""
    if not any("fractional" in _types(subschema) for _, subschema in subschemas(schema)):
        return schema
    copied = deepcopy(schema)
    for _, subschema in list(subschemas(copied)):
        types = _types(subschema)
        if "fractional" in types:
            subschema["type"] = [*(kind for kind in types if kind not in ("fractional", "integer", "number")), "number"]
            if "integer" not in types and "number" not in types:
                subschema[_FRACTIONAL] = True
    return copied


def _types(schema: dict[str, JSON]) -> list[JSON]:
    named = schema.get("type")
    return named if isinstance(named, list) else [named]
