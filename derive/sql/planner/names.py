"""What names in queries stand for: whoever keeps a catalog of relations answers for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from derive.algebra.form import Form
from derive.algebra.relation import Get, GlobalId, Relation
from derive.algebra.types import Type


class RelationKind(Enum):
    """What a named relation is; the value is what messages call it."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    SOURCE = "source"
    COLLECTION = "collection"


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column of a named relation.

    Attributes:
        name: unique in the relation.
        type: its type.
        is_nullable: whether it may be NULL.
        form: what was declared of it beyond its type.
        default: the text of what a new row has in it where nothing is said; None for NULL.
    """

    name: str
    type: Type
    is_nullable: bool = True
    form: Form | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """What a name stands for.

    Attributes:
        id: its identifier.
        name: without a schema.
        columns: in their order.
        kind: what it is.
        definition: of a view, which stands in its place; None for what has rows of its own.
    """

    id: GlobalId
    name: str
    columns: tuple[NamedColumn, ...]
    kind: RelationKind
    definition: Relation | None = None

    @property
    def relation(self) -> Relation:
        """What stands in a query for the name."""
        if self.definition is not None:
            return self.definition
        forms = tuple(column.form for column in self.columns)
        return Get(self.id, tuple(column.type for column in self.columns), forms if any(forms) else ())


class Names(Protocol):
    """A catalog of relations at one moment."""

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """What a name stands for; None if nothing has it."""

    def candidates(self) -> Iterable[str]:
        """Names that may have been meant where one is not known."""
