"""Rows of PostgreSQL's catalogs about relations, columns, indexes and types, with values by column name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from derive.functions.types.pg_type import PG_TYPES
from derive.sql.backends import Backend
from derive.sql.parser.tokens import COLUMNS_ONLY, FUNCTIONS_ONLY, NEEDS_AS, RESERVED
from derive.sql.pg_catalog.objects import FIRST_OID, CatalogObjects, ObjectRelation
from derive.sql.pg_catalog.procedures import PROCEDURES, procedure_name
from derive.sql.pg_types import oid_of

CatalogValue: TypeAlias = str | int | bool | list[int] | None
CatalogRow: TypeAlias = dict[str, CatalogValue]
"""Values by column; texts are parsed for columns of other types."""

PG_CATALOG, PUBLIC, INFORMATION_SCHEMA, _OTHERS = 11, 2200, 13_000, 15_000
_OWNER, _HEAP, _BTREE, _DATABASE = 10, 2, 403, 5
_FIRST_USER = 16_384
"""First oid of users, as in PostgreSQL for objects that are not built in."""
_RELATIONS, _DEFAULT_COLLATION, _BTREE_CLASS, _TABLESPACE = 1259, 100, 1978, 1663


def rows_of(objects: CatalogObjects) -> dict[str, Callable[[], Iterable[CatalogRow]]]:
    """Return functions that make the rows of each relation of `pg_catalog` that has rows; other values are defaults."""
    schemas = schemas_of(objects)

    def of_relations(rows: Callable[[ObjectRelation], Iterable[CatalogRow]]) -> Callable[[], Iterable[CatalogRow]]:
        return lambda: (row for relation in objects.relations for row in rows(relation))

    return {
        "pg_namespace": lambda: ({"oid": oid, "nspname": name, "nspowner": _OWNER} for name, oid in schemas.items()),
        "pg_class": of_relations(lambda relation: _classes(relation, schemas)),
        "pg_attribute": of_relations(_attributes),
        "pg_attrdef": of_relations(_defaults),
        "pg_index": of_relations(_indexes),
        "pg_description": of_relations(_comments),
        "pg_type": _types,
        "pg_proc": lambda: (
            {"oid": oid, "proname": name, "pronamespace": PG_CATALOG, "proowner": _OWNER, "prokind": "f"}
            for name, oid in PROCEDURES.items()
        ),
        "pg_am": lambda: (
            {"oid": _HEAP, "amname": "heap", "amtype": "t"},
            {"oid": _BTREE, "amname": "btree", "amtype": "i"},
        ),
        "pg_opclass": lambda: [{"oid": _BTREE_CLASS, "opcmethod": _BTREE, "opcname": "any_ops", "opcdefault": True}],
        "pg_collation": lambda: [{"oid": _DEFAULT_COLLATION, "collname": "default", "collnamespace": PG_CATALOG}],
        "pg_database": lambda: [_database(objects)],
        "pg_tablespace": lambda: [{"oid": _TABLESPACE, "spcname": "pg_default", "spcowner": _OWNER}],
        "pg_timezone_names": lambda: [{"name": "UTC", "abbrev": "UTC", "utc_offset": "00:00:00", "is_dst": False}],
    }


def _database(objects: CatalogObjects) -> CatalogRow:
    database: CatalogRow = {"oid": _DATABASE, "datname": objects.database, "datdba": _OWNER, "encoding": 6}
    database |= {"datallowconn": True, "datlocprovider": "c", "datcollate": "C", "datctype": "C", "datconnlimit": -1}
    return database | {"dattablespace": _TABLESPACE}


def keyword_rows() -> Iterator[CatalogRow]:
    """Yield the rows of `pg_get_keywords()`."""
    kinds = dict.fromkeys(COLUMNS_ONLY, ("C", "unreserved (cannot be function or type name)"))
    kinds |= dict.fromkeys(FUNCTIONS_ONLY, ("T", "reserved (can be function or type name)"))
    kinds |= dict.fromkeys(RESERVED, ("R", "reserved"))
    for word, (code, description) in sorted(kinds.items()):
        label = {"barelabel": word not in NEEDS_AS}
        label_text = "requires AS" if word in NEEDS_AS else "can be bare label"
        yield {"word": word, "catcode": code, "catdesc": description, "baredesc": label_text, **label}


def roles_of(owner: str, user: str) -> list[CatalogRow]:
    """Return the rows of `pg_roles`: the owner, and the current user."""
    rights: CatalogRow = {"rolinherit": True, "rolcreatedb": True, "rolcanlogin": True, "rolconnlimit": -1}
    rights |= {"rolsuper": True, "rolcreaterole": True}
    names = dict.fromkeys([owner, user])
    return [{"oid": oid_of_user(name, owner), "rolname": name, **rights} for name in names]


def users_of(owner: str, user: str) -> list[CatalogRow]:
    """Return the rows of `pg_user`."""
    return [
        {"usename": row["rolname"], "usesysid": row["oid"], "usecreatedb": True, "usesuper": True}
        | {"userepl": False, "usebypassrls": False}
        for row in roles_of(owner, user)
    ]


def settings_of(settings: Mapping[str, str]) -> list[CatalogRow]:
    """Return the rows of `pg_settings`."""
    return [
        {"name": name, "setting": value, "reset_val": value, "vartype": "string"} for name, value in settings.items()
    ]


def oid_of_user(name: str, owner: str) -> int:
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
            "usesysid": oid_of_user(backend.user, owner),
            "usename": backend.user,
            "application_name": backend.application,
            "client_addr": backend.address and backend.address[0],
            "client_port": backend.address and backend.address[1],
            "backend_start": _micros(backend.begun),
            "state": backend.state,
            "query": backend.query,
            "backend_type": "client backend",
        }
        for backend in backends
    ]


def schemas_of(objects: CatalogObjects) -> dict[str, int]:
    """Return the oids of all schemas."""
    schemas = {"pg_catalog": PG_CATALOG, "public": PUBLIC, "information_schema": INFORMATION_SCHEMA}
    others = sorted({relation.schema for relation in objects.relations} - set(schemas))
    return schemas | {name: oid for oid, name in enumerate(others, start=_OTHERS)}


def _comments(relation: ObjectRelation) -> Iterator[CatalogRow]:
    if relation.comment:
        yield {"objoid": FIRST_OID + relation.id, "classoid": _RELATIONS, "description": relation.comment}


def _micros(time: datetime) -> int:
    """Return a time in microseconds since 1970."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)


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


def _defaults(relation: ObjectRelation) -> Iterator[CatalogRow]:
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
            "typinput": PROCEDURES[procedure_name(pg_type, "in")],
            "typoutput": PROCEDURES[procedure_name(pg_type, "out")],
            "typreceive": PROCEDURES[procedure_name(pg_type, "recv")],
            "typsend": PROCEDURES[procedure_name(pg_type, "send")],
            "typalign": "i",
            "typstorage": "p" if pg_type.size > 0 else "x",
            "typtypmod": -1,
            "typcollation": _DEFAULT_COLLATION if pg_type.category == "S" else 0,
        }
