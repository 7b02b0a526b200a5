"""Rows of PostgreSQL's catalogs, their views and `information_schema`; a row has values by column name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

from derive.algebra.types import ModifiedType, Type
from derive.functions.types.pg_type import NAMES_OF_TYPES, OID_OF, PG_TYPES, PgType, oid_of
from derive.sql.backends import Backend
from derive.sql.catalog.items import hashed
from derive.sql.catalog.snapshot import FIRST_OID, is_temporary
from derive.sql.parser.statement import ConstraintKind
from derive.sql.parser.tokens import COLUMNS_ONLY, FUNCTIONS_ONLY, NEEDS_AS, RESERVED
from derive.sql.pg_catalog.objects import (
    PROCEDURES,
    CatalogObjects,
    CatalogRow,
    ObjectConstraint,
    ObjectDomain,
    ObjectFunction,
    ObjectKind,
    ObjectRelation,
    procedure_name,
)
from derive.sql.pg_catalog.sequence_rows import (
    default_text_of,
    dependencies_of,
    has_default,
    identity_columns,
    identity_letter,
    information_of_sequences,
    sequence_views,
    sequences_of,
)
from derive.sql.planner.interfaces import NamedColumn

_SQL = 14
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
    referred = {one.foreign.table for relation in objects.relations for one in relation.constraints if one.foreign}
    sequences = {(one.schema, one.name): one.id for one in objects.relations if one.kind is ObjectKind.SEQUENCE}

    def of_relations(rows: Callable[[ObjectRelation], Iterable[CatalogRow]]) -> Callable[[], Iterable[CatalogRow]]:
        return lambda: (row for relation in objects.relations for row in rows(relation))

    return {
        "pg_namespace": lambda: ({"oid": oid, "nspname": name, "nspowner": _OWNER} for name, oid in schemas.items()),
        "pg_class": of_relations(lambda relation: _classes(relation, schemas, referred)),
        "pg_attribute": of_relations(_attributes),
        "pg_attrdef": of_relations(lambda relation: _defaults(relation, objects.path)),
        "pg_index": of_relations(_indexes),
        "pg_constraint": lambda: [
            *(row for relation in objects.relations for row in _constraints(objects, relation, schemas)),
            *(row for domain in objects.domains for row in _domain_constraints(domain, schemas)),
        ],
        "pg_description": of_relations(_comments),
        "pg_sequence": of_relations(sequences_of),
        "pg_rewrite": of_relations(_rules),
        "pg_depend": of_relations(lambda relation: _dependencies(relation, sequences)),
        "pg_type": lambda: [*_types(), *(_domain(domain, schemas) for domain in objects.domains)],
        "pg_proc": lambda: [*_procedures(), *(_function(function, schemas) for function in objects.functions)],
        "pg_language": lambda: [{"oid": _SQL, "lanname": "sql", "lanowner": _OWNER, "lanpltrusted": True}],
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


def _procedures() -> Iterator[CatalogRow]:
    for name, oid in PROCEDURES.items():
        yield {"oid": oid, "proname": name, "pronamespace": PG_CATALOG, "proowner": _OWNER, "prokind": "f"}


def _function(function: ObjectFunction, schemas: Mapping[str, int]) -> CatalogRow:
    names = [name or "" for name, _ in function.arguments]
    row: CatalogRow = {
        "oid": FIRST_OID + function.id,
        "proname": function.name,
        "pronamespace": schemas.get(function.schema, 0),
        "proowner": _OWNER,
        "prokind": "f",
        "prolang": _SQL,
        "procost": 100,
        "proisstrict": function.is_strict,
        "provolatile": function.volatility,
        "proparallel": "u",
        "pronargs": len(names),
        "prorettype": OID_OF[function.result],
        "proargtypes": [OID_OF[kind] for _, kind in function.arguments],
        "prosrc": function.body,
    }
    return row | ({"proargnames": names} if any(names) else {})


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
    names = dict.fromkeys((*objects.schemas, *sorted(relation.schema for relation in objects.relations)))
    others = [name for name in names if name not in schemas]
    return schemas | {name: oid for oid, name in enumerate(others, start=_OTHERS)}


def _comments(relation: ObjectRelation) -> Iterator[CatalogRow]:
    oid = FIRST_OID + relation.id
    described = [(oid, 0, relation.comment)]
    described += [(FIRST_OID + index.id, 0, index.comment) for index in relation.indexes]
    described += [(oid, number, column.comment) for number, column in enumerate(relation.columns, start=1)]
    for target, number, comment in described:
        if comment:
            yield {"objoid": target, "classoid": _RELATIONS, "objsubid": number, "description": comment}


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


def _dependencies(relation: ObjectRelation, sequences: Mapping[tuple[str, str], int]) -> Iterator[CatalogRow]:
    """Yield the dependencies of indexes and defaults, and those of a view's rule on the view and on its sources."""
    yield from dependencies_of(relation, sequences)
    oid = FIRST_OID + relation.id
    for index in relation.indexes:
        on_columns: CatalogRow = {"classid": _RELATIONS, "objid": FIRST_OID + index.id, "refclassid": _RELATIONS}
        for column in index.mentioned:
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


