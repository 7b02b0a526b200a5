"""Document order: null < false < true < numbers < strings < arrays < objects."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

from derive.document.pointer import JSON, MISSING

_RANKS = {type(None): 1, bool: 2, int: 3, float: 3, str: 4, list: 5, dict: 6}


def compare(left: JSON, right: JSON) -> int:
    """Return -1, 0 or 1 as `left` sorts before, with or after `right`; a missing value sorts first.

    Numbers compare by value, whether integers or not; strings by code points; arrays item by item; objects as their
    sorted (name, value) pairs.
    """
    kind = type(left)
    if kind is type(right) and (kind is int or kind is str or kind is float):  # by far the most frequent case
        return int(left > right) - int(left < right)
    rank_left, rank_right = _rank(left), _rank(right)
    if rank_left != rank_right:
        return -1 if rank_left < rank_right else 1
    if rank_left == 5:
        return _compare_all(left, right)
    if rank_left == 6:
        return _compare_all(_pairs(left), _pairs(right))
    if rank_left < 2:
        return 0
    return int(left > right) - int(left < right)


def order_key(value: JSON) -> Any:
    """Return the sort key of a value: `sorted(values, key=order_key)` is in document order."""
    return _ORDER_KEY(value)


def _rank(value: JSON) -> int:
    return 0 if value is MISSING else _RANKS[type(value)]


def _pairs(value: JSON) -> list[list[JSON]]:
    return [[name, value[name]] for name in sorted(value)]


def _compare_all(left: list[JSON], right: list[JSON]) -> int:
    for each_left, each_right in zip(left, right, strict=False):
        ordering = compare(each_left, each_right)
        if ordering:
            return ordering
    return (len(left) > len(right)) - (len(left) < len(right))


_ORDER_KEY = cmp_to_key(compare)
