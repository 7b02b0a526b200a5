"""Oids of types for clients."""

from __future__ import annotations

from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.functions.types.pg_type import PG_TYPES
from derive.functions.types.type_info import INFO_OF

OID_OF = {kind: info.oid for kind, info in INFO_OF.items()}
"""Oids for clients, by type. An MZ_TIMESTAMP is a bigint."""


_MODIFIED_OIDS = {
    ModifiedType.NUMERIC: 1700,
    ModifiedType.BPCHAR: 1042,
    ModifiedType.VARCHAR: 1043,
    ModifiedType.NAME: 19,
    ModifiedType.CHAR: 18,
    ModifiedType.FLOAT4: 700,
    ModifiedType.INT2VECTOR: 22,
    ModifiedType.OIDVECTOR: 30,
    ModifiedType.VOID: 2278,
}


def oid_of(kind: Type, modifier: TypeModifier | None = None) -> int:
    """Return the oid for clients of a type with its modifier."""
    return _MODIFIED_OIDS[modifier.name] if modifier else OID_OF[kind]


def type_of_oid(oid: int) -> Type | None:
    """Return the type of an oid from a client; None for 0 and for an unknown oid."""
    pg_type = PG_TYPES.get(oid)
    return pg_type.type if pg_type else None