def _classes(relation: ObjectRelation, schemas: dict[str, int], referred: Collection[int]) -> Iterator[CatalogRow]:
    shared: CatalogRow = {"relnamespace": schemas[relation.schema], "relowner": _OWNER}
    shared["relpersistence"] = "t" if is_temporary(relation.schema) else "p"
    shared |= {"relispopulated": True, "reltuples": -1}
    yield shared | {
        "oid": FIRST_OID + relation.id,
        "relname": relation.name,
        "relkind": relation.kind.value,
        "relnatts": len(relation.columns),
        "relam": _HEAP if relation.kind.value not in {"v", "S"} else 0,
        "relreplident": "d",
        "relhasindex": bool(relation.indexes),
        "relchecks": sum(1 for constraint in relation.constraints if constraint.kind is ConstraintKind.CHECK),
        "relhasrules": relation.definition is not None,
        # psql looks for foreign keys only in tables with triggers
        "relhastriggers": relation.id in referred or any(one.foreign for one in relation.constraints),
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
    of_relation = [(FIRST_OID + relation.id, relation.columns)]
    of_indexes = [(FIRST_OID + index.id, index.parts) for index in relation.indexes]
    for oid, columns in (*of_relation, *of_indexes):
        for number, column in enumerate(columns, start=1):
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
                "atthasdef": has_default(column) and oid == of_relation[0][0],
                "attnotnull": not column.is_nullable,
                "attislocal": True,
                "attcollation": _DEFAULT_COLLATION if pg_type.has_collation else 0,
                "attidentity": identity_letter(column) if oid == of_relation[0][0] else "",
                "attgenerated": "s" if column.generated is not None and oid == of_relation[0][0] else "",
                "attstorage": pg_type.storage,
                "attcompression": "",
                "attstattarget": -1,
                "attalign": pg_type.alignment,
            }


def _defaults(relation: ObjectRelation, path: Sequence[str]) -> Iterator[CatalogRow]:
    for number, column in enumerate(relation.columns, start=1):
        expression = default_text_of(relation, column, path)
        if expression is not None:
            oid = FIRST_OID + hashed(relation.id, "default", column.name)
            yield {"oid": oid, "adrelid": FIRST_OID + relation.id, "adnum": number, "adbin": expression}


