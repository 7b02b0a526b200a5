"""Rows of PostgreSQL's catalogs, their views and `information_schema`; a row has values by column name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from derive.algebra.types import ModifiedType, Type
from derive.functions.types.pg_type import NAMES_OF_TYPES, PG_TYPES, oid_of
from derive.sql.backends import Backend
from derive.sql.parser.tokens import COLUMNS_ONLY, FUNCTIONS_ONLY, NEEDS_AS, RESERVED
from derive.sql.pg_catalog.objects import (
    FIRST_OID,
    PROCEDURES,
    CatalogObjects,
    ObjectKind,
    ObjectRelation,
    procedure_name,
)
from derive.sql.planner.interfaces import NamedColumn

CatalogValue: TypeAlias = str | int | bool | list[int] | None
CatalogRow: TypeAlias = dict[str, CatalogValue]
"""Values by column name; for columns of types other than text, a text value is parsed."""

PG_CATALOG, PUBLIC, INFORMATION_SCHEMA, _OTHERS = 11, 2200, 13_000, 15_000
_OWNER, _HEAP, _BTREE, _DATABASE = 10, 2, 403, 5
_FIRST_USER = 16_384
"""First oid of users, as in PostgreSQL for objects that are not built in."""
_RELATIONS, _REWRITE_RULES, _DEFAULT_COLLATION, _BTREE_CLASS, _TABLESPACE = 1259, 2618, 100, 1978, 1663


_OPERATOR_CLASS: CatalogRow = {"oid": _BTREE_CLASS, "opcmethod": _BTREE, "opcname": "any_ops", "opcdefault": True}
_OPERATOR_CLASS |= {"opcnamespace": PG_CATALOG, "opcowner": _OWNER}
_COLLATION: CatalogRow = {"oid": _DEFAULT_COLLATION, "collname": "default", "collnamespace": PG_CATALOG}
_COLLATION |= {"collowner": _OWNER, "collprovider": "d", "collisdeterministic": True, "collencoding": -1}


def rows_of(objects: CatalogObjects) -> dict[str, Callable[[], Iterable[CatalogRow]]]:
    """Return the functions that compute the rows of `pg_catalog`, by relation; missing values are defaults."""
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
        "pg_rewrite": of_relations(_rules),
        "pg_depend": of_relations(_dependencies),
        "pg_type": _types,
        "pg_proc": lambda: (
            {"oid": oid, "proname": name, "pronamespace": PG_CATALOG, "proowner": _OWNER, "prokind": "f"}
            for name, oid in PROCEDURES.items()
        ),
        "pg_am": lambda: (
            {"oid": _HEAP, "amname": "heap", "amtype": "t"},
            {"oid": _BTREE, "amname": "btree", "amtype": "i"},
        ),
        "pg_opclass": lambda: [_OPERATOR_CLASS],
        "pg_collation": lambda: [_COLLATION],
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


def _rules(relation: ObjectRelation) -> Iterator[CatalogRow]:
    """Yield the rule of a view, in which PostgreSQL keeps the view's query."""
    if relation.definition is not None:
        oid = FIRST_OID + relation.id
        yield {
            "oid": oid,
            "rulename": "_RETURN",
            "ev_class": oid,
            "ev_type": "1",
            "ev_enabled": "O",
            "is_instead": True,
        }


