"""Relations and indexes as PostgreSQL's catalogs describe them to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from derive.algebra.form import Form
from derive.algebra.types import Type
from derive.sql.backends import Backend
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects, listing
from derive.sql.parser import statement
from derive.sql.planner.names import NamedRelation, RelationKind

FIRST_OID = 16_384
"""Oids of what people have made begin here, as PostgreSQL's do; those below are types and the like."""
SERVER_VERSION = "16.0"
"""Of the PostgreSQL whose catalog this resembles: clients ask what its clients would."""


class ObjectKind(Enum):
    """What a relation is, as `relkind` has it."""

    TABLE = "r"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """A column of a relation.

    Attributes:
        name: its name.
        type: its type.
        is_nullable: whether it may be NULL.
        form: what is known of it beyond its type.
        default: what it has where nothing is said; None for NULL.
    """

    name: str
    type: Type
    is_nullable: bool = True
    form: Form | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """An index.

    Attributes:
        id: its number in the catalog.
        name: in the schema of its relation.
        columns: of the relation, counted from 0.
        definition: the statement that makes it.
    """

    id: int
    name: str
    columns: tuple[int, ...]
    definition: str


@dataclass(frozen=True, slots=True)
class ObjectRelation:
    """A relation: tables, sources and collections are tables to clients.

    Attributes:
        id: its number in the catalog.
        schema: that it is in.
        name: in the schema.
        kind: what it is.
        columns: in their order.
        definition: the query of a view.
        indexes: over it.
        comment: what it is, for people.
    """

    id: int
    schema: str
    name: str
    kind: ObjectKind
    columns: tuple[ObjectColumn, ...]
    definition: str | None = None
    indexes: tuple[ObjectIndex, ...] = ()
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a session knows of itself and of others.

    Attributes:
        settings: by name.
        user: who asks.
        process: its number.
        backends: all sessions of the server.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    user: str = "flow"
    process: int = 0
    backends: Sequence[Backend] = ()


@dataclass(frozen=True, slots=True)
class CatalogObjects:
    """All that clients may see.

    Attributes:
        relations: in any order.
        database: the name of the database that they are in.
        owner: of everything.
    """

    relations: tuple[ObjectRelation, ...] = ()
    database: str = "flow"
    owner: str = "flow"


_MOST = 16
"""Catalogs that are known at one moment: the committed one, and those of transactions that define something."""

_KINDS = {RelationKind.VIEW: ObjectKind.VIEW, RelationKind.MATERIALIZED_VIEW: ObjectKind.MATERIALIZED_VIEW}
_COMMENTS = {RelationKind.SOURCE: "a source", RelationKind.COLLECTION: "a collection of the catalog"}


@lru_cache(maxsize=_MOST)
def described(objects: Objects) -> CatalogObjects:
    """Relations and indexes. Sources and collections are tables to clients, which know nothing of these."""
    indexes: dict[int, list[Item]] = {}
    for item in objects.items.values():
        if item.kind is statement.ObjectKind.INDEX and item.on is not None:
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
