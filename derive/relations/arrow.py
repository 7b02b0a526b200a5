"""Rows of collections as Arrow, which pandas, DuckDB and Spark read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa

from derive.algebra.types import Row, Type
from derive.document.columns import spare_pandas
from derive.errors import UsageError
from derive.functions.types.array import elements_of, sizes_of
from derive.functions.types.type_info import INFOS, text_of
from derive.relations.columns import RelationColumn

spare_pandas()  # before the first array

_ARROW: Mapping[Type, pa.DataType] = {
    Type.BOOLEAN: pa.bool_(),
    Type.SMALLINT: pa.int16(),
    Type.INTEGER: pa.int32(),
    Type.BIGINT: pa.int64(),
    Type.REAL: pa.float32(),
    Type.DOUBLE: pa.float64(),
    Type.BYTEA: pa.binary(),
    Type.DATE: pa.date32(),
    Type.TIMESTAMP: pa.timestamp("us"),
    Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Type.MZ_TIMESTAMP: pa.int64(),
}
"""Types with an Arrow equivalent, and lists of them; all others are texts, including `numeric`, which is unbounded."""

_CONVERSIONS: Mapping[Type, Callable[[Any], Any]] = {Type.BOOLEAN: bool, Type.REAL: float, Type.DOUBLE: float}
_TEXTS = {kind for kind, info in INFOS.items() if not info.is_text} - _ARROW.keys()


def arrow_type(kind: Type) -> pa.DataType:
    """Return the Arrow type of a type."""
    return pa.list_(arrow_type(kind.element)) if kind.element else _ARROW.get(kind, pa.string())


def arrow_schema(columns: Sequence[RelationColumn]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(column.name, arrow_type(column.type), nullable=column.nullable) for column in columns])


def arrow_rows(columns: Sequence[RelationColumn], rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a record batch."""
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(column.type, data) for column, data in zip(columns, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _array(kind: Type, data: Sequence[Any]) -> pa.Array:
    convert = _conversion(kind)
    if convert:
        data = [None if datum is None else convert(datum) for datum in data]
    return pa.array(data, arrow_type(kind))


def _conversion(kind: Type) -> Callable[[Any], Any] | None:
    """Return the function that converts a datum for Arrow; None if no conversion is needed."""
    if kind in _TEXTS:
        return lambda datum: text_of(kind, datum)
    element = kind.element
    if element is None:
        return _CONVERSIONS.get(kind)
    convert = _conversion(element) or (lambda datum: datum)
    return partial(_listed, element, convert)


def _listed(element: Type, convert: Callable[[Any], Any], datum: bytes) -> list[Any]:
    if sizes_of(element, datum):
        hint = "cast the column to text, or to JSON with to_jsonb"
        raise UsageError("Arrow lists have one dimension, and this array has several", hint=hint)
    return [None if item is None else convert(item) for item in elements_of(element, datum)]


def polars_frame(table: pa.Table) -> Any:
    """Return a table as a polars DataFrame.

    Raises:
        UsageError: polars is not installed.
    """
    try:
        polars = import_module("polars")
    except ImportError as exc:
        raise UsageError("polars is not installed", hint="install it: pip install polars") from exc
    return polars.from_arrow(table)
