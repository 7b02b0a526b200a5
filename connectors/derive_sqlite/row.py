"""Rows: from what a statement returns to the document it publishes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import Document, ProjectionSpec

MakeDocument: TypeAlias = Callable[[Sequence[Any]], Document]
"""From a result row to the document it publishes."""

_CLOSING = {"{": "}", "[": "]"}
_PLAIN_TYPES = frozenset({"boolean", "integer", "fractional", "number", "null"})


def compile_row(columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]) -> MakeDocument:
    """A function from a result row to the document it publishes.

    A column that is a parameter becomes the property named like its field; a boolean comes back as one.

    Args:
        columns: names of the result columns.
        parameters: the projections that may be selected as they are, by the parameter's text.
    """
    if len(columns) == 1 and columns[0].lower().startswith("json"):
        return _whole_document
    names = tuple(parameters[each].field if each in parameters else each for each in columns)
    passed = {parameters[each].field: parameters[each] for each in columns if each in parameters}
    booleans = [name for name, each in passed.items() if each.types - {"null"} == {"boolean"}]
    # Numbers that come from JSON are never text to parse, and are finite.
    converted = [name for name in dict.fromkeys(names) if name not in passed or not passed[name].types <= _PLAIN_TYPES]

    def document(row: Sequence[Any]) -> Document:
        made = dict(zip(names, row, strict=True))
        for name in converted:
            value = made[name]
            kind = type(value)
            if kind is str:
                if value[:1] in _CLOSING:
                    made[name] = _parsed(value)
            elif kind is bytes or (kind is float and not isfinite(value)):
                made[name] = _json(value)
        for name in booleans:
            if made[name] in (0, 1):
                made[name] = made[name] == 1
        return made

    return document


def _json(value: bytes | float) -> JSON:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def _parsed(text: str) -> JSON:
    if len(text) > 1 and _CLOSING[text[0]] == text[-1]:
        try:
            return parse_exact(text.encode())
        except ValueError:
            return text
    return text


def _whole_document(row: Sequence[Any]) -> Document:
    try:
        text = row[0]
        value = parse_exact(text.encode() if isinstance(text, str) else text)
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, dict):
        raise LambdaError(f"a column whose name begins with 'json' is the document, and this is no object: {row[0]!r}")
    return value
