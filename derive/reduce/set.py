"""The `set` strategy: a set that is changed by addition, removal and intersection.

A value is an object with the terms `add`, and `remove` or `intersect`. The terms are all arrays sorted by the key, or
all objects whose property names are the key. A value changes a set S of earlier documents to `(S − remove) ∪ add` or
`(S ∩ intersect) ∪ add`; two partial values compose to one with the effect of both. An item on both sides of a union is
reduced by the annotations below `add`. The set itself has only `add`.
"""

from __future__ import annotations

from collections.abc import Callable

from derive.document.pointer import JSON, MISSING
from derive.reduce.keyed import join, order_by, select, sorted_by
from derive.reduce.reducer import Reduce, ReductionFailed, reduce_at, take_right

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
    """Composition of terms.

    Args:
        select: selects the values of one term that are in another one, or are not.
        unite: unites two terms.
    """

    def __init__(self, select: Callable[[JSON, JSON, bool], JSON], unite: Callable[[JSON, JSON], JSON]) -> None:
        self._select = select
        self._unite = unite

    def kept(self, left: dict[str, JSON], right: dict[str, JSON]) -> JSON:
        """Return the values of the left `add` that the right value keeps."""
        if "add" not in left:
            return MISSING
        if "intersect" in right:
            return self._select(left["add"], right["intersect"], True)
        return self._select(left["add"], right["remove"], False) if "remove" in right else left["add"]

    def composed(self, left: dict[str, JSON], right: dict[str, JSON]) -> dict[str, JSON]:
        """Return the `remove` or `intersect` with the effect of both values in sequence; empty without effect."""
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
