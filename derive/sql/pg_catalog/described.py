"""What there is, as PostgreSQL's clients are told of it."""

from __future__ import annotations

from functools import lru_cache

from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects, listing
from derive.sql.parser import definition
from derive.sql.pg_catalog.objects import CatalogObjects, ObjectColumn, ObjectIndex, ObjectKind, ObjectRelation
from derive.sql.planner.names import NamedRelation, RelationKind

_MOST = 16
"""Catalogs that are known at one moment: the committed one, and those of transactions that define something."""

_KINDS = {RelationKind.VIEW: ObjectKind.VIEW, RelationKind.MATERIALIZED_VIEW: ObjectKind.MATERIALIZED_VIEW}
_COMMENTS = {RelationKind.SOURCE: "a source", RelationKind.COLLECTION: "a collection of the catalog"}


@lru_cache(maxsize=_MOST)
def described(objects: Objects) -> CatalogObjects:
    """Relations and indexes. Sources and collections are tables to clients, which know nothing of these."""
    indexes: dict[int, list[Item]] = {}
    for item in objects.items.values():
        if item.kind is definition.ObjectKind.INDEX and item.on is not None:
            indexes.setdefault(item.on, []).append(item)
    relations = (_relation(objects, named, indexes.get(named.id, [])) for named in listing(objects))
    return CatalogObjects(tuple(relations))


def _relation(objects: Objects, named: NamedRelation, indexes: list[Item]) -> ObjectRelation:
    item = objects.items.get(named.id)
    return ObjectRelation(
        named.id,
        item.schema if item else "public",
        named.name,
        _KINDS.get(named.kind, ObjectKind.TABLE),
        tuple(
            ObjectColumn(column.name, column.type, column.is_nullable, column.form, column.default)
            for column in named.columns
        ),
        item.definition if item else None,
        tuple(_index(named, index) for index in indexes),
        _COMMENTS.get(named.kind),
    )


def _index(named: NamedRelation, index: Item) -> ObjectIndex:
    names = [column.name for column in named.columns]
    columns = tuple(names.index(name) for name in index.indexed if name in names)
    on = ", ".join(map(_quoted, index.indexed))
    text = f"CREATE INDEX {_quoted(index.name)} ON {index.schema}.{_quoted(named.name)} USING btree ({on})"
    return ObjectIndex(index.id, index.name, columns, text)


def _quoted(name: str) -> str:
    is_plain = name.isidentifier() and name.islower() and name.isascii()
    return name if is_plain else '"' + name.replace('"', '""') + '"'
