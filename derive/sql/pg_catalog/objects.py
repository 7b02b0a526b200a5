"""What a catalog tells its clients of: relations and indexes at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from derive.algebra.form import Form
from derive.algebra.types import Type
from derive.sql.backends import Backend

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
