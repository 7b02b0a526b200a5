"""The relations of PostgreSQL's catalogs with their columns; `derive.sql.pg_catalog` makes their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from derive.algebra.relation import GlobalId
from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.sql.planner.names import FIRST_SYSTEM_ID, FUNCTIONS, NamedColumn, NamedRelation, RelationKind

PG_CATALOG, INFORMATION_SCHEMA = "pg_catalog", "information_schema"

_NAME = TypeModifier(ModifiedType.NAME, 0)
_KINDS: Mapping[str, tuple[Type, TypeModifier | None]] = {
    "bool": (Type.BOOLEAN, None),
    "bool[]": (Type.BOOLEAN_ARRAY, None),
    "bytea": (Type.BYTEA, None),
    "cardinal_number": (Type.INTEGER, None),
    "char": (Type.TEXT, TypeModifier(ModifiedType.CHAR, 0)),
    "float4": (Type.DOUBLE, TypeModifier(ModifiedType.FLOAT4, 0)),
    "float4[]": (Type.DOUBLE_ARRAY, None),
    "float8": (Type.DOUBLE, None),
    "float8[]": (Type.DOUBLE_ARRAY, None),
    "inet": (Type.INET, None),
    "int2": (Type.SMALLINT, None),
    "int2[]": (Type.SMALLINT_ARRAY, None),
    "int2vector": (Type.SMALLINT_ARRAY, TypeModifier(ModifiedType.INT2VECTOR, 0)),
    "int4": (Type.INTEGER, None),
    "int4[]": (Type.INTEGER_ARRAY, None),
    "int8": (Type.BIGINT, None),
    "interval": (Type.INTERVAL, None),
    "name": (Type.TEXT, _NAME),
    "numeric": (Type.NUMERIC, None),
    "oid": (Type.OID, None),
    "oid[]": (Type.OID_ARRAY, None),
    "oidvector": (Type.OID_ARRAY, TypeModifier(ModifiedType.OIDVECTOR, 0)),
    "regproc": (Type.REGPROC, None),
    "regtype": (Type.REGTYPE, None),
    "regtype[]": (Type.REGTYPE_ARRAY, None),
    "sql_identifier": (Type.TEXT, _NAME),
    "timestamptz": (Type.TIMESTAMPTZ, None),
    "xid": (Type.OID, None),
}
"""Types of columns; columns of all other types are texts, or arrays of texts."""

_FUNCTIONS = {
    "pg_get_keywords": "word:text catcode:char barelabel:bool catdesc:text baredesc:text",
    "pg_available_extensions": "name:name default_version:text comment:text",
}
"""Functions without arguments that return several columns."""


@cache
def system_relations() -> Mapping[tuple[str, str], NamedRelation]:
    """Return the relations by schema and name; a function that returns rows is a relation of its name."""
    columns: dict[str, str] = json.loads((files(__package__) / "system_relations.json").read_text())
    columns |= {f"{FUNCTIONS}.{name}": text for name, text in _FUNCTIONS.items()}
    columns[f"{FUNCTIONS}.pg_show_all_settings"] = columns[f"{PG_CATALOG}.pg_settings"]
    relations = {}
    for number, (full_name, text) in enumerate(sorted(columns.items()), start=FIRST_SYSTEM_ID):
        schema, _, name = full_name.partition(".")
        named = tuple(map(_column, text.split()))
        relations[schema, name] = NamedRelation(number, name, named, RelationKind.SYSTEM)
    return relations


def system_relation(schema: str | None, name: str) -> NamedRelation | None:
    """Return the system relation of a name; None if there is none."""
    return system_relations().get((schema or PG_CATALOG, name))


@cache
def system_name(identifier: GlobalId) -> str:
    """Return the name of a system relation with its schema."""
    return next(
        f"{schema}.{name}" for (schema, name), relation in system_relations().items() if relation.id == identifier
    )


def _column(text: str) -> NamedColumn:
    name, _, kind = text.partition(":")
    default = (Type.TEXT_ARRAY if kind.endswith("[]") else Type.TEXT, None)
    column_type, modifier = _KINDS.get(kind, default)
    return NamedColumn(name, column_type, modifier=modifier)
