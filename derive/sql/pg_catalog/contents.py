"""Rows of PostgreSQL's catalogs, for relations and types."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from derive.sql.backends import Backend
from derive.sql.pg_catalog.objects import FIRST_OID, CatalogObjects, ObjectRelation
from derive.sql.pg_types import PG_TYPES, oid_of

CatalogValue: TypeAlias = str | int | bool | list[int] | None
CatalogRow: TypeAlias = dict[str, CatalogValue]

PG_CATALOG, PUBLIC, INFORMATION_SCHEMA, _OTHERS = 11, 2200, 13_000, 15_000
_OWNER, _HEAP, _BTREE, _DATABASE = 10, 2, 403, 5
_FIRST_USER = 16_384
"""First oid of users, as in PostgreSQL for objects that are not built in."""
_RELATIONS, _DEFAULT_COLLATION, _BTREE_CLASS, _TABLESPACE = 1259, 100, 1978, 1663


def rows_of(objects: CatalogObjects) -> dict[str, list[CatalogRow]]:
    """Return the rows of each catalog relation that has rows; missing columns have defaults."""
    schemas = _schemas(objects)
    database: CatalogRow = {"oid": _DATABASE, "datname": objects.database, "datdba": _OWNER, "encoding": 6}
    database |= {"datallowconn": True, "datlocprovider": "c", "datcollate": "C", "datctype": "C", "datconnlimit": -1}
    database |= {"dattablespace": _TABLESPACE}
    return {
        "pg_namespace": [{"oid": oid, "nspname": name, "nspowner": _OWNER} for name, oid in schemas.items()],
        "pg_class": [row for relation in objects.relations for row in _classes(relation, schemas)],
        "pg_attribute": [row for relation in objects.relations for row in _attributes(relation)],
        "pg_attrdef": list(_defaults(objects)),
        "pg_index": [row for relation in objects.relations for row in _indexes(relation)],
        "pg_description": [
            {"objoid": FIRST_OID + relation.id, "classoid": _RELATIONS, "description": relation.comment}
            for relation in objects.relations
            if relation.comment
        ],
        "definition": [row for relation in objects.relations for row in _definitions(relation)],
        "pg_type": list(_types()),
        "pg_am": [
            {"oid": _HEAP, "amname": "heap", "amtype": "t"},
            {"oid": _BTREE, "amname": "btree", "amtype": "i"},
        ],
        "pg_opclass": [{"oid": _BTREE_CLASS, "opcmethod": _BTREE, "opcname": "any_ops", "opcdefault": True}],
        "pg_collation": [{"oid": _DEFAULT_COLLATION, "collname": "default", "collnamespace": PG_CATALOG}],
        "pg_database": [database],
        "pg_tablespace": [{"oid": _TABLESPACE, "spcname": "pg_default", "spcowner": _OWNER}],
        "pg_roles": roles_of(objects.owner),
        "pg_timezone_names": [{"name": "UTC", "abbrev": "UTC", "utc_offset": "00:00:00", "is_dst": False}],
    }


def roles_of(owner: str, user: str | None = None) -> list[CatalogRow]:
    """Return the rows of `pg_roles`: the owner, and the current user."""
    rights: CatalogRow = {"rolinherit": True, "rolcreatedb": True, "rolcanlogin": True, "rolconnlimit": -1}
    rights |= {"rolsuper": True, "rolcreaterole": True}
    names = dict.fromkeys([owner] if user is None else [owner, user])
    return [{"oid": _oid_of_user(name, owner), "rolname": name, **rights} for name in names]


def _oid_of_user(name: str, owner: str) -> int:
    """Return 10 for the owner, and for other users a 30-bit hash of the name."""
    return _OWNER if name == owner else _FIRST_USER + (zlib.crc32(name.encode()) >> 2)


def activity_of(backends: Sequence[Backend], owner: str) -> list[CatalogRow]:
    """Return the rows of `pg_stat_activity`.

    Args:
        backends: the open connections.
        owner: name of the user who owns all relations.
    """
    return [
        {
            "datid": _DATABASE,
            "datname": backend.database,
            "pid": backend.process,
            "usesysid": _oid_of_user(backend.user, owner),
            "usename": backend.user,
            "application_name": backend.application,
            "client_addr": backend.address and backend.address[0],
            "client_port": backend.address and backend.address[1],
            "backend_start": backend.begun.strftime("%Y-%m-%d %H:%M:%S.%f"),
            "state": backend.state,
            "query": backend.query,
            "backend_type": "client backend",
        }
        for backend in backends
    ]


def _schemas(objects: CatalogObjects) -> dict[str, int]:
    """Return the oids of all schemas."""
    schemas = {"pg_catalog": PG_CATALOG, "public": PUBLIC, "information_schema": INFORMATION_SCHEMA}
    others = sorted({relation.schema for relation in objects.relations} - set(schemas))
    return schemas | {name: oid for oid, name in enumerate(others, start=_OTHERS)}


def _classes(relation: ObjectRelation, schemas: dict[str, int]) -> Iterator[CatalogRow]:
    shared: CatalogRow = {"relnamespace": schemas[relation.schema], "relowner": _OWNER, "relpersistence": "p"}
    shared |= {"relispopulated": True, "reltuples": -1}
    yield shared | {
        "oid": FIRST_OID + relation.id,
        "relname": relation.name,
        "relkind": relation.kind.value,
        "relnatts": len(relation.columns),
        "relam": _HEAP if relation.kind.value != "v" else 0,
        "relreplident": "d",
        "relhasindex": bool(relation.indexes),
        "relhasrules": relation.kind.value == "v",
    }
    for index in relation.indexes:
        yield shared | {
            "oid": FIRST_OID + index.id,
            "relname": index.name,
            "relkind": "i",
            "relnatts": len(index.columns),
            "relam": _BTREE,
            "relreplident": "n",
        }


def _attributes(relation: ObjectRelation) -> Iterator[CatalogRow]:
    of_relation = [(FIRST_OID + relation.id, range(len(relation.columns)))]
    of_indexes = [(FIRST_OID + index.id, index.columns) for index in relation.indexes]
    for oid, columns in (*of_relation, *of_indexes):
        for number, column in enumerate((relation.columns[index] for index in columns), start=1):
            pg_type = PG_TYPES[oid_of(column.type, column.modifier)]
            yield {
                "attrelid": oid,
                "attname": column.name,
                "atttypid": pg_type.oid,
                "attlen": pg_type.size,
                "attnum": number,
                "atttypmod": column.modifier.typmod if column.modifier else -1,
                "atthasdef": column.default is not None and oid == of_relation[0][0],
                "attnotnull": not column.is_nullable,
                "attislocal": True,
                "attcollation": _DEFAULT_COLLATION if pg_type.category == "S" else 0,
                "attidentity": "",
                "attgenerated": "",
                "attstorage": "p" if pg_type.size > 0 else "x",
                "attcompression": "",
                "attstattarget": -1,
                "attalign": "i",
            }


def _defaults(objects: CatalogObjects) -> Iterator[CatalogRow]:
    for relation in objects.relations:
        for number, column in enumerate(relation.columns, start=1):
            if column.default is not None:
                oid = FIRST_OID + relation.id
                yield {"oid": oid, "adrelid": oid, "adnum": number, "adbin": column.default}


def _indexes(relation: ObjectRelation) -> Iterator[CatalogRow]:
    for index in relation.indexes:
        count = len(index.columns)
        yield {
            "indexrelid": FIRST_OID + index.id,
            "indrelid": FIRST_OID + relation.id,
            "indnatts": count,
            "indnkeyatts": count,
            "indimmediate": True,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indkey": [column + 1 for column in index.columns],
            "indoption": [0] * count,
            "indclass": [_BTREE_CLASS] * count,
            "indcollation": [0] * count,
        }


def _definitions(relation: ObjectRelation) -> Iterator[CatalogRow]:
    if relation.definition:
        yield {"oid": FIRST_OID + relation.id, "text": relation.definition}
    for index in relation.indexes:
        yield {"oid": FIRST_OID + index.id, "text": index.definition}


def _types() -> Iterator[CatalogRow]:
    for pg_type in PG_TYPES.values():
        yield {
            "oid": pg_type.oid,
            "typname": pg_type.name,
            "typnamespace": PG_CATALOG,
            "typowner": _OWNER,
            "typlen": pg_type.size,
            "typbyval": 0 < pg_type.size <= 8,
            "typtype": "p" if pg_type.category in ("P", "X") else "b",
            "typcategory": pg_type.category,
            "typispreferred": pg_type.name in ("bool", "float8", "text", "timestamptz", "interval"),
            "typisdefined": True,
            "typdelim": ",",
            "typelem": pg_type.element,
            "typarray": pg_type.array,
            "typinput": "array_in" if pg_type.element else f"{pg_type.name}in",
            "typoutput": "array_out" if pg_type.element else f"{pg_type.name}out",
            "typreceive": "array_recv" if pg_type.element else f"{pg_type.name}recv",
            "typsend": "array_send" if pg_type.element else f"{pg_type.name}send",
            "typalign": "i",
            "typstorage": "p" if pg_type.size > 0 else "x",
            "typtypmod": -1,
            "typcollation": _DEFAULT_COLLATION if pg_type.category == "S" else 0,
        }
