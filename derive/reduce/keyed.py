"""Sorted arrays with unique keys, for `merge`; and sets, which change by addition, removal and intersection.

The value of a set is an object with the term `add`, and the term `remove` or `intersect`. All terms are arrays that are
sorted by the key; or all are objects whose property names are the key. A value changes the set S of earlier documents
to `(S − remove) ∪ add` or `(S ∩ intersect) ∪ add`. Two partial values compose to one value with the effect of both. An
item on both sides of a union is reduced by the annotations below `add`. The set itself has only `add`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TypeAlias

from derive.document.key import compare
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.reduce.reduction import Reduce, ReductionFailed, reduce_at, take_right

KeyOrder: TypeAlias = Callable[[JSON, JSON], int]
"""Function that compares the keys of two values: it returns -1 if the first key sorts before the second, 0 or 1."""


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
        if kinds in ({int}, {str}):  # the order of these values equals the order of documents
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
    """Return the values whose keys are among the keys of `others`, or the values whose keys are not.

    Args:
        values: values sorted by key.
        others: values sorted by key.
        order: order of their keys.
        inside: true to select values with keys in `others`, false to select the other values.
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


_EXPECTED = (
    "'set' strategy expects objects having only 'add', and 'remove' or 'intersect', which are all arrays, sorted and"
    " unique by the key, or all objects"
)
_TERMS = {"add", "intersect", "remove"}


def compile_set(key: tuple[str, ...], union: Reduce) -> Reduce:
    """Return the reducer of a set.

    Args:
        key: key of the items, if terms are arrays.
        union: reducer of `add`.
    """
    order, is_sorted = order_by(key), sorted_by(key)

    def select_items(values: JSON, others: JSON, inside: bool) -> JSON:
        if type(values) is list:
            return select(values, others, order, inside=inside)
        return {name: value for name, value in values.items() if (name in others) is inside}

    def unite_items(left: JSON, right: JSON) -> JSON:
        if type(left) is list:
            return list(join(left, right, order, lambda _: take_right, False))
        return {**left, **right}

    terms_of = _Terms(select_items, unite_items)

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        before = {} if left is MISSING else left
        kinds = {type(value) for side in (before, right) if type(side) is dict for value in side.values()}
        if not (_has_terms(before) and _has_terms(right)) or len(kinds) > 1 or not kinds <= {list, dict}:
            raise ReductionFailed(_EXPECTED, left, right)
        if kinds == {list} and not all(is_sorted(array) for side in (before, right) for array in side.values()):
            raise ReductionFailed(_EXPECTED, left, right)
        reduced = {}
        kept = terms_of.kept(before, right)
        if "add" in right:
            reduced["add"] = reduce_at("add", union, kept, right["add"], full)
        elif kept is not MISSING:
            reduced["add"] = kept
        return reduced if full else reduced | terms_of.composed(before, right)

    return reduce


def _has_terms(side: JSON) -> bool:
    return type(side) is dict and side.keys() <= _TERMS and not ("intersect" in side and "remove" in side)


class _Terms:
    """Operations on the terms of a set.

    Args:
        select: selects the values of one term that are in another term, or that are not.
        unite: unites two terms.
    """

    def __init__(self, select: Callable[[JSON, JSON, bool], JSON], unite: Callable[[JSON, JSON], JSON]) -> None:
        self._select = select
        self._unite = unite

    def kept(self, left: dict[str, JSON], right: dict[str, JSON]) -> JSON:
        """Return the values of the left `add` that remain after the right value."""
        if "add" not in left:
            return MISSING
        if "intersect" in right:
            return self._select(left["add"], right["intersect"], True)
        return self._select(left["add"], right["remove"], False) if "remove" in right else left["add"]

    def composed(self, left: dict[str, JSON], right: dict[str, JSON]) -> dict[str, JSON]:
        """Return the `remove` or `intersect` term of two values in sequence; empty without effect."""
        removed = left.get("remove"), right.get("remove")
        if "intersect" in left:
            kept = left["intersect"]
            if "intersect" in right:
                kept = self._select(kept, right["intersect"], True)
            return {"intersect": kept if removed[1] is None else self._select(kept, removed[1], False)}
        if "intersect" in right:
            kept = right["intersect"]
            return {"intersect": kept if removed[0] is None else self._select(kept, removed[0], False)}
        if removed[0] is not None and removed[1] is not None:
            return {"remove": self._unite(removed[0], removed[1])}
        return {name: side[name] for side in (left, right) for name in ("remove",) if name in side}
