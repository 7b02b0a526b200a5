"""SQL types, the representation of their values in rows, and type modifiers of columns.

There is one representation: a *datum*, a value that SQLite stores. For every type, SQLite's comparison of two data
equals the comparison of their values, so keys, joins, groups and orders need nothing else. NULL is None for all types.

| type | datum |
|---|---|
| boolean | int 0 or 1 |
| smallint, integer, bigint | int |
| double precision | float, never -0.0; the text `NaN`, which SQLite and PostgreSQL order after all numbers |
| real | as for double precision; a number that single precision has |
| numeric | bytes that sort as numbers do, canonical for equal numbers (so 1.0 is 1) |
| text | str; SQLite's `BINARY` collation is the order of code points |
| bytea | bytes |
| jsonb | str: JSON text, canonical for equal values |
| date | int: days since 1970-01-01 |
| timestamp, timestamp with time zone, mz_timestamp | int: microseconds since 1970-01-01 (UTC) |
| interval | bytes that sort as durations do |
| time | int: microseconds since midnight |
| time with time zone | int that sorts by the time in UTC and then by the zone (`derive.functions.types.timetz`) |
| uuid, macaddr | bytes |
| oid, and the `reg…` types of PostgreSQL's catalogs | int from 0 to 4294967295 |
| inet, cidr | bytes that sort as addresses do (`derive.functions.types.network`) |
| arrays | bytes that sort by their elements in order, then by their dimensions (`derive.functions.types.array`) |

A row stores no scale, and no trailing spaces of `character(n)`: equal values have equal data, so that insertions and
deletions of rows cancel out and groups need no representative. The number of displayed zeros and spaces follows from
the query alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

Datum: TypeAlias = int | float | str | bytes | None
"""A value of any type, as SQLite stores it."""

Row: TypeAlias = tuple[Datum, ...]
"""One row of a relation: a datum for each column."""


class Type(Enum):
    """A SQL type. The value is its name in PostgreSQL's `format_type`."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
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
    TIMETZ = "time with time zone"
    UUID = "uuid"
    INET = "inet"
    CIDR = "cidr"
    MACADDR = "macaddr"
    MZ_TIMESTAMP = "mz_timestamp"
    OID = "oid"
    REGCLASS = "regclass"
    REGTYPE = "regtype"
    REGPROC = "regproc"
    REGNAMESPACE = "regnamespace"
    REGROLE = "regrole"
    UNKNOWN = "unknown"
    """The type of a literal or parameter that is not inferred yet; no column has it."""
    BOOLEAN_ARRAY = "boolean[]"
    SMALLINT_ARRAY = "smallint[]"
    INTEGER_ARRAY = "integer[]"
    BIGINT_ARRAY = "bigint[]"
    REAL_ARRAY = "real[]"
    DOUBLE_ARRAY = "double precision[]"
    NUMERIC_ARRAY = "numeric[]"
    TEXT_ARRAY = "text[]"
    BYTEA_ARRAY = "bytea[]"
    JSONB_ARRAY = "jsonb[]"
    DATE_ARRAY = "date[]"
    TIMESTAMP_ARRAY = "timestamp without time zone[]"
    TIMESTAMPTZ_ARRAY = "timestamp with time zone[]"
    TIME_ARRAY = "time without time zone[]"
    TIMETZ_ARRAY = "time with time zone[]"
    INTERVAL_ARRAY = "interval[]"
    UUID_ARRAY = "uuid[]"
    INET_ARRAY = "inet[]"
    CIDR_ARRAY = "cidr[]"
    MACADDR_ARRAY = "macaddr[]"
    OID_ARRAY = "oid[]"
    REGTYPE_ARRAY = "regtype[]"

    @property
    def array(self) -> Type | None:
        """Return the type of arrays of this type; None if there is none."""
        return _ARRAYS.get(self)

    @property
    def element(self) -> Type | None:
        """Return the element type of an array type; None for other types."""
        return _ELEMENTS.get(self)


_ELEMENTS = {kind: Type(kind.value.removesuffix("[]")) for kind in Type if kind.value.endswith("[]")}
_ARRAYS = {element: kind for kind, element in _ELEMENTS.items()}
ARRAYS = tuple(_ELEMENTS)
"""All array types."""

