"""Rows: from what a statement returns to the document it publishes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

from derive.document.exact import MOST_LEVELS, TOO_DEEP, is_too_deep, parse_exact
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import Document, ProjectionSpec

MakeDocument: TypeAlias = Callable[[Sequence[Any]], Document]
"""From a result row to the document it publishes."""

_CLOSING = {"{": "}", "[": "]"}
_STRUCTURED = frozenset({"array", "object"})


def compile_row(columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]) -> MakeDocument:
    """A function from a result row to the document it publishes.

    A column that is a parameter becomes the property named like its field, and what its location cannot hold is not
    made of it: a boolean comes back as one, and where only text can be, text that looks like JSON stays text.

    Args:
        columns: names of the result columns.
        parameters: the projections that may be selected as they are, by the parameter's text.
    """
    if len(columns) == 1 and columns[0].lower().startswith("json"):
        return _whole_document
    names = tuple(parameters[column].field if column in parameters else column for column in columns)
    passed = {parameters[column].field: parameters[column] for column in columns if column in parameters}
    booleans = tuple(name for name, parameter in passed.items() if parameter.types - {"null"} == {"boolean"})
    converted = tuple(name for name in dict.fromkeys(names) if name not in passed or not _comes_back(passed[name]))
    parsed = frozenset(name for name in converted if name not in passed or _may_be_structured(passed[name]))
    if not converted and not booleans:
        return lambda row: dict(zip(names, row, strict=True))

    def document(row: Sequence[Any]) -> Document:
        made = dict(zip(names, row, strict=True))
        for name in converted:
            value = made[name]
            kind = type(value)
            if kind is str:
                if value[:1] in _CLOSING and name in parsed:
                    made[name] = _parsed(value)
            elif kind is bytes or (kind is float and not isfinite(value)):
                made[name] = _json(value)
        for name in booleans:
            if made[name] in (0, 1):
                made[name] = made[name] == 1
        return made

    return document


def _comes_back(projection: ProjectionSpec) -> bool:
    """Whether what SQLite is given of a location, and gives back, is the location's value."""
    if _may_be_structured(projection):
        return False
    # Bytes are decoded from base64, and text of a number's format may be infinite; numbers of JSON are finite.
    return "string" not in projection.types or (
        projection.content_encoding != "base64" and projection.format != "number"
    )


def _may_be_structured(projection: ProjectionSpec) -> bool:
    return bool(projection.types & _STRUCTURED) or isinstance((*projection.default, None)[0], dict | list)


def _json(value: bytes | float) -> JSON:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def _parsed(text: str) -> JSON:
    if len(text) > 1 and _CLOSING[text[0]] == text[-1]:
        written = text.encode()
        try:
            value = parse_exact(written)
        except ValueError:
            return text
        _check_levels(written, [value])
        return value
    return text


def _check_levels(text: bytes, value: JSON) -> None:
    """Raise if what was read from a text makes a document of too many levels: few texts have as many brackets."""
    if text.count(b"[") + text.count(b"{") >= MOST_LEVELS and is_too_deep(value):
        raise LambdaError(f"what it published cannot be a document: {TOO_DEEP}")


def _whole_document(row: Sequence[Any]) -> Document:
    try:
        text = row[0].encode() if isinstance(row[0], str) else row[0]
        value = parse_exact(text)
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, dict):
        shown = "NULL" if row[0] is None else repr(row[0])
        raise LambdaError(f"a column whose name begins with 'json' is the document, and this is no object: {shown}")
    _check_levels(text, value)
    return value
