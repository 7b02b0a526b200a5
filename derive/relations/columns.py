"""The columns of collections as relations, and the values of documents in them.

A collection of a catalog has a column for each of its fields, the key's first, then the document and its publication
time. A table has the columns of its definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from derive.algebra.types import Datum, Row, Type
from derive.document.clock import parse_rfc3339
from derive.document.exact import dump_exact
from derive.document.pointer import JSON, MISSING, parse_pointer
from derive.errors import SqlError
from derive.protocol.specs import CollectionSpec, Document, ProjectionSpec
from derive.schema.projection import UUID_POINTER
from derive.storage.table_types import Table

Source: TypeAlias = CollectionSpec | Table
"""A collection of a catalog, or a table."""

_TYPES: Mapping[frozenset[str], Type] = {
    frozenset({"integer"}): Type.BIGINT,
    frozenset({"integer", "fractional"}): Type.DOUBLE,
    frozenset({"fractional"}): Type.DOUBLE,
    frozenset({"string"}): Type.TEXT,
    frozenset({"boolean"}): Type.BOOLEAN,
}
"""SQL types by the JSON types of a field; other fields are `jsonb`, and texts with a format may have its type."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a collection.

    Attributes:
        name: name in SQL; unique in its collection.
        type: type of its data.
        nullable: whether it may be NULL.
        pointer: JSON pointer of its location in documents; the pointer of `flow_published_at` is not a location.
        default: value for documents without the location, as a tuple of one; empty for NULL.
    """

    name: str
    type: Type
    nullable: bool
    pointer: str
    default: tuple[JSON, ...] = ()


def columns_of(source: Source) -> tuple[RelationColumn, ...]:
    """Return the columns of a collection of a catalog, or of a table."""
    if isinstance(source, Table):
        return tuple(
            RelationColumn(column.name, Type(column.type), column.nullable, column.pointer) for column in source.columns
        )
    order = {pointer: index for index, pointer in enumerate(source.key)}
    fields = sorted(source.projections, key=lambda item: (_rank(item, order), item.field))
    return tuple(map(_column, fields))


def _rank(projection: ProjectionSpec, order: Mapping[str, int]) -> tuple[int, int]:
    """Return the sort key of a column: key fields, other fields, the document, its publication time."""
    if projection.pointer in order:
        return 0, order[projection.pointer]
    return ("", UUID_POINTER).index(projection.pointer) + 2 if projection.pointer in ("", UUID_POINTER) else 1, 0


def _column(projection: ProjectionSpec) -> RelationColumn:
    if projection.pointer == UUID_POINTER:
        return RelationColumn(projection.field, Type.TIMESTAMPTZ, nullable=False, pointer=UUID_POINTER)
    if projection.pointer == "":
        return RelationColumn(projection.field, Type.JSONB, nullable=False, pointer="")
    kind = _TYPES.get(projection.types - {"null"}, Type.JSONB)
    if kind is Type.TEXT and projection.format == "date-time" and not projection.is_key:
        kind = Type.TIMESTAMPTZ  # a key stays a text: two texts of one instant are two keys
    default = projection.default if projection.default and projection.default[0] is not None else ()
    nullable = "null" in projection.types or (projection.exists != "must" and not default)
    return RelationColumn(projection.field, kind, nullable, projection.pointer, default)


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
    """Return the keys of a document in their order, each with the JSON text before its value."""
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


MakeRows: TypeAlias = Callable[[Sequence[Document], Sequence[int]], list[Row]]
"""A function from documents and their timestamps to rows."""

_Data: TypeAlias = Callable[[Sequence[Document], Sequence[int]], Sequence[Datum]]
"""A function from documents and their timestamps to the data of one column."""

_NONE, _MISSING = type(None), type(MISSING)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_SECOND = 1_000_000
_DATE_TIME = re.compile(r"(.{17})(\d\d)(?:\.(\d+))?(.+)", re.ASCII)
"""The parts of an RFC 3339 time: up to the minute, second, digits of the fraction, offset."""
_SHOWN = 200


def compile_rows(columns: Sequence[RelationColumn], requested: Collection[int] | None = None) -> MakeRows:
    """Compile a function from documents of a catalog's collection, and their timestamps, to rows.

    The function raises a `SqlError` (22003) if a number does not fit its column's type.

    Args:
        columns: columns of the collection.
        requested: indexes of the needed columns; others are NULL. None for all.
    """
    compiled = [
        None if requested is not None and index not in requested else _compile(column)
        for index, column in enumerate(columns)
    ]

    def rows(documents: Sequence[Document], clocks: Sequence[int]) -> list[Row]:
        nothing = [None] * len(documents)
        made = [nothing if data is None else data(documents, clocks) for data in compiled]
        return list(zip(*made, strict=True))

    return rows


def _compile(column: RelationColumn) -> _Data:
    from derive.storage.segments.columns import compile_values

    if column.pointer == UUID_POINTER:
        return lambda _, clocks: clocks
    if column.pointer == "":
        return lambda documents, _: list(map(jsonb_text, documents))
    values = compile_values(column.pointer)
    default = column.default[0] if column.default else None
    convert, plain = _CONVERSIONS[column.type]

    def data(documents: Sequence[Document], _: Sequence[int]) -> Sequence[Datum]:
        present = values(documents)
        kinds = set(map(type, present))
        if _MISSING in kinds:
            present = [default if value is MISSING else value for value in present]
            kinds = set(map(type, present))
        if kinds <= plain and (int not in kinds or _fit(present)):
            return present
        try:
            return [None if value is None else convert(value) for value in present]
        except (OverflowError, TypeError, ValueError) as exc:
            raise _unfit(column, convert, present, documents) from exc

    return data


def _fit(values: Sequence[Any]) -> bool:
    """Return whether integers fit into 64 bits."""
    numbers = [value for value in values if value is not None]
    return not numbers or (min(numbers) >= _LEAST and max(numbers) <= _MOST)


def _bigint(value: JSON) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    number = int(value)
    if not _LEAST <= number <= _MOST:
        raise OverflowError
    return number


def _double(value: JSON) -> float:
    if isinstance(value, str):
        raise TypeError
    return float(value) + 0.0


def _text(value: JSON) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _instant(value: JSON) -> int:
    """Return the timestamp of a `date-time`, rounded to microseconds as PostgreSQL does; a leap second is the next."""
    match = _DATE_TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise TypeError
    minute, second, fraction, zone = match.groups()
    clock = parse_rfc3339(f"{minute}{min(second, '59')}{zone}") + (second == "60") * _SECOND
    return clock + round(float(f"0.{fraction or 0}") * _SECOND)


_CONVERSIONS: dict[Type, tuple[Callable[[JSON], Datum], frozenset[type]]] = {
    Type.BIGINT: (_bigint, frozenset({int, _NONE})),
    Type.DOUBLE: (_double, frozenset({_NONE})),
    Type.TEXT: (_text, frozenset({str, _NONE})),
    Type.BOOLEAN: (int, frozenset({_NONE})),
    Type.JSONB: (jsonb_text, frozenset({_NONE})),
    Type.TIMESTAMPTZ: (_instant, frozenset({_NONE})),
}
"""Function from a JSON value other than null to a datum, and the Python types that need no conversion, by type."""


def _unfit(
    column: RelationColumn, convert: Callable[[JSON], Datum], values: Sequence[JSON], documents: Sequence[Document]
) -> SqlError:
    """Return the error of the first value that its column's type cannot hold, with its document."""
    for value, document in zip(values, documents, strict=True):
        try:
            convert(value) if value is not None else None
        except (OverflowError, TypeError, ValueError) as exc:
            shown = _shown(document)
            if type(value) is int and isinstance(exc, OverflowError):
                what = f"'{column.name}' is {_shown(value)}, which is out of range for {column.type.value}, in {shown}"
                hint = f"query the document: (flow_document #>> '{_path(column)}')::numeric has integers of any size"
                return SqlError("22003", what, hint=hint)
            if column.type is Type.TIMESTAMPTZ and isinstance(exc, ValueError):
                what = f"'{column.name}' is {_shown(value)}, which is out of range for {column.type.value}, in {shown}"
                return SqlError("22008", what, hint=f"query the text: flow_document #>> '{_path(column)}'")
            return SqlError(
                "22003",
                f"'{column.name}' is {_shown(value)}, which is not of type {column.type.value}, in {shown}",
                hint="if the catalog was edited, restart the processes that started before the edit",
            )
    raise AssertionError("all values are data of their column's type")


def _shown(value: JSON) -> str:
    text = dump_exact(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _path(column: RelationColumn) -> str:
    return "{" + ",".join(parse_pointer(column.pointer)) + "}"
