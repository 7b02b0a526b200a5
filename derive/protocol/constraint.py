"""What a connector asks of one field of a materialized collection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ConstraintType(IntEnum):
    """What is asked; the numbers are those of the protocol."""

    FIELD_REQUIRED = 0
    """This very field must be materialized."""
    LOCATION_REQUIRED = 1
    """Some field of this one's location must be."""
    LOCATION_RECOMMENDED = 2
    """Some field of this one's location should be, unless the author says otherwise."""
    FIELD_OPTIONAL = 3
    """It is materialized only where the author asks for it."""
    FIELD_FORBIDDEN = 4
    """It must not be materialized."""
    UNSATISFIABLE = 5
    """It must be materialized, and cannot be."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a connector asks of one field.

    Attributes:
        type: what it asks.
        reason: why, for people.
    """

    type: ConstraintType
    reason: str
