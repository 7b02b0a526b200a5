"""Types of PostgreSQL: one row of `pg_type` for each, their names, and their oids for clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.functions.types.type_info import INFO_OF, INFOS


@dataclass(frozen=True, slots=True)
class PgType:
    """A type of results or parameters.

    Attributes:
        oid: oid.
        name: `typname`.
        type: type of its data.
        size: size of a value in bytes, -1 if variable.
        category: `typcategory`.
        array: oid of its array type; 0 if missing.
        element: for an array, oid of its element type; else 0.
    """

    oid: int
    name: str
    type: Type
    size: int
    category: str
    array: int = 0
    element: int = 0

    @property
    def is_by_value(self) -> bool:
        """Return `typbyval`."""
        return self.size in _ALIGNMENTS

    @property
    def alignment(self) -> str:
        """Return `typalign`."""
        if self.name in {"name", "uuid", "unknown"}:
            return "c"
        return "d" if self.name in {"interval", "record", "_record", "timetz"} else _ALIGNMENTS.get(self.size, "i")

    @property
    def storage(self) -> str:
        """Return `typstorage`."""
        if self.size != -1 or self.name in {"int2vector", "oidvector"}:
            return "p"
        return "m" if self.name in {"numeric", "inet", "cidr"} else "x"

    @property
    def has_collation(self) -> bool:
        """Return whether the type is a text, or an array of texts."""
        return self.category == "S" or (self.element in PG_TYPES and PG_TYPES[self.element].category == "S")


_ALIGNMENTS = {1: "c", 2: "s", 4: "i", 8: "d"}
"""Alignments of types by size; other sizes have `i`."""

UNKNOWN_OID = 705
"""Oid of a literal or parameter with an unknown type."""
VOID_OID = 2278
"""Oid of a parameter for the output of a function, which the function does not get."""

_SCALARS = (
    PgType(18, "char", Type.TEXT, 1, "Z", 1002),
    PgType(19, "name", Type.TEXT, 64, "S", 1003),
    PgType(114, "json", Type.JSONB, -1, "U", 199),
    PgType(UNKNOWN_OID, "unknown", Type.TEXT, -2, "X"),
    PgType(1042, "bpchar", Type.TEXT, -1, "S", 1014),
    PgType(1043, "varchar", Type.TEXT, -1, "S", 1015),
    PgType(2249, "record", Type.TEXT, -1, "P", 2287),
    PgType(2278, "void", Type.TEXT, 4, "P"),
    PgType(2279, "trigger", Type.TEXT, 4, "P"),
    *(PgType(info.oid, info.name, kind, info.size, info.category, info.array) for kind, info in INFOS.items()),
)


def _array_type(scalar: PgType) -> Type:
    """Return the type of an array's data: an array type of SQL, or text such as `{1,2}`."""
    is_own = INFO_OF[scalar.type].oid == scalar.oid or scalar.name in {"varchar", "bpchar", "name", "char"}
    return scalar.type.array if is_own and scalar.type.array else Type.TEXT


def _array_category(element: PgType) -> str:
    """Return `typcategory` of an array; an array of rows is a pseudo-type like its element."""
    return "P" if element.category == "P" else "A"


PG_TYPES: Mapping[int, PgType] = {
    pg_type.oid: pg_type
    for pg_type in (
        *_SCALARS,
        *(
            PgType(
                scalar.array, f"_{scalar.name}", _array_type(scalar), -1, _array_category(scalar), element=scalar.oid
            )
            for scalar in _SCALARS
            if scalar.array
        ),
        PgType(22, "int2vector", Type.SMALLINT_ARRAY, -1, "A", 1006, element=21),
        PgType(30, "oidvector", Type.OID_ARRAY, -1, "A", 1013, element=26),
    )
}
"""Types by oid. Data of arrays without an SQL type are texts such as `{1,2}`."""

_NAMES = {18: '"char"', 1042: "character", 1043: "character varying"}


def _names() -> dict[int, str]:
    names: dict[int, str] = {}
    for pg_type in PG_TYPES.values():
        is_own = pg_type.oid == INFO_OF[pg_type.type].oid
        names[pg_type.oid] = _NAMES.get(pg_type.oid) or (pg_type.type.value if is_own else pg_type.name)
    for pg_type in PG_TYPES.values():
        if pg_type.name.startswith("_"):
            names[pg_type.oid] = f"{names[pg_type.element]}[]"
    return names


NAMES_OF_TYPES: Mapping[int, str] = _names()
"""Names of types as `format_type` returns them, by oid."""
OIDS_OF_TYPES: Mapping[str, int] = {
    **{pg_type.name: pg_type.oid for pg_type in PG_TYPES.values()},
    **{name: oid for oid, name in NAMES_OF_TYPES.items()},
    "int": 23,
    "bool": 16,
    "decimal": 1700,
    "timestamp": 1114,
    "timestamptz": 1184,
    "float": 701,
}
"""Oids of types by their names in SQL."""


def formatted_type(oid: int, typmod: int | None) -> str:
    """Return the name of a type with its modifier.

    Args:
        oid: oid of the type.
        typmod: PostgreSQL's encoding of the modifier; -1 or None for none.
    """
    name = NAMES_OF_TYPES.get(oid, "-" if oid == 0 else "???")
    if oid in _WITH_PRECISION and typmod is not None and typmod >= 0:
        first, _, rest = name.partition(" ")
        return f"{first}({typmod}) {rest}"
    if typmod is None or typmod < 4:
        return "bpchar" if oid == 1042 and typmod is not None else name
    size = typmod - 4
    if oid in {1042, 1043}:
        return f"{name}({size})"
    if oid == 1015:
        return f"{name.removesuffix('[]')}({size})[]"
    if oid in {1231, 1700}:
        numbers = f"({size >> 16},{(size & 0x7FF ^ 0x400) - 0x400})"
        return f"numeric{numbers}{'[]' if oid == 1231 else ''}"
    return name


OID_OF = {kind: info.oid for kind, info in INFO_OF.items()}
"""Oids for clients, by type. An MZ_TIMESTAMP is a bigint."""


_MODIFIED_OIDS = {
    ModifiedType.NUMERIC: 1700,
    ModifiedType.BPCHAR: 1042,
    ModifiedType.VARCHAR: 1043,
    ModifiedType.NAME: 19,
    ModifiedType.CHAR: 18,
    ModifiedType.INT2VECTOR: 22,
    ModifiedType.OIDVECTOR: 30,
    ModifiedType.VOID: VOID_OID,
    ModifiedType.RECORD: 2249,
    ModifiedType.RECORDS: 2287,
    ModifiedType.TIMESTAMP: 1114,
    ModifiedType.TIMESTAMPTZ: 1184,
    ModifiedType.TIME: 1083,
    ModifiedType.TIMETZ: 1266,
}


_WITH_PRECISION = frozenset({1083, 1114, 1184, 1266})
"""Oids of types whose modifier is the number of digits of seconds."""


def oid_of(kind: Type, modifier: TypeModifier | None = None) -> int:
    """Return the oid for clients of a type with its modifier."""
    if modifier is None or modifier.zone:
        return OID_OF[kind]
    oid = _MODIFIED_OIDS[modifier.name]
    return PG_TYPES[oid].array if kind.element is not None and not modifier.is_vector else oid


def type_of_oid(oid: int) -> Type | None:
    """Return the type of an oid from a client; None for 0 and for an unknown oid."""
    pg_type = PG_TYPES.get(oid)
    return pg_type.type if pg_type else None
