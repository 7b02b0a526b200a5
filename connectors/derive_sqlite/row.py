"""Rows: converts the rows that a statement returns to published documents, one by one, or many as columns."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from derive.document.columns import Columns, Kinds, are_finite
from derive.document.exact import MOST_LEVELS, TOO_DEEP, has_wide_integer, is_too_deep, parse_exact
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import Document, ProjectionSpec

Row: TypeAlias = Sequence[Any]
"""A result row: the value of each column."""

MakeDocument: TypeAlias = Callable[[Row], Document]
"""A function from a result row to the published document."""

_CLOSING = {"{": "}", "[": "]"}
_FIRST, _LAST = itemgetter(slice(1)), itemgetter(slice(-1, None))
_DEEP = 2 * MOST_LEVELS
"""Minimum number of characters of a text that is nested too deeply, because each level has two brackets."""

_STRUCTURED = frozenset({"array", "object"})


def property_names(columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]) -> tuple[str, ...]:
    """Return the properties of result columns; arguments as for `compile_row`."""
    return tuple(parameters[column].field if column in parameters else column for column in columns)


def compile_row(
    columns: Sequence[str], parameters: Mapping[str, ProjectionSpec], *, is_shown: bool = True
) -> MakeDocument:
    """Compile a function from a result row to the published document.

    A column that is a parameter becomes the property of its field. The value has a type that the schema of the field
    allows: a boolean stays a boolean, and text that looks like JSON stays text if only text is allowed.

    Args:
        columns: names of the result columns.
        parameters: projections of parameters that are selected unchanged, by the parameter's text.
        is_shown: whether errors show values; false if some are redacted.
    """
    if _is_document(columns):
        return partial(_whole_document, is_shown=is_shown)
    layout = _layout_of(columns, parameters)
    if not layout.converted and not layout.booleans:
        return lambda row: dict(zip(layout.names, row, strict=True))
    return _compile_document(layout)


def _compile_document(layout: RowLayout) -> MakeDocument:
    """Compile the function from source text, with one expression per property, because most values need no call."""
    converted = dict(layout.converted)
    terms = []
    for index, name in enumerate(layout.names):
        term = f"row[{index}]"
        if name in converted:
            is_text = f"kind is str and value[:1] not in {''.join(_CLOSING)!r}" if converted[name] else "kind is str"
            is_plain = f"(kind := type(value := {term})) is int or {is_text} or kind is none"
            term = f"value if {is_plain} else convert(value, is_parsed={converted[name]})"
        terms.append(f"{name!r}: boolean({term})" if name in layout.booleans else f"{name!r}: {term}")
    names = {"boolean": _boolean, "convert": _value, "none": type(None)}
    make: MakeDocument = eval(f"lambda row: {{{', '.join(terms)}}}", names)
    return make


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The conversion of a statement's columns to properties.

    Attributes:
        names: names of the properties.
        converted: properties whose values may need conversion, each with whether text may be parsed.
        booleans: properties whose values 0 and 1 become booleans.
    """

    names: tuple[str, ...]
    converted: tuple[tuple[str, bool], ...]
    booleans: tuple[str, ...]

    def columns(self, values: Sequence[Sequence[Any]]) -> Columns:
        """Return the documents of one or more rows as columns, given the values of each column.

        Raises:
            LambdaError: a row is not a valid document.
        """
        columns = Columns.of(self.names, values)
        for name, is_parsed in self.converted:
            index = self.names.index(name)
            if _may_differ(columns.values[index], columns.kinds[index], is_parsed=is_parsed):
                made = _values(columns.values[index], columns.kinds[index], is_parsed=is_parsed)
                columns = columns.replace(index, made)
        for name in self.booleans:
            index = self.names.index(name)
            columns = columns.replace(index, list(map(_boolean, columns.values[index])))
        return columns


def compile_layout(columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]) -> RowLayout | None:
    """Return the layout of result columns, for the arguments of `compile_row`; None if two columns share a property."""
    layout = _layout_of(columns, parameters)
    return None if _is_document(columns) or len(set(layout.names)) < len(columns) else layout


def _layout_of(columns: Sequence[str], parameters: Mapping[str, ProjectionSpec]) -> RowLayout:
    names = property_names(columns, parameters)
    passed = {parameters[column].field: parameters[column] for column in columns if column in parameters}
    booleans = tuple(name for name, parameter in passed.items() if parameter.types - {"null"} == {"boolean"})
    converted = tuple(name for name in dict.fromkeys(names) if name not in passed or not _round_trips(passed[name]))
    parsed = [name not in passed or _may_be_structured(passed[name]) for name in converted]
    return RowLayout(names, tuple(zip(converted, parsed, strict=True)), booleans)


