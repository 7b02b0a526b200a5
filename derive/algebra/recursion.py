"""Recursive relations, evaluated until a step adds no rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from derive.algebra.types import Type

if TYPE_CHECKING:
    from derive.algebra.relation import Relation


@dataclass(frozen=True, slots=True)
class Recurring:
    """The rows of a recursion's latest step, as input of its next step.

    Attributes:
        id: identifier of the enclosing `Recursion`.
        types: types of the columns.
    """

    id: int
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """The rows of `base`, the rows that `step` computes from them, the rows that it computes from those, and so on.

    The recursion refers neither to enclosing rows nor to enclosing recursions.

    Attributes:
        id: identifier, distinct from enclosing recursions.
        base: the first rows.
        step: a relation of the latest rows, which it contains as one `Recurring`.
        is_distinct: whether a repeated row is ignored; NULLs are equal.
    """

    id: int
    base: Relation
    step: Relation
    is_distinct: bool

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the columns."""
        return self.base.types
