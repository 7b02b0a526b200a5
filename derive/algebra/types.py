"""Types of values in SQL, and the form that a value of each has wherever rows are held.

There is one form: a *datum*, a value that SQLite stores. For every type two data are equal, or one before the other,
just as SQLite compares them, so keys, joins, groups and orders need nothing else. NULL is None for all types.

| type | datum |
|---|---|
| boolean | int 0 or 1 |
| smallint, integer, bigint | int |
| double precision | float, never -0.0; the text `NaN`, which SQLite has after all numbers, as PostgreSQL does |
| numeric | bytes that sort as numbers do, one form for equal numbers (so 1.0 is 1) |
| text | str; SQLite's `BINARY` collation is the order of code points |
| bytea | bytes |
| jsonb | str: JSON text of one form for equal values |
| date | int: days since 1970-01-01 |
| timestamp, timestamp with time zone, mz_timestamp | int: microseconds since 1970-01-01 (UTC) |
| interval | bytes that sort as spans do |
| time | int: microseconds since midnight |
| uuid, macaddr | bytes |
| inet, cidr | bytes that sort as addresses do (`derive.functions.types.network`) |
| arrays of one dimension | bytes that sort as their elements do, one after the other (`derive.functions.types.array`) |
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

Datum: TypeAlias = int | float | str | bytes | None
"""A value of any type, in the form in which SQLite stores it."""

Row: TypeAlias = tuple[Datum, ...]
"""One row of a relation: a datum for each column."""


class Type(Enum):
    """A type of SQL. The value is its name, as PostgreSQL's `format_type` gives it."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    DOUBLE = "double precision"
    NUMERIC = "numeric"
    TEXT = "text"
    BYTEA = "bytea"
    JSONB = "jsonb"
    DATE = "date"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    INTERVAL = "interval"
    TIME = "time without time zone"
    UUID = "uuid"
    INET = "inet"
    CIDR = "cidr"
    MACADDR = "macaddr"
    MZ_TIMESTAMP = "mz_timestamp"
    UNKNOWN = "unknown"
    """Of a literal or parameter whose type nothing has decided yet; no column has it."""
    BOOLEAN_ARRAY = "boolean[]"
    SMALLINT_ARRAY = "smallint[]"
    INTEGER_ARRAY = "integer[]"
    BIGINT_ARRAY = "bigint[]"
    DOUBLE_ARRAY = "double precision[]"
    NUMERIC_ARRAY = "numeric[]"
    TEXT_ARRAY = "text[]"
    BYTEA_ARRAY = "bytea[]"
    JSONB_ARRAY = "jsonb[]"
    DATE_ARRAY = "date[]"
    TIMESTAMP_ARRAY = "timestamp without time zone[]"
    TIMESTAMPTZ_ARRAY = "timestamp with time zone[]"
    TIME_ARRAY = "time without time zone[]"
    UUID_ARRAY = "uuid[]"
    INET_ARRAY = "inet[]"
    CIDR_ARRAY = "cidr[]"
    MACADDR_ARRAY = "macaddr[]"

    @property
    def array(self) -> Type | None:
        """The type of arrays of values of this type; None if there is none."""
        return _ARRAYS.get(self)

    @property
    def element(self) -> Type | None:
        """Of a type of arrays, that of their elements; else None."""
        return _ELEMENTS.get(self)


_ELEMENTS = {kind: Type(kind.value.removesuffix("[]")) for kind in Type if kind.value.endswith("[]")}
_ARRAYS = {element: kind for kind, element in _ELEMENTS.items()}
ARRAYS = tuple(_ELEMENTS)
"""All types of arrays. Intervals have none, as those of one span are equal and look different."""

PLAIN_BYTES = frozenset({Type.NUMERIC, Type.BYTEA, Type.UUID, Type.INET, Type.CIDR, Type.MACADDR})
"""Types whose data are bytes, equal where values are and in their order."""
OF_BYTES = PLAIN_BYTES | {Type.INTERVAL, *ARRAYS}
"""All types whose data are bytes."""