def _constraints(objects: CatalogObjects, relation: ObjectRelation, schemas: dict[str, int]) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        foreign: CatalogRow = {}
        target = _key_of(objects, constraint)
        index = constraint.index if target is None else target[1].index
        if constraint.foreign is not None:
            to = constraint.foreign
            foreign = {"confrelid": FIRST_OID + to.table, "confkey": [column + 1 for column in to.columns]}
            effects = {"confupdtype": to.reference.on_update, "confdeltype": to.reference.on_delete}
            foreign |= {**effects, "confmatchtype": "s", "condeferrable": to.reference.deferral != ""}
            foreign |= {"condeferred": to.reference.deferral == "d"}
        yield {
            "oid": FIRST_OID + constraint.id,
            "conname": constraint.name,
            "connamespace": schemas[relation.schema],
            "contype": constraint.kind.value,
            "conenforced": True,
            "convalidated": True,
            "conrelid": FIRST_OID + relation.id,
            "conindid": 0 if index is None else FIRST_OID + index,
            "confupdtype": " ",
            "confdeltype": " ",
            "confmatchtype": " ",
            "conislocal": True,
            "connoinherit": constraint.kind is not ConstraintKind.CHECK,
            "conkey": [column + 1 for column in constraint.columns],
            "conbin": constraint.condition,
            **foreign,
        }


def _indexes(relation: ObjectRelation) -> Iterator[CatalogRow]:
    for index in relation.indexes:
        count = len(index.columns)
        yield {
            "indexrelid": FIRST_OID + index.id,
            "indrelid": FIRST_OID + relation.id,
            "indnatts": count,
            "indnkeyatts": count,
            "indisunique": index.key is not None,
            "indisprimary": index.key is ConstraintKind.PRIMARY_KEY,
            "indimmediate": True,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indkey": [column + 1 for column in index.columns],
            "indexprs": index.expressions,
            "indpred": index.condition,
            "indoption": [0] * count,
            "indclass": [_BTREE_CLASS] * count,
            "indcollation": [0] * count,
        }


def _types() -> Iterator[CatalogRow]:
    for pg_type in PG_TYPES.values():
        yield _type(pg_type) | {
            "oid": pg_type.oid,
            "typname": pg_type.name,
            "typnamespace": PG_CATALOG,
            "typtype": "p" if pg_type.category in ("P", "X") else "b",
            "typispreferred": pg_type.name in ("bool", "float8", "text", "timestamptz", "interval", "oid", "inet"),
            "typelem": pg_type.element,
            "typarray": pg_type.array,
        }


def _type(pg_type: PgType) -> CatalogRow:
    """Return the columns of `pg_type` that a domain shares with its base type."""
    return {
        "typowner": _OWNER,
        "typlen": pg_type.size,
        "typbyval": pg_type.is_by_value,
        "typcategory": pg_type.category,
        "typisdefined": True,
        "typdelim": ",",
        "typinput": PROCEDURES[procedure_name(pg_type, "in")],
        "typoutput": PROCEDURES[procedure_name(pg_type, "out")],
        "typreceive": PROCEDURES[procedure_name(pg_type, "recv")],
        "typsend": PROCEDURES[procedure_name(pg_type, "send")],
        "typalign": pg_type.alignment,
        "typstorage": pg_type.storage,
        "typtypmod": -1,
        "typcollation": _DEFAULT_COLLATION if pg_type.has_collation else 0,
    }


def _domain(domain: ObjectDomain, schemas: Mapping[str, int]) -> CatalogRow:
    column = domain.column
    base = PG_TYPES[oid_of(column.type, column.modifier)]
    return _type(base) | {
        "oid": FIRST_OID + domain.id,
        "typname": domain.name,
        "typnamespace": schemas.get(domain.schema, 0),
        "typtype": "d",
        "typnotnull": column.domain is not None and not column.domain.is_nullable,
        "typbasetype": base.oid,
        "typtypmod": column.modifier.typmod if column.modifier else -1,
        "typdefault": column.default,
    }


