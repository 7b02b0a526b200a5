"""Arrays with unique keys in order, for `merge` and `set`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TypeAlias

from derive.document.order import compare
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.reduce.reducer import Reduce, reduce_at

KeyOrder: TypeAlias = Callable[[JSON, JSON], int]
"""Function that returns -1, 0 or 1 as the first value's key sorts before, with or after the second's."""


def order_by(pointers: tuple[str, ...]) -> KeyOrder:
    """Return the order by the values at these pointers; a missing value sorts before null."""
    getters = [compile_pointer(pointer) for pointer in pointers]
    if len(getters) == 1:
        (get,) = getters
        return lambda left, right: compare(get(left), get(right))

    def order(left: JSON, right: JSON) -> int:
        for get in getters:
            ordering = compare(get(left), get(right))
            if ordering:
                return ordering
        return 0

    return order


def sorted_by(pointers: tuple[str, ...]) -> Callable[[list[JSON]], bool]:
    """Return a function that checks whether values ascend strictly by the values at these pointers."""
    order = order_by(pointers)

    def is_sorted(values: list[JSON]) -> bool:
        return all(order(before, after) < 0 for before, after in itertools.pairwise(values))

    if len(pointers) != 1:
        return is_sorted
    get = compile_pointer(pointers[0])

    def is_sorted_by_one(values: list[JSON]) -> bool:
        keys = [get(value) for value in values]
        kinds = set(map(type, keys))
        if kinds in ({int}, {str}):  # their own order equals document order
            return all(map(operator.lt, keys, keys[1:]))
        return is_sorted(values)

    return is_sorted_by_one


def join(
    left: list[JSON], right: list[JSON], order: KeyOrder, item: Callable[[int], Reduce], full: bool
) -> Iterator[JSON]:
    """Yield all values of a merge-join in key order, with values of equal keys reduced.

    Args:
        left: earlier values, sorted.
        right: later values, sorted.
        order: order of their keys.
        item: returns the reducer of the item at an index of `right`.
        full: true if `left` is the whole history.
    """
    at_left = 0
    for index, value in enumerate(right):
        ordering = -1
        while at_left < len(left) and (ordering := order(left[at_left], value)) < 0:
            yield left[at_left]
            at_left += 1
        same = at_left < len(left) and ordering == 0
        reduced = reduce_at(index, item(index), left[at_left] if same else MISSING, value, full)
        if reduced is not MISSING:
            yield reduced
        at_left += same
    yield from left[at_left:]


def select(values: list[JSON], others: list[JSON], order: KeyOrder, *, inside: bool) -> list[JSON]:
    """Return the values whose keys are among those of `others`, or are not.

    Args:
        values: values sorted by key.
        others: values sorted by key.
        order: order of their keys.
        inside: true to select values with keys in `others`, false to select the rest.
    """
    selected = []
    index = 0
    for value in values:
        ordering = 1
        while index < len(others) and (ordering := order(others[index], value)) < 0:
            index += 1
        if (index < len(others) and ordering == 0) is inside:
            selected.append(value)
    return selected
