"""Reducers: what every strategy is compiled to, and the two exceptions that they raise.

A reducer takes the earlier value (or `MISSING`), the later value, and whether the earlier one is the whole history
(`full`) or only an earlier part of it. It returns a new value and never changes its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from derive.document.pointer import JSON, escape

Reduce: TypeAlias = Callable[[JSON, JSON, bool], JSON]
"""(earlier or MISSING, later, full) to the reduced value; MISSING if it is deleted."""


class NotAssociative(Exception):
    """Two partial values cannot become one; the documents that hold them stay separate."""


class ReductionFailed(Exception):
    """A strategy does not fit its values.

    Attributes:
        reason: what it expects.
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
    """Reduce the values of a property or an item; a failure tells its location."""
    try:
        return reduce(left, right, full)
    except ReductionFailed as exc:
        exc.pointer = f"/{escape(str(token))}{exc.pointer}"
        raise


def take_right(left: JSON, right: JSON, full: bool) -> JSON:
    """The later value, with everything below it. This is the reducer where there is no annotation."""
    return right