def _is_document(columns: Sequence[str]) -> bool:
    return len(columns) == 1 and columns[0].lower().startswith("json")


def _value(value: Any, *, is_parsed: bool) -> JSON:
    """Convert a value of a row to JSON."""
    kind = type(value)
    if kind is str:
        return _parsed(value) if is_parsed and value[:1] in _CLOSING else value
    return _json(value) if kind is bytes or (kind is float and not isfinite(value)) else value


def _values(column: Sequence[Any], kinds: Kinds, *, is_parsed: bool) -> list[JSON]:
    """Convert the values of a column to JSON."""
    if is_parsed and kinds == {str} and _are_structured(column):
        with suppress(ValueError):  # texts that are not JSON stay text
            return list(map(orjson.loads, column))
    return [_value(value, is_parsed=is_parsed) for value in column]


def _are_structured(texts: Sequence[str]) -> bool:
    """Return whether all texts look like arrays or objects, with few levels and without large integers."""
    begins, ends = set(map(_FIRST, texts)), set(map(_LAST, texts))
    if not begins <= set(_CLOSING) or not ends <= set(_CLOSING.values()) or len(max(texts, key=len)) >= _DEEP:
        return False
    return not has_wide_integer(",".join(texts).encode())


def _boolean(value: JSON) -> JSON:
    return value == 1 if value in (0, 1) else value


def _may_differ(column: Sequence[Any], kinds: Kinds, *, is_parsed: bool) -> bool:
    """Return whether a value of a column may need conversion."""
    if bytes in kinds or (float in kinds and not are_finite(column, kinds)):
        return True
    if str not in kinds or not is_parsed:
        return False
    text = "".join([value for value in column if type(value) is str])
    return any(begin in text for begin in _CLOSING)


def _round_trips(projection: ProjectionSpec) -> bool:
    """Return whether SQLite returns a field's value unchanged."""
    if _may_be_structured(projection):
        return False
    # A text in base64 is decoded to bytes, and a text with the format of a number may be an infinity.
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
    """Raise an error if a value that was parsed from a text has too many levels."""
    if len(text) >= _DEEP and text.count(b"[") + text.count(b"{") >= MOST_LEVELS and is_too_deep(value):
        raise LambdaError(f"the lambda published a value that cannot be a document: {TOO_DEEP}")


def _whole_document(row: Row, *, is_shown: bool = True) -> Document:
    try:
        text = row[0].encode() if isinstance(row[0], str) else row[0]
        value = parse_exact(text)
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, dict):
        shown = "NULL" if row[0] is None else repr(row[0]) if is_shown else "a value that is not shown"
        raise LambdaError(
            f"a column whose name begins with 'json' must hold an object, which is the document; the value is {shown}"
        )
    _check_levels(text, value)
    return value


PART, FEW = 9_984, 256
"""Number of published documents in one batch, and number of rows that are transposed together."""
_ROW, _CAUSE = itemgetter(0), itemgetter(1)


class Gathered:
    """Collects rows as columns until a batch is full, with the index of the document that caused each row.

    Rows are transposed in small groups, which stay in the processor's caches; this costs a third of the time.
    """

    def __init__(self, width: int) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(width)]
        self.causes: list[int] = []
        self._rows: list[Row] = []

    def is_filled(self, counted: Iterator[tuple[Row, int]], last: int) -> bool:
        """Collect rows, each with the number of remaining documents; `last` is the index of the last document.

        Returns:
            Whether a batch is full; if not, there are no more rows.
        """
        while len(self.causes) < PART:
            taken: list[tuple[Row, int]] = []
            try:
                taken.extend(itertools.islice(counted, FEW - len(self._rows)))
            finally:  # also after a failed lambda
                self._rows.extend(map(_ROW, taken))
                self.causes.extend(map(last.__sub__, map(_CAUSE, taken)))
            if len(self._rows) < FEW:
                return False
            self._transpose()
        return True

    def add(self, rows: Sequence[Row], causes: Sequence[int]) -> None:
        """Collect rows and the indexes of their documents."""
        self._rows.extend(rows)
        self.causes.extend(causes)
        if len(self._rows) >= FEW:
            self._transpose()

    def take(self) -> tuple[list[int], list[list[Any]]]:
        """Return and clear the indexes and columns."""
        self._transpose()
        causes, columns = self.causes, self.columns
        self.causes, self.columns = [], [[] for _ in columns]
        return causes, columns

    def _transpose(self) -> None:
        if self._rows:
            for column, values in zip(self.columns, zip(*self._rows, strict=True), strict=True):
                column.extend(values)
        self._rows = []
