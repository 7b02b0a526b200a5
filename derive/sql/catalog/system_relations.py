"""The relations of PostgreSQL's catalogs: names and columns; `derive.sql.pg_catalog` computes the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files

from derive.algebra.expression import Call, Column, Expression
from derive.algebra.relation import Get, GlobalId, Project, Relation
from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.functions.registry import resolve_function
from derive.sql.planner.interfaces import FIRST_SYSTEM_ID, FUNCTIONS, NamedColumn, NamedRelation, RelationKind

PG_CATALOG = "pg_catalog"

_NAME = TypeModifier(ModifiedType.NAME, 0)
_TYPES: Mapping[str, tuple[Type, TypeModifier | None]] = {
    "bool": (Type.BOOLEAN, None),
    "bool[]": (Type.BOOLEAN_ARRAY, None),
    "bytea": (Type.BYTEA, None),
    "cardinal_number": (Type.INTEGER, None),
    "char": (Type.TEXT, TypeModifier(ModifiedType.CHAR, 0)),
    "float4": (Type.REAL, None),
    "float4[]": (Type.REAL_ARRAY, None),
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

_FIRST_OID = 13_100
_KNOWN_OIDS = {
    "pg_default_acl": 826,
    "pg_tablespace": 1213,
    "pg_shdepend": 1214,
    "pg_type": 1247,
    "pg_attribute": 1249,
    "pg_proc": 1255,
    "pg_class": 1259,
    "pg_authid": 1260,
    "pg_auth_members": 1261,
    "pg_database": 1262,
    "pg_foreign_server": 1417,
    "pg_sequence": 2224,
    "pg_am": 2601,
    "pg_attrdef": 2604,
    "pg_cast": 2605,
    "pg_constraint": 2606,
    "pg_conversion": 2607,
    "pg_depend": 2608,
    "pg_description": 2609,
    "pg_index": 2610,
    "pg_inherits": 2611,
    "pg_language": 2612,
    "pg_largeobject": 2613,
    "pg_namespace": 2615,
    "pg_opclass": 2616,
    "pg_operator": 2617,
    "pg_rewrite": 2618,
    "pg_trigger": 2620,
    "pg_opfamily": 2753,
    "pg_extension": 3079,
    "pg_policy": 3256,
    "pg_statistic_ext": 3381,
    "pg_collation": 3456,
    "pg_event_trigger": 3466,
    "pg_enum": 3501,
    "pg_range": 3541,
    "pg_transform": 3576,
    "pg_subscription": 6100,
    "pg_publication": 6104,
}

_FUNCTIONS = {
    "pg_get_keywords": "word:text catcode:char barelabel:bool catdesc:text baredesc:text",
    "aclexplode": "grantor:oid grantee:oid privilege_type:text is_grantable:bool",
    "pg_options_to_table": "option_name:text option_value:text",
    "pg_available_extensions": "name:name default_version:text comment:text",
}
"""Functions that return several columns; each has no arguments, or returns no rows."""


@cache
def system_relations() -> Mapping[tuple[str, str], NamedRelation]:
    """Return the relations by schema and name; a function that returns rows is a relation of its name.

    The last column is the hidden column `tableoid`.
    """
    columns: dict[str, str] = json.loads((files(__package__) / "system_relations.json").read_text())
    columns |= {f"{FUNCTIONS}.{name}": text for name, text in _FUNCTIONS.items()}
    columns[f"{FUNCTIONS}.pg_show_all_settings"] = columns[f"{PG_CATALOG}.pg_settings"]
    relations = {}
    for number, (full_name, text) in enumerate(sorted(columns.items()), start=FIRST_SYSTEM_ID):
        schema, _, name = full_name.partition(".")
        named = tuple(map(_column, (*text.split(), "tableoid:oid")))
        relations[schema, name] = NamedRelation(number, name, named, RelationKind.SYSTEM)
    sequences = (PG_CATALOG, "pg_sequences")
    relations[sequences] = replace(relations[sequences], definition=_with_last_numbers(relations[sequences]))
    return relations


def _with_last_numbers(sequences: NamedRelation) -> Relation:
    """Return the rows of `pg_sequences`, whose stored rows have an oid in place of the last number."""
    values: list[Expression] = []
    types = [Type.REGCLASS if column.name == "last_value" else column.type for column in sequences.columns]
    function = resolve_function("pg_sequence_last_value", (Type.REGCLASS,)).function
    for index, (column, kind) in enumerate(zip(sequences.columns, types, strict=True)):
        value: Expression = Column(index, kind)
        values.append(Call(function, (value,), Type.BIGINT) if column.name == "last_value" else value)
    return Project(Get(sequences.id, tuple(types)), tuple(values))


def system_relation(schema: str | None, name: str) -> NamedRelation | None:
    """Return the system relation of a name; None if there is none."""
    return system_relations().get((schema or PG_CATALOG, name))


@cache
def system_oids() -> Mapping[str, int]:
    """Return the oids of the relations of `pg_catalog` by name: PostgreSQL's oids, or oids of this version."""
    names = sorted(name for schema, name in system_relations() if schema == PG_CATALOG)
    return {name: _KNOWN_OIDS.get(name, oid) for oid, name in enumerate(names, start=_FIRST_OID)}


@cache
def system_name(identifier: GlobalId) -> str:
    """Return the name of a system relation with its schema."""
    return next(
        f"{schema}.{name}" for (schema, name), relation in system_relations().items() if relation.id == identifier
    )


def _column(text: str) -> NamedColumn:
    name, _, kind = text.partition(":")
    default = (Type.TEXT_ARRAY if kind.endswith("[]") else Type.TEXT, None)
    column_type, modifier = _TYPES.get(kind, default)
    return NamedColumn(name, column_type, modifier=modifier)