def _domain_constraints(domain: ObjectDomain, schemas: Mapping[str, int]) -> Iterator[CatalogRow]:
    for number, name, text in domain.checks:
        yield {
            "oid": FIRST_OID + number,
            "conname": name,
            "connamespace": schemas.get(domain.schema, 0),
            "contype": ConstraintKind.CHECK.value,
            "conenforced": True,
            "convalidated": True,
            "contypid": FIRST_OID + domain.id,
            "confupdtype": " ",
            "confdeltype": " ",
            "confmatchtype": " ",
            "conislocal": True,
            "conbin": text,
        }


Rows: TypeAlias = Callable[[], Iterable[CatalogRow]]
"""A function that returns the rows of a relation."""

_PRECISIONS = {Type.SMALLINT: 16, Type.INTEGER: 32, Type.BIGINT: 64, Type.REAL: 24, Type.DOUBLE: 53}
_TIMES = {Type.TIMESTAMP: 6, Type.TIMESTAMPTZ: 6, Type.INTERVAL: 6, Type.TIME: 6, Type.TIMETZ: 6, Type.DATE: 0}
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
        "pg_sequences": _of_kinds(objects, (ObjectKind.SEQUENCE,), partial(sequence_views, owner)),
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
        "columns": _of_kinds(objects, kinds, lambda relation: _columns(relation, database, objects.path)),
        "views": _of_kinds(objects, (ObjectKind.VIEW,), views),
        "sequences": _of_kinds(objects, (ObjectKind.SEQUENCE,), partial(information_of_sequences, database)),
        **{
            name: _of_kinds(objects, (ObjectKind.TABLE,), partial(rows, objects))
            for name, rows in _CONSTRAINT_VIEWS.items()
        },
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


def _columns(relation: ObjectRelation, database: str, path: Sequence[str]) -> Iterator[CatalogRow]:
    for number, column in enumerate(relation.columns, start=1):
        oid = oid_of(column.type, column.modifier)
        yield _named(relation, database) | {
            "column_name": column.name,
            "ordinal_position": number,
            "column_default": default_text_of(relation, column, path) if column.generated is None else None,
            "is_nullable": "YES" if column.is_nullable else "NO",
            "data_type": "ARRAY" if column.type.element else NAMES_OF_TYPES[oid],
            **_sizes(column),
            "udt_catalog": database,
            "udt_schema": "pg_catalog",
            "udt_name": PG_TYPES[oid].name,
            "dtd_identifier": str(number),
            "is_self_referencing": "NO",
            **identity_columns(column),
            "identity_cycle": "NO",
            "is_generated": "NEVER" if column.generated is None else "ALWAYS",
            "generation_expression": None if column.generated is None else f"({column.generated})",
            "is_updatable": _is_updatable(relation),
        }


_CONSTRAINT_TYPES = {
    ConstraintKind.PRIMARY_KEY: "PRIMARY KEY",
    ConstraintKind.UNIQUE: "UNIQUE",
    ConstraintKind.CHECK: "CHECK",
    ConstraintKind.FOREIGN_KEY: "FOREIGN KEY",
}


def _named_constraint(relation: ObjectRelation, constraint: ObjectConstraint, database: str) -> CatalogRow:
    return {
        "constraint_catalog": database,
        "constraint_schema": relation.schema,
        "constraint_name": constraint.name,
    }


def _table_constraints(objects: CatalogObjects, relation: ObjectRelation) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        deferral = constraint.foreign.reference.deferral if constraint.foreign else ""
        yield (
            _named_constraint(relation, constraint, objects.database)
            | _named(relation, objects.database)
            | {
                "constraint_type": _CONSTRAINT_TYPES[constraint.kind],
                "is_deferrable": "YES" if deferral else "NO",
                "initially_deferred": "YES" if deferral == "d" else "NO",
                "enforced": "YES",
                "nulls_distinct": "YES" if constraint.kind is ConstraintKind.UNIQUE else None,
            }
        )


