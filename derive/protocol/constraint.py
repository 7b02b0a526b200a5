"""Constraints of a connector on the fields of a materialized collection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ConstraintType(IntEnum):
    """Kind of a constraint, with the numbers of the protocol."""

    FIELD_REQUIRED = 0
    """The field must be materialized."""
    LOCATION_REQUIRED = 1
    """Some field of the same location must be materialized."""
    LOCATION_RECOMMENDED = 2
    """Some field of the same location should be materialized, unless the author excludes it."""
    FIELD_OPTIONAL = 3
    """The field is materialized only if the author includes it."""
    FIELD_FORBIDDEN = 4
    """The field must not be materialized."""
    UNSATISFIABLE = 5
    """The field must be materialized, and cannot be."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint on one field.

    Attributes:
        type: kind of the constraint.
        reason: explanation, for people.
    """

    type: ConstraintType
    reason: str