def _dependencies(relation: ObjectRelation) -> Iterator[CatalogRow]:
    """Yield the dependencies of indexes on their relation, and of a view's rule on the view and on its sources."""
    oid = FIRST_OID + relation.id
    for index in relation.indexes:
        on_columns: CatalogRow = {"classid": _RELATIONS, "objid": FIRST_OID + index.id, "refclassid": _RELATIONS}
        for column in index.columns:
            yield on_columns | {"refobjid": oid, "refobjsubid": column + 1, "deptype": "a"}
    if relation.definition is not None:
        rule: CatalogRow = {"classid": _REWRITE_RULES, "objid": oid, "refclassid": _RELATIONS}
        yield rule | {"refobjid": oid, "deptype": "i"}
        for used in relation.uses:
            yield rule | {"refobjid": FIRST_OID + used, "deptype": "n"}


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
        "relhasrules": relation.definition is not None,
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
                "attndims": int(column.type.element is not None and pg_type.category == "A"),
                "attbyval": pg_type.is_by_value,
                "attnum": number,
                "atttypmod": column.modifier.typmod if column.modifier else -1,
                "atthasdef": column.default is not None and oid == of_relation[0][0],
                "attnotnull": not column.is_nullable,
                "attislocal": True,
                "attcollation": _DEFAULT_COLLATION if pg_type.has_collation else 0,
                "attidentity": "",
                "attgenerated": "",
                "attstorage": pg_type.storage,
                "attcompression": "",
                "attstattarget": -1,
                "attalign": pg_type.alignment,
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
            "typbyval": pg_type.is_by_value,
            "typtype": "p" if pg_type.category in ("P", "X") else "b",
            "typcategory": pg_type.category,
            "typispreferred": pg_type.name in ("bool", "float8", "text", "timestamptz", "interval", "oid", "inet"),
            "typisdefined": True,
            "typdelim": ",",
            "typelem": pg_type.element,
            "typarray": pg_type.array,
            "typinput": PROCEDURES[procedure_name(pg_type, "in")],
            "typoutput": PROCEDURES[procedure_name(pg_type, "out")],
            "typreceive": PROCEDURES[procedure_name(pg_type, "recv")],
            "typsend": PROCEDURES[procedure_name(pg_type, "send")],
            "typalign": pg_type.alignment,
            "typstorage": pg_type.storage,
            "typtypmod": -1,
            "typcollation": _DEFAULT_COLLATION if pg_type.has_collation else 0,
        }


Rows: TypeAlias = Callable[[], Iterable[CatalogRow]]
"""A function that returns the rows of a relation."""

_PRECISIONS = {Type.SMALLINT: 16, Type.INTEGER: 32, Type.BIGINT: 64, Type.DOUBLE: 53}
_TIMES = {Type.TIMESTAMP: 6, Type.TIMESTAMPTZ: 6, Type.INTERVAL: 6, Type.TIME: 6, Type.DATE: 0}
_MOST_OCTETS = 1 << 30
_NO: CatalogRow = {"is_updatable": "NO", "is_insertable_into": "NO", "is_trigger_updatable": "NO"}
_NO |= {"is_trigger_deletable": "NO", "is_trigger_insertable_into": "NO"}


def views_of(objects: CatalogObjects, schemas: Mapping[str, int]) -> dict[str, Rows]:
    """Return, for each view (by name with schema), the function that computes its rows."""
    own = {f"pg_catalog.{name}": rows for name, rows in _catalog_views(objects).items()}
    others = _information_views(objects, schemas)
    return own | {f"information_schema.{name}": rows for name, rows in others.items()}


def _of_kinds(
    objects: CatalogObjects, kinds: Sequence[ObjectKind], rows: Callable[[ObjectRelation], Iterable[CatalogRow]]
) -> Rows:
    """Return a function that computes the rows of relations of some kinds."""
    return lambda: (row for relation in objects.relations if relation.kind in kinds for row in rows(relation))


def _catalog_views(objects: CatalogObjects) -> dict[str, Rows]:
    owner = objects.owner

    def tables(relation: ObjectRelation) -> Iterator[CatalogRow]:
        row = {"tablename": relation.name, "tableowner": owner, **_place(relation), **_has_indexes(relation)}
        yield row | {"hasrules": False, "hastriggers": False, "rowsecurity": False}

    def views(relation: ObjectRelation) -> Iterator[CatalogRow]:
        yield {"viewname": relation.name, "viewowner": owner, "definition": relation.definition, **_place(relation)}

    def materialized_views(relation: ObjectRelation) -> Iterator[CatalogRow]:
        named: CatalogRow = {"matviewname": relation.name, "matviewowner": owner, "ispopulated": True}
        yield named | {"definition": relation.definition} | _place(relation) | _has_indexes(relation)

    statistics = _of_kinds(objects, (ObjectKind.TABLE, ObjectKind.MATERIALIZED_VIEW), _statistics)
    prefixes = ("stat_user", "stat_all", "statio_user", "statio_all")
    return {
        "pg_tables": _of_kinds(objects, (ObjectKind.TABLE,), tables),
        "pg_views": _of_kinds(objects, (ObjectKind.VIEW,), views),
        "pg_matviews": _of_kinds(objects, (ObjectKind.MATERIALIZED_VIEW,), materialized_views),
        "pg_indexes": _of_kinds(objects, tuple(ObjectKind), _index_views),
        **{f"pg_{prefix}_tables": statistics for prefix in prefixes},
    }


