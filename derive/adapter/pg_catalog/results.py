"""Answers as sessions give them: columns with the names and types that PostgreSQL would give, and rows of data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from derive.adapter.arrays import literal_of
from derive.adapter.oids import PG_TYPES
from derive.adapter.outcome import ResultColumn
from derive.compute.algebra.types import Datum, Row, Type
from derive.compute.scalar.values import datum_of_text

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
"""Columns of which clients expect vectors: numbers with spaces in between."""
_CALL = re.compile(r'"?(\w+)"?\(')
_SUBQUERY_OR_SIGN = re.compile(r"\W")


def column_of(text: str, name: str, kind: str) -> ResultColumn:
    """A column of an answer.

    Args:
        text: of the query.
        name: that DuckDB gives it: an alias, or the expression as it is written.
        kind: its type, as DuckDB calls it.
    """
    if name in _VECTORS and kind.endswith("[]"):
        return ResultColumn(name, Type.TEXT, _VECTORS[name])
    base = kind.removesuffix("[]")
    oid = 18 if base.startswith("ENUM") else 1700 if base.startswith("DECIMAL") else _OIDS.get(base, 25)
    if kind.endswith("[]"):
        oid = PG_TYPES[oid].array or 1009
    return ResultColumn(_name(text, name), PG_TYPES[oid].type, oid)


def data_of(row: Sequence[object], columns: Sequence[ResultColumn]) -> Row:
    """A row of an answer."""
    return tuple(
        None if value is None else _datum(value, column.type, is_vector=column.oid in _VECTORS.values())
        for value, column in zip(row, columns, strict=True)
    )


def _name(text: str, name: str) -> str:
    if f'"{name}"' in text or (name.isidentifier() and name.lower() != "null"):
        return name
    if name.startswith("CASE "):
        return "case"
    if name.startswith("CAST("):
        return _name(text, name[5:].rpartition(" AS ")[0])
    call = _CALL.match(name)
    if call and name.endswith(")"):
        return call[1].removesuffix("_name") if call[1].startswith("reg") else call[1]
    last = name.rpartition(".")[2]
    return last if last.isidentifier() and not _SUBQUERY_OR_SIGN.search(name.replace(".", "")) else "?column?"


def _datum(value: object, kind: Type, *, is_vector: bool) -> Datum:
    match value:
        case bool() if kind is Type.BOOLEAN:
            return int(value)
        case list():
            return " ".join(map(str, value)) if is_vector else literal_of([_element(element) for element in value])
        case int() | float() | str() | bytes() if kind in _NATIVE:
            return value
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            return datum_of_text(kind, moment.isoformat())
        case date() | Decimal() | int() | float():
            return datum_of_text(kind, str(value))
    return str(value)


_NATIVE = {Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.DOUBLE, Type.TEXT, Type.BYTEA}


def _element(value: object) -> str | None:
    return None if value is None else ("t" if value else "f") if isinstance(value, bool) else str(value)
