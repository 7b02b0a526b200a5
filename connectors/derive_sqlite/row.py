"""Rows to documents."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import Document, ProjectionSpec

_CLOSING = {"{": "}", "[": "]"}


def compile_row(
    columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]
) -> Callable[[Sequence[Any]], Document]:
    """A function from a result row to the document it publishes.

    Args:
        columns: names of the result columns.
        parameters: the projections that may be selected as they are, by the parameter's text.
    """
    if len(columns) == 1 and columns[0].lower().startswith("json"):
        return _whole_document
    names = tuple(parameters[each].field if each in parameters else each for each in columns)
    booleans = [
        parameters[each].field for each in columns if each in parameters and parameters[each].types == {"boolean"}
    ]
    maybe_null = [
        parameters[each].field
        for each in columns
        if each in parameters and parameters[each].types == {"boolean", "null"}
    ]
    booleans += maybe_null

    def document(row: Sequence[Any]) -> Document:
        made = dict(zip(names, row, strict=True))
        for value in row:
            kind = type(value)
            if (kind is str and value[:1] in _CLOSING) or kind is bytes or (kind is float and not math.isfinite(value)):
                made = {name: _json(each) for name, each in zip(names, row, strict=True)}
                break
        for name in booleans:
            if made[name] is not None:
                made[name] = bool(made[name])
        return made

    return document


def _json(value: Any) -> JSON:
    kind = type(value)
    if kind is str:
        return _parsed(value)
    if kind is bytes:
        return base64.b64encode(value).decode()
    if kind is float and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"
    return value


def _parsed(text: str) -> JSON:
    if len(text) > 1 and _CLOSING.get(text[0]) == text[-1]:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _whole_document(row: Sequence[Any]) -> Document:
    try:
        value = orjson.loads(row[0])
    except (orjson.JSONDecodeError, TypeError):
        value = None
    if not isinstance(value, dict):
        raise LambdaError(f"a column whose name begins with 'json' is the document, and this is no object: {row[0]!r}")
    return value
