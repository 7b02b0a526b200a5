"""Reducers: the compiled form of strategies, with two exceptions that they raise.

A reducer takes the earlier value (or `MISSING`), the later value, and `full`: true if the earlier value is the whole
history, false if it is only a part. A reducer returns a new value, and does not change its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from derive.document.pointer import JSON, escape

Reduce: TypeAlias = Callable[[JSON, JSON, bool], JSON]
"""Function from (earlier value or MISSING, later value, full) to the reduced value; MISSING for a deletion."""


class NotAssociative(Exception):
    """Two partial values cannot be reduced to one value, so their documents stay separate."""


class ReductionFailed(Exception):
    """A strategy does not accept its values.

    Attributes:
        reason: requirement of the strategy.
        left: the earlier value.
        right: the later value.
        pointer: JSON pointer of the location; each level adds its token on the way up.
    """

    def __init__(self, reason: str, left: JSON, right: JSON) -> None:
        super().__init__(reason)
        self.reason = reason
        self.left = left
        self.right = right
        self.pointer = ""


def reduce_at(token: str | int, reduce: Reduce, left: JSON, right: JSON, full: bool) -> JSON:
    """Reduce the values of a property or an item, and add its token to the location of a failure."""
    try:
        return reduce(left, right, full)
    except ReductionFailed as exc:
        exc.pointer = f"/{escape(str(token))}{exc.pointer}"
        raise


def take_right(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the later value unchanged: the reducer of a location without an annotation."""
    return right
