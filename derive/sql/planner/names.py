"""Names of relations: the planner's interface to a catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from derive.algebra.relation import Get, GlobalId, Relation
from derive.algebra.types import Type, TypeModifier

FIRST_SYSTEM_ID: GlobalId = 1 << 50
"""The first identifier of the system relations: their rows follow from the catalog and the session."""


FUNCTIONS = "pg_catalog()"
"""The schema of the functions without arguments that return rows of several columns."""


class RelationKind(Enum):
    """The kind of a named relation; the value is its name in messages."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    SOURCE = "source"
    COLLECTION = "collection"
    SYSTEM = "system relation"


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column of a named relation.

    Attributes:
        name: name, unique in the relation.
        type: type.
        is_nullable: whether the column may be NULL.
        modifier: type modifier.
        default: text of the DEFAULT expression; None for NULL.
    """

    name: str
    type: Type
    is_nullable: bool = True
    modifier: TypeModifier | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """The relation of a name.

    Attributes:
        id: identifier.
        name: name without schema.
        columns: columns, in order.
        kind: kind of the relation.
        definition: definition of a view that is expanded; None for a relation with rows of its own.
    """

    id: GlobalId
    name: str
    columns: tuple[NamedColumn, ...]
    kind: RelationKind
    definition: Relation | None = None

    @property
    def relation(self) -> Relation:
        """Return the relation that a query reads for the name."""
        if self.definition is not None:
            return self.definition
        modifiers = tuple(column.modifier for column in self.columns)
        return Get(self.id, tuple(column.type for column in self.columns), modifiers if any(modifiers) else ())


class Names(Protocol):
    """A snapshot of a catalog of relations."""

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return the relation of a name; None if there is none."""

    def candidates(self) -> Iterable[str]:
        """Return candidates for the hint about an unknown name."""