PLAIN_BYTES = frozenset({Type.NUMERIC, Type.BYTEA, Type.UUID, Type.INET, Type.CIDR, Type.MACADDR})
"""Types whose data are bytes with the equality and order of their values."""
OF_BYTES = PLAIN_BYTES | {Type.INTERVAL, *ARRAYS}
"""All types whose data are bytes."""

REGISTERED = frozenset({Type.REGCLASS, Type.REGTYPE, Type.REGPROC, Type.REGNAMESPACE, Type.REGROLE})
"""Types of oids whose texts are names of objects in PostgreSQL's catalogs."""
CATALOG_TYPES = REGISTERED | {Type.OID, Type.OID_ARRAY, Type.REGTYPE_ARRAY}
"""Types of PostgreSQL's catalogs; no stored column has them."""


class ModifiedType(Enum):
    """Types of PostgreSQL that have modifiers, or share the data of another type; the value is the name in messages."""

    NUMERIC = "numeric"
    VARCHAR = "character varying"
    BPCHAR = "character"
    NAME = "name"
    CHAR = '"char"'
    INT2VECTOR = "int2vector"
    OIDVECTOR = "oidvector"
    VOID = "void"
    RECORD = "record"
    RECORDS = "record[]"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    TIME = "time without time zone"
    TIMETZ = "time with time zone"

    @property
    def has_precision(self) -> bool:
        """Return whether the modifier is the number of digits of seconds."""
        return self in {ModifiedType.TIMESTAMP, ModifiedType.TIMESTAMPTZ, ModifiedType.TIME, ModifiedType.TIMETZ}


_PART = re.compile("[^{},]+")
"""An element in the text of an array of numbers."""


@dataclass(frozen=True, slots=True)
class TypeModifier:
    """A type modifier: how values of a column are stored and displayed.

    Attributes:
        name: the type.
        size: maximum digits of a number, or characters of a text; for a time, the digits of its seconds and one; 0 for
            no limit.
        scale: minimum number of displayed digits after the decimal point, for numbers.
        zone: time zone of a session, in which times are displayed; only columns of results have one.
    """

    name: ModifiedType
    size: int
    scale: int = 0
    zone: str = field(default="", kw_only=True)

    @property
    def typmod(self) -> int:
        """Return PostgreSQL's encoding of the modifier; -1 for none."""
        if not self.size:
            return -1
        if self.name.has_precision:
            return self.size - 1
        return (self.size << 16 | self.scale & 0x7FF) + 4 if self.name is ModifiedType.NUMERIC else self.size + 4

    @property
    def is_type(self) -> bool:
        """Return whether the modifier only names a type that shares the data of another type."""
        own = {ModifiedType.NUMERIC, ModifiedType.VARCHAR, ModifiedType.BPCHAR}
        return self.name not in own and not self.name.has_precision

    @property
    def is_vector(self) -> bool:
        """Return whether values are vectors of the catalogs: arrays whose elements are counted from 0."""
        return self.name in {ModifiedType.INT2VECTOR, ModifiedType.OIDVECTOR}

    @property
    def text(self) -> str:
        """Return the type with its modifier in SQL syntax."""
        if not self.size:
            return self.name.value
        if self.name.has_precision:
            first, _, rest = self.name.value.partition(" ")
            return f"{first}({self.size - 1}) {rest}"
        return f"{self.name.value}({self.size}{f',{self.scale}' if self.name is ModifiedType.NUMERIC else ''})"

    def shown(self, text: str) -> str:
        """Return the text of a value, or of an array of such values, that clients receive."""
        if self.name is ModifiedType.BPCHAR:
            return text.ljust(self.size)
        if self.is_vector:
            return text.strip("{}").replace(",", " ")
        if self.name is ModifiedType.VARCHAR or self.scale <= 0 or text == "{}":
            return text
        if text[0] == "{":  # texts of numbers have no quotes
            return _PART.sub(lambda part: self.shown(part[0]), text)
        if not text[-1].isdigit():
            return text
        before, _, behind = text.partition(".")
        return f"{before}.{behind.ljust(self.scale, '0')}"


def number(scale: int) -> TypeModifier:
    """Return the modifier of a number of any size with this number of displayed digits after the decimal point."""
    return TypeModifier(ModifiedType.NUMERIC, 0, scale)
