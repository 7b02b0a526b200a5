"""The `minimize` and `maximize` strategies."""

from __future__ import annotations

from derive.document.order import compare
from derive.document.pointer import JSON, MISSING
from derive.reduce.keyed import KeyOrder
from derive.reduce.reducer import NotAssociative, Reduce


def compile_extreme(sign: int) -> Reduce:
    """Return the reducer that keeps the greater value in document order, or the later of two equal values.

    Args:
        sign: 1 to keep the greater, -1 to keep the lesser.
    """

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        return left if left is not MISSING and compare(left, right) == sign else right

    return reduce


def compile_keyed_extreme(sign: int, order: KeyOrder, merge: Reduce) -> Reduce:
    """Return the reducer that keeps the value with the greater key, and merges values of equal keys.

    A full reduction first reduces a new value by itself. Otherwise the presence of its tombstones would depend on the
    grouping of documents (law L6).

    Args:
        sign: 1 to keep the greater, -1 to keep the lesser.
        order: order of the values' keys.
        merge: reducer for values of equal keys.
    """

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        ordering = -1 if left is MISSING else order(left, right) * sign
        if ordering > 0:
            return left
        if type(right) is not dict and type(right) is not list:
            return right
        if ordering < 0:
            return merge(MISSING, right, True) if full else right
        reduced = merge(left, right, full)
        if not full and order(reduced, right):  # a nested strategy has changed the key
            raise NotAssociative
        return reduced

    return reduce
