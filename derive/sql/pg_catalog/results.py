"""Results of catalog queries: columns with PostgreSQL's names and types, and rows of data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from derive.algebra.types import Datum, Type
from derive.functions.types.values import datum_of_text
from derive.sql.outcome import ResultColumn
from derive.sql.pg_catalog.effects import EFFECTS, Effect, effect_of
from derive.sql.pg_types import PG_TYPES, literal_of

_OIDS = {
    "BOOLEAN": 16,
    "TINYINT": 21,
    "SMALLINT": 21,
    "INTEGER": 23,
    "BIGINT": 20,
    "HUGEINT": 1700,
    "UINTEGER": 26,
    "UBIGINT": 1700,
    "FLOAT": 700,
    "DOUBLE": 701,
    "DATE": 1082,
    "TIMESTAMP": 1114,
    "TIMESTAMP WITH TIME ZONE": 1184,
    "BLOB": 17,
    "JSON": 114,
}
_VECTORS = {"indkey": 22, "indoption": 22, "indclass": 30, "indcollation": 30, "proargtypes": 30}
"""Columns that clients expect as vectors: numbers separated by spaces."""
_CALL = re.compile(r'"?(\w+)"?\(')
_SUBQUERY_OR_SIGN = re.compile(r"\W")
_SUBSCRIPT = re.compile(r"\[[^\[\]]*\]$")
_BEGINNINGS = {"CASE ": "case", "(SELECT CASE  WHEN ((array_agg(": "array"}
_CONSTANTS = ("null", "true", "false")
_FUNCTION_NAMES = {"count_star": "count", "list_value": "array", "date_part": "extract"}
_TYPE_NAMES = {
    "bigint": "int8",
    "boolean": "bool",
    "decimal": "numeric",
    "double": "float8",
    "integer": "int4",
    "json": "jsonb",
    "smallint": "int2",
    "uinteger": "oid",
    "varchar": "text",
}


def column_of(text: str, name: str, kind: str, example: object = None) -> ResultColumn:
    """Return a result column.

    Args:
        text: text of the query.
        name: DuckDB's name: an alias, or the text of the expression.
        kind: DuckDB's name of the type.
        example: a value of the column, if there is one.
    """
    if (effect := effect_of(example)) and effect.function in EFFECTS:
        oid = EFFECTS[effect.function]
        return ResultColumn(_name(text, name), PG_TYPES[oid].type, oid)
    if name in _VECTORS and kind.endswith("[]"):
        return ResultColumn(name, Type.TEXT, _VECTORS[name])
    base = kind.removesuffix("[]")
    oid = 18 if base.startswith("ENUM") else 1700 if base.startswith("DECIMAL") else _OIDS.get(base, 25)
    if kind.endswith("[]"):
        oid = PG_TYPES[oid].array or 1009
    return ResultColumn(_name(text, name), PG_TYPES[oid].type, oid)


def data_of(row: Sequence[object], columns: Sequence[ResultColumn]) -> tuple[Datum | Effect, ...]:
    """Return a row as data, with effects still to be executed."""
    return tuple(
        None
        if value is None
        else effect_of(value) or _datum(value, column.type, is_vector=column.oid in _VECTORS.values())
        for value, column in zip(row, columns, strict=True)
    )


def _name(text: str, name: str) -> str:
    """Return PostgreSQL's name for an expression."""
    if f'"{name}"' in text or (name.isidentifier() and name.lower() not in _CONSTANTS):
        return name
    if name.startswith("CAST("):
        operand, _, kind = name[5:-1].rpartition(" AS ")
        inner = _name(text, operand)
        return _TYPE_NAMES.get(kind.lower(), kind.lower().strip('"')) if inner == "?column?" else inner
    for beginning, known in _BEGINNINGS.items():
        if name.startswith(beginning):
            return known
    call = _CALL.match(name)
    if call and name.endswith(")"):
        function = call[1].lower().removeprefix("session_word_")
        if function.startswith(("reg", "to_reg")) and function not in text.lower():
            return function.removeprefix("to_").removesuffix("_name")
        return _FUNCTION_NAMES.get(function, function)
    last = _SUBSCRIPT.sub("", name).rpartition(".")[2]
    is_path = last.isidentifier() and not _SUBQUERY_OR_SIGN.search(_SUBSCRIPT.sub("", name).replace(".", ""))
    return last if is_path and last.lower() not in _CONSTANTS else "?column?"


def _datum(value: object, kind: Type, *, is_vector: bool) -> Datum:
    match value:
        case bool() if kind is Type.BOOLEAN:
            return int(value)
        case list():
            text = " ".join(map(str, value)) if is_vector else literal_of([_element(element) for element in value])
            return datum_of_text(kind, text)
        case int() | float() | str() | bytes() if kind in _NATIVE:
            return value
        case datetime():
            timestamp = value if value.tzinfo else value.replace(tzinfo=UTC)
            return datum_of_text(kind, timestamp.isoformat())
        case date() | Decimal() | int() | float():
            return datum_of_text(kind, str(value))
    return str(value)


_NATIVE = {Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.DOUBLE, Type.TEXT, Type.BYTEA}


def _element(value: object) -> str | None:
    return None if value is None else ("t" if value else "f") if isinstance(value, bool) else str(value)