def _key_columns(objects: CatalogObjects, relation: ObjectRelation) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        columns = () if constraint.kind is ConstraintKind.CHECK else constraint.columns
        target = _key_of(objects, constraint)
        for position, column in enumerate(columns, start=1):
            used: CatalogRow = {"column_name": relation.columns[column].name, "ordinal_position": position}
            if target is not None and constraint.foreign is not None:
                place = target[1].columns.index(constraint.foreign.columns[position - 1])
                used["position_in_unique_constraint"] = place + 1
            named = _named_constraint(relation, constraint, objects.database)
            yield named | _named(relation, objects.database) | used


def _constraint_columns(objects: CatalogObjects, relation: ObjectRelation) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        target = _key_of(objects, constraint)
        table, columns = relation, constraint.columns
        if target is not None and constraint.foreign is not None:
            table, columns = target[0], constraint.foreign.columns
        for column in columns:
            used: CatalogRow = {"column_name": table.columns[column].name}
            yield _named_constraint(relation, constraint, objects.database) | _named(table, objects.database) | used


def _check_clauses(objects: CatalogObjects, relation: ObjectRelation) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        if constraint.kind is ConstraintKind.CHECK:
            yield _named_constraint(relation, constraint, objects.database) | {
                "check_clause": f"({constraint.condition})"
            }


def _key_of(objects: CatalogObjects, constraint: ObjectConstraint) -> tuple[ObjectRelation, ObjectConstraint] | None:
    """Return the table and the key that a foreign key refers to; None for another constraint."""
    if constraint.foreign is None:
        return None
    identifier, columns = constraint.foreign.table, constraint.foreign.columns
    table = next(relation for relation in objects.relations if relation.id == identifier)
    keys = (one for one in table.constraints if one.index is not None and set(one.columns) == set(columns))
    return next(((table, key) for key in keys), None)


_RULES = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


def _referential(objects: CatalogObjects, relation: ObjectRelation) -> Iterator[CatalogRow]:
    for constraint in relation.constraints:
        target = _key_of(objects, constraint)
        if target is None or constraint.foreign is None:
            continue
        own = _named_constraint(relation, constraint, objects.database)
        unique = _named_constraint(*target, objects.database)
        own |= {f"unique_{name}": value for name, value in unique.items()}
        effects = constraint.foreign.reference
        rules = {"update_rule": _RULES[effects.on_update], "delete_rule": _RULES[effects.on_delete]}
        yield own | {"match_option": "NONE", **rules}


_CONSTRAINT_VIEWS: Mapping[str, Callable[[CatalogObjects, ObjectRelation], Iterator[CatalogRow]]] = {
    "referential_constraints": _referential,
    "table_constraints": _table_constraints,
    "key_column_usage": _key_columns,
    "constraint_column_usage": _constraint_columns,
    "check_constraints": _check_clauses,
}


def _sizes(column: NamedColumn) -> CatalogRow:
    """Return the length or precision of a column's type."""
    sizes: CatalogRow = {"datetime_precision": _TIMES.get(column.type)}
    if column.type in _PRECISIONS:
        is_float = column.type in {Type.REAL, Type.DOUBLE}
        sizes |= {"numeric_precision": _PRECISIONS[column.type], "numeric_precision_radix": 2}
        sizes["numeric_scale"] = None if is_float else 0
    if column.type is Type.NUMERIC:
        sizes["numeric_precision_radix"] = 10
    modifier = column.modifier
    if column.type is Type.TEXT:
        sizes["character_octet_length"] = 4 * modifier.size if modifier and modifier.size else _MOST_OCTETS
    if modifier is not None and modifier.size and column.type.element is None:
        if modifier.name is ModifiedType.NUMERIC:
            sizes |= {"numeric_precision": modifier.size, "numeric_scale": modifier.scale}
        elif modifier.name.has_precision:
            sizes["datetime_precision"] = modifier.size - 1
        else:
            sizes["character_maximum_length"] = modifier.size
    return sizes
