"""Types of PostgreSQL clients: oids, and texts of catalog arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.algebra.type_modifier import ModifiedType, TypeModifier
from derive.algebra.types import Type
from derive.functions.types.array import literal_of_texts, texts_of_literal
from derive.functions.types.type_info import INFO_OF, INFOS


def elements_of(literal: str) -> list[str | None]:
    """Return the elements of a one-dimensional array such as `{1,"a b",NULL}`, or of a vector such as `1 2`.

    Raises:
        SqlError: the text is invalid.
    """
    text = literal.strip()
    return list(text.split()) if not text or text[0].isdigit() else list(texts_of_literal(literal))


def literal_of(elements: Sequence[str | None]) -> str:
    """Return an array in the form that `elements_of` reads."""
    return literal_of_texts(elements)


@dataclass(frozen=True, slots=True)
class PgType:
    """A type of results or parameters.

    Attributes:
        oid: oid.
        name: `typname`.
        type: type of its data.
        size: size of a value in bytes, -1 if variable.
        category: `typcategory`.
        array: oid of its array type; 0 without one.
        element: for an array, oid of its element type; else 0.
    """

    oid: int
    name: str
    type: Type
    size: int
    category: str
    array: int = 0
    element: int = 0


UNKNOWN_OID = 705
"""Oid of a literal or parameter with an unknown type."""

_SCALARS = (
    PgType(18, "char", Type.TEXT, 1, "Z", 1002),
    PgType(19, "name", Type.TEXT, 64, "S", 1003),
    PgType(26, "oid", Type.BIGINT, 4, "N", 1028),
    PgType(114, "json", Type.JSONB, -1, "U", 199),
    PgType(700, "float4", Type.DOUBLE, 4, "N", 1021),
    PgType(UNKNOWN_OID, "unknown", Type.TEXT, -2, "X"),
    PgType(1042, "bpchar", Type.TEXT, -1, "S", 1014),
    PgType(1043, "varchar", Type.TEXT, -1, "S", 1015),
    PgType(2278, "void", Type.TEXT, 4, "P"),
    *(PgType(info.oid, info.name, kind, info.size, info.category, info.array) for kind, info in INFOS.items()),
)


def _array_type(scalar: PgType) -> Type:
    """Return the type of an array's data: an array type of SQL, or text such as `{1,2}`."""
    is_own = INFO_OF[scalar.type].oid == scalar.oid or scalar.name in {"varchar", "bpchar", "name"}
    return scalar.type.array if is_own and scalar.type.array else Type.TEXT


PG_TYPES = {
    pg_type.oid: pg_type
    for pg_type in (
        *_SCALARS,
        *(
            PgType(scalar.array, f"_{scalar.name}", _array_type(scalar), -1, "A", element=scalar.oid)
            for scalar in _SCALARS
            if scalar.array
        ),
        PgType(22, "int2vector", Type.TEXT, -1, "A", 1006, element=21),
        PgType(30, "oidvector", Type.TEXT, -1, "A", 1013, element=26),
    )
}
"""Types by oid. Data of arrays without an SQL type are texts such as `{1,2}`, and data of vectors such as `1 2`."""

OID_OF = {kind: info.oid for kind, info in INFO_OF.items()}
"""Oids for clients, by type. An MZ_TIMESTAMP is a bigint."""


_MODIFIED_OIDS = {ModifiedType.NUMERIC: 1700, ModifiedType.BPCHAR: 1042, ModifiedType.VARCHAR: 1043}


def oid_of(kind: Type, modifier: TypeModifier | None = None) -> int:
    """Return the oid for clients of a type with its modifier."""
    return _MODIFIED_OIDS[modifier.name] if modifier else OID_OF[kind]


def type_of_oid(oid: int) -> Type | None:
    """Return the type of an oid from a client; None for 0 and for an unknown oid."""
    pg_type = PG_TYPES.get(oid)
    return pg_type.type if pg_type else None
