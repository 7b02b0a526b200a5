"""Relations that are made of themselves, until nothing new comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from derive.algebra.types import Type

if TYPE_CHECKING:
    from derive.algebra.relation import Relation


@dataclass(frozen=True, slots=True)
class Recurring:
    """The rows that a recursion has made in its latest step, as its next step sees them.

    Attributes:
        id: of the innermost `Recursion` around it that has the same.
        types: of the columns.
    """

    id: int
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """The rows of `base`, those that `step` makes of them, those that it makes of these, and so on.

    It refers neither to rows of queries around it nor to recursions around it.

    Attributes:
        id: tells it from those around it.
        base: the first rows.
        step: a relation of the latest rows, which stand in it as one `Recurring`.
        is_distinct: a row that was there before is not a new one; NULLs are equal here.
    """

    id: int
    base: Relation
    step: Relation
    is_distinct: bool

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self.base.types
