"""Rows of the views of PostgreSQL's catalogs, and of `information_schema`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from derive.algebra.types import ModifiedType, Type
from derive.functions.types.pg_type import NAMES_OF_TYPES, PG_TYPES
from derive.sql.pg_catalog.contents import CatalogRow
from derive.sql.pg_catalog.objects import FIRST_OID, CatalogObjects, ObjectColumn, ObjectKind, ObjectRelation
from derive.sql.pg_types import oid_of

Rows: TypeAlias = Callable[[], Iterable[CatalogRow]]
"""A function that makes the rows of a relation."""

_PRECISIONS = {Type.SMALLINT: 16, Type.INTEGER: 32, Type.BIGINT: 64, Type.DOUBLE: 53}
_TIMES = {Type.TIMESTAMP: 6, Type.TIMESTAMPTZ: 6, Type.INTERVAL: 6, Type.TIME: 6, Type.DATE: 0}
_NO: CatalogRow = {"is_updatable": "NO", "is_insertable_into": "NO", "is_trigger_updatable": "NO"}
_NO |= {"is_trigger_deletable": "NO", "is_trigger_insertable_into": "NO"}


def views_of(objects: CatalogObjects, schemas: Mapping[str, int]) -> dict[str, Rows]:
    """Return functions that make the rows of each view, by name with schema."""
    own = {f"pg_catalog.{name}": rows for name, rows in _catalog_views(objects).items()}
    others = _information_views(objects, schemas)
    return own | {f"information_schema.{name}": rows for name, rows in others.items()}


def _of_kinds(
    objects: CatalogObjects, kinds: Sequence[ObjectKind], rows: Callable[[ObjectRelation], Iterable[CatalogRow]]
) -> Rows:
    """Return a function that makes rows of the relations of some kinds."""
    return lambda: (row for relation in objects.relations if relation.kind in kinds for row in rows(relation))


def _catalog_views(objects: CatalogObjects) -> dict[str, Rows]:
    owner = objects.owner

    def tables(relation: ObjectRelation) -> Iterator[CatalogRow]:
        yield {"tablename": relation.name, "tableowner": owner, **_place(relation), **_has_indexes(relation)}

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
        "pg_indexes": _of_kinds(objects, tuple(ObjectKind), _indexes),
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


def _indexes(relation: ObjectRelation) -> Iterator[CatalogRow]:
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
            "is_generated": "NEVER",
            "is_updatable": _is_updatable(relation),
        }


def _sizes(column: ObjectColumn) -> CatalogRow:
    """Return the length or precision of a column's type."""
    sizes: CatalogRow = {"datetime_precision": _TIMES.get(column.type)}
    if column.type in _PRECISIONS:
        is_double = column.type is Type.DOUBLE
        sizes |= {"numeric_precision": _PRECISIONS[column.type], "numeric_precision_radix": 2}
        sizes["numeric_scale"] = None if is_double else 0
    if column.type is Type.NUMERIC:
        sizes["numeric_precision_radix"] = 10
    modifier = column.modifier
    if modifier is not None and modifier.size:
        if modifier.name is ModifiedType.NUMERIC:
            sizes |= {"numeric_precision": modifier.size, "numeric_scale": modifier.scale}
        else:
            sizes["character_maximum_length"] = modifier.size
    return sizes
