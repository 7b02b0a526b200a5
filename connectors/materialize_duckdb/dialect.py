"""DuckDB's names, types and values.

Integers are HUGEINT, of 128 bits, unless a schema bounds them to 64. Numbers are DOUBLE, the only type for fractions of
any size; an integer without an equal double is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.materialize_sql.column import Column, Kind
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.names import Naming
from connectors.materialize_sql.values import Encoder, encoder, key_text, unfit

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_MOST = (1 << 127) - 1
_EXACT = 1 << 53
"""Up to this bound each integer has an equal double."""


def _fold(name: str) -> str:
    return name.translate(_LOWER)  # DuckDB folds only the case of ASCII


DUCKDB = Dialect(
    title="DuckDB",
    naming=Naming(taken=frozenset({"rowid"}), fold=_fold),
    types={
        Kind.BOOLEAN: "BOOLEAN",
        Kind.BIGINT: "BIGINT",
        Kind.INTEGER: "HUGEINT",
        Kind.NUMBER: "DOUBLE",
        Kind.DECIMAL: "VARCHAR",
        Kind.TEXT: "VARCHAR",
        Kind.DATE: "DATE",
        Kind.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
        Kind.JSON: "JSON",
    },
    json_key="JSON",
    bytes_type="BLOB",
    mark="$",
    widenings=frozenset({("BIGINT", "HUGEINT")}),
    widens_keys=False,
    most_columns=1000,  # DuckDB has no bound; with twice as many, a transaction takes three times as long
    most_commented=200,  # a comment's cost grows with the number of the table's columns
)


def encoder_of(column: Column) -> Encoder:
    """Return the encoder of a column from packed values to DuckDB's: booleans, integers, doubles, texts and None."""
    if column.kind is Kind.JSON and column.is_key:
        return lambda values: list(map(key_text, values))
    checked = encoder(column.kind)
    if column.kind is Kind.INTEGER:
        return lambda values: _hugeints(checked(values))
    if column.kind is Kind.NUMBER:
        return lambda values: _doubles(checked(values))
    if column.kind is Kind.TIMESTAMP:  # DuckDB reads no small t or z
        return lambda values: [None if value is None else value.upper() for value in checked(values)]
    return checked


def _hugeints(values: Sequence[Any]) -> Sequence[Any]:
    present = [value for value in values if value is not None]
    if present and not -_MOST <= min(present) <= max(present) <= _MOST:
        raise unfit(values, lambda value: -_MOST <= value <= _MOST, "does not fit 128 bits")
    return values


def _doubles(values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if type(value) is int and not -_EXACT <= value <= _EXACT and not _is_double(value):
            raise unfit(values, _is_double, "is an integer that no double is equal to")
    return [None if value is None else float(value) for value in values]


def _is_double(value: int | float) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False
