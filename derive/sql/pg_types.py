"""Types as PostgreSQL's clients know them: oids, and arrays of PostgreSQL's catalogs as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.algebra.form import Form, FormName
from derive.algebra.types import Type
from derive.functions.types.array import literal_of_texts, texts_of_literal
from derive.functions.types.type_info import INFO_OF, INFOS


def elements_of(literal: str) -> list[str | None]:
    """The elements of an array of one dimension, written as `{1,"a b",NULL}`, or of a vector, as `1 2`.

    Raises:
        SqlError: it is not written so.
    """
    text = literal.strip()
    return list(text.split()) if not text or text[0].isdigit() else list(texts_of_literal(literal))


def literal_of(elements: Sequence[str | None]) -> str:
    """An array, as `elements_of` reads it."""
    return literal_of_texts(elements)


@dataclass(frozen=True, slots=True)
class PgType:
    """A type that clients may be told, or may name for a parameter.

    Attributes:
        oid: its number.
        name: its `typname`.
        type: in whose form its data are.
        size: bytes of a value, -1 if that varies.
        category: `typcategory`.
        array: oid of the type of arrays of it; 0 for none.
        element: for an array, oid of its elements; else 0.
    """

    oid: int
    name: str
    type: Type
    size: int
    category: str
    array: int = 0
    element: int = 0


UNKNOWN_OID = 705
"""Of a literal or parameter whose type nothing has decided yet."""

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
    """In whose form arrays of a type are: in that of our own arrays, or as texts such as `{1,2}`."""
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
"""All of them by oid. Data of arrays whose type we do not have are texts such as `{1,2}`, of vectors such as `1 2`."""

OID_OF = {kind: info.oid for kind, info in INFO_OF.items()}
"""What clients are told of our types. A clock is a bigint to them."""


_FORM_OIDS = {FormName.NUMERIC: 1700, FormName.BPCHAR: 1042, FormName.VARCHAR: 1043}


def oid_of(kind: Type, form: Form | None = None) -> int:
    """What clients are told of a type, and of what is known beyond it."""
    return _FORM_OIDS[form.name] if form else OID_OF[kind]


def type_of_oid(oid: int) -> Type | None:
    """Our type for a type that a client has named; None for 0 and for what is not known here."""
    pg_type = PG_TYPES.get(oid)
    return pg_type.type if pg_type else None