def _information_views(objects: CatalogObjects, schemas: Mapping[str, int]) -> dict[str, Rows]:
    owner, database = objects.owner, objects.database

    def views(relation: ObjectRelation) -> Iterator[CatalogRow]:
        definition: CatalogRow = {"view_definition": relation.definition, "check_option": "NONE"}
        yield _named(relation, database) | definition | _NO

    def schemata() -> Iterator[CatalogRow]:
        for name in schemas:
            yield {"catalog_name": database, "schema_name": name, "schema_owner": owner}

    kinds = (ObjectKind.TABLE, ObjectKind.VIEW)
    return {
        "schemata": schemata,
        "information_schema_catalog_name": lambda: [{"catalog_name": database}],
        "tables": _of_kinds(objects, kinds, lambda relation: [_table(relation, database)]),
        "columns": _of_kinds(objects, kinds, lambda relation: _columns(relation, database)),
        "views": _of_kinds(objects, (ObjectKind.VIEW,), views),
    }


def _place(relation: ObjectRelation) -> CatalogRow:
    return {"schemaname": relation.schema}


def _has_indexes(relation: ObjectRelation) -> CatalogRow:
    return {"hasindexes": bool(relation.indexes)}


def _named(relation: ObjectRelation, database: str) -> CatalogRow:
    return {"table_catalog": database, "table_schema": relation.schema, "table_name": relation.name}


def _is_updatable(relation: ObjectRelation) -> str:
    return "YES" if relation.kind is ObjectKind.TABLE else "NO"


def _statistics(relation: ObjectRelation) -> Iterator[CatalogRow]:
    yield {"relid": FIRST_OID + relation.id, "relname": relation.name, **_place(relation)}


def _index_views(relation: ObjectRelation) -> Iterator[CatalogRow]:
    for index in relation.indexes:
        named: CatalogRow = {"tablename": relation.name, "indexname": index.name, "indexdef": index.definition}
        yield named | _place(relation)


def _table(relation: ObjectRelation, database: str) -> CatalogRow:
    is_view = relation.kind is ObjectKind.VIEW
    row = _named(relation, database) | {"table_type": "VIEW" if is_view else "BASE TABLE", "is_typed": "NO"}
    return row | {"is_insertable_into": _is_updatable(relation)}


def _columns(relation: ObjectRelation, database: str) -> Iterator[CatalogRow]:
    for number, column in enumerate(relation.columns, start=1):
        oid = oid_of(column.type, column.modifier)
        yield _named(relation, database) | {
            "column_name": column.name,
            "ordinal_position": number,
            "column_default": column.default,
            "is_nullable": "YES" if column.is_nullable else "NO",
            "data_type": "ARRAY" if column.type.element else NAMES_OF_TYPES[oid],
            **_sizes(column),
            "udt_catalog": database,
            "udt_schema": "pg_catalog",
            "udt_name": PG_TYPES[oid].name,
            "dtd_identifier": str(number),
            "is_self_referencing": "NO",
            "is_identity": "NO",
            "identity_cycle": "NO",
            "is_generated": "NEVER",
            "is_updatable": _is_updatable(relation),
        }


def _sizes(column: NamedColumn) -> CatalogRow:
    """Return the length or precision of a column's type."""
    sizes: CatalogRow = {"datetime_precision": _TIMES.get(column.type)}
    if column.type in _PRECISIONS:
        is_double = column.type is Type.DOUBLE
        sizes |= {"numeric_precision": _PRECISIONS[column.type], "numeric_precision_radix": 2}
        sizes["numeric_scale"] = None if is_double else 0
    if column.type is Type.NUMERIC:
        sizes["numeric_precision_radix"] = 10
    modifier = column.modifier
    if column.type is Type.TEXT:
        sizes["character_octet_length"] = 4 * modifier.size if modifier and modifier.size else _MOST_OCTETS
    if modifier is not None and modifier.size:
        if modifier.name is ModifiedType.NUMERIC:
            sizes |= {"numeric_precision": modifier.size, "numeric_scale": modifier.scale}
        else:
            sizes["character_maximum_length"] = modifier.size
    return sizes
