"""The strategies, compiled to closures: what a schema says is looked at once, not once per document.

A reducer takes the earlier value (or `MISSING`), the later value, and whether the earlier one is the whole history
(`full`) or only an earlier part of it. It returns a new value and never changes its arguments.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from derive.document.order import compare
from derive.document.pointer import JSON, MISSING, compile_pointer, escape
from derive.errors import ReductionError
from derive.reduce.strategy import Plan

Reduce: TypeAlias = Callable[[JSON, JSON, bool], JSON]
"""(earlier or MISSING, later, full) to the reduced value; MISSING if it is deleted."""


class NotAssociative(Exception):
    """Two partial values cannot become one; the documents that hold them stay separate."""


class _Failed(Exception):
    """A strategy does not fit its values; the pointer grows on the way up."""

    def __init__(self, reason: str, left: JSON, right: JSON) -> None:
        super().__init__(reason)
        self.reason = reason
        self.left = left
        self.right = right
        self.pointer = ""


def compile_plan(plan: Plan) -> Reduce:
    """The reducer of a whole document.

    It raises `ReductionError` where a strategy does not fit the values it meets, and `NotAssociative`.
    """
    inner = _Compiler().compile(plan)

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        try:
            return inner(left, right, full)
        except _Failed as exc:
            raise ReductionError(
                f"while reducing '{exc.pointer}': {exc.reason}, having values LHS: {_show(exc.left)},"
                f" RHS: {_show(exc.right)}"
            ) from None

    return reduce


def _show(value: JSON) -> str:
    return repr(value)[:200]


class _Compiler:
    """Compiles each plan once; a recursive one refers to itself through a cell."""

    def __init__(self) -> None:
        self._done: dict[int, list[Reduce]] = {}

    def compile(self, plan: Plan) -> Reduce:
        cell = self._done.get(id(plan))
        if cell is not None:
            return cell[0] if cell else self._later(id(plan))
        cell = self._done[id(plan)] = []
        makers: dict[str | None, Callable[[Plan], Reduce]] = {
            None: lambda _: _last,
            "append": lambda _: _append,
            "firstWriteWins": lambda _: _first,
            "lastWriteWins": _last_write_wins,
            "maximize": lambda each: self._extreme(each, 1),
            "merge": self._merge,
            "minimize": lambda each: self._extreme(each, -1),
            "sum": lambda _: _sum,
        }
        made = makers[plan.strategy](plan)
        cell.append(made)
        return made

    def _later(self, identity: int) -> Reduce:
        """The reducer of a plan that is being compiled further up."""

        def reduce(left: JSON, right: JSON, full: bool) -> JSON:
            return self._done[identity][0](left, right, full)

        return reduce

    def _merge(self, plan: Plan) -> Reduce:
        merge_objects = self._objects(plan)
        merge_arrays = self._keyed(plan) if plan.key else self._indexed(plan)
        delete = plan.delete

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            kind = type(right)
            if kind is not dict and kind is not list:
                raise _Failed("'merge' strategy expects objects or arrays", left, right)
            if left is not MISSING and type(left) is not kind:
                if not full:
                    raise NotAssociative
                left = MISSING
            reduced = merge_objects(left, right, full) if kind is dict else merge_arrays(left, right, full)
            return MISSING if full and delete else reduced

        return merge

    def _objects(self, plan: Plan) -> Reduce:
        children = {name: self.compile(each) for name, each in plan.properties.items()}
        patterns = [(re.compile(pattern), self.compile(each)) for pattern, each in plan.patterns.items()]
        other = self.compile(plan.additional) if plan.additional else _last

        def child(name: str) -> Reduce:
            for pattern, reducer in patterns:
                if pattern.search(name):
                    return reducer
            return other

        simple = not patterns

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            reduced = {} if left is MISSING else dict(left)
            for name, value in right.items():
                reducer = children.get(name)
                if reducer is None:
                    reducer = other if simple else child(name)
                if reducer is _last:
                    reduced[name] = value
                    continue
                try:
                    result = reducer(reduced.get(name, MISSING), value, full)
                except _Failed as exc:
                    exc.pointer = f"/{escape(name)}{exc.pointer}"
                    raise
                if result is MISSING:
                    reduced.pop(name, None)
                else:
                    reduced[name] = result
            return reduced

        return merge

    def _item(self, plan: Plan) -> Callable[[int], Reduce]:
        prefix = [self.compile(each) for each in plan.prefix]
        rest = self.compile(plan.items) if plan.items else _last
        return lambda place: prefix[place] if place < len(prefix) else rest

    def _indexed(self, plan: Plan) -> Reduce:
        item = self._item(plan)

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            before = [] if left is MISSING else left
            reduced = [
                _at(place, item(place), before[place] if place < len(before) else MISSING, value, full)
                for place, value in enumerate(right)
            ]
            reduced += before[len(right) :]
            return [each for each in reduced if each is not MISSING]

        return merge

    def _keyed(self, plan: Plan) -> Reduce:
        item = self._item(plan)
        key_order = _by_key(plan.key)

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            before = [] if left is MISSING else left
            for each in (before, right):
                _check_sorted(each, key_order, left, right)
            reduced = list(_joined(before, right, key_order, item, full))
            return [each for each in reduced if each is not MISSING]

        return merge

    def _extreme(self, plan: Plan, sign: int) -> Reduce:
        if not plan.key:

            def choose(left: JSON, right: JSON, full: bool) -> JSON:
                return left if left is not MISSING and compare(left, right) == sign else right

            return choose
        key_order = _by_key(plan.key)
        merge_plan = Plan(**{name: getattr(plan, name) for name in Plan.__slots__})
        merge_plan.strategy, merge_plan.key = "merge", ()
        merge = self._merge(merge_plan)

        def choose_by_key(left: JSON, right: JSON, full: bool) -> JSON:
            if left is MISSING:
                return right
            order = key_order(left, right) * sign
            if order:
                return left if order > 0 else right
            return merge(left, right, full) if isinstance(right, dict | list) else right

        return choose_by_key


def _by_key(pointers: tuple[str, ...]) -> Callable[[JSON, JSON], int]:
    getters = [compile_pointer(each) for each in pointers]

    def order(left: JSON, right: JSON) -> int:
        for get in getters:
            found = compare(get(left), get(right))
            if found:
                return found
        return 0

    return order


def _check_sorted(values: list[JSON], key_order: Callable[[JSON, JSON], int], left: JSON, right: JSON) -> None:
    if any(key_order(before, after) >= 0 for before, after in itertools.pairwise(values)):
        raise _Failed("'merge' strategy with a key expects arrays sorted and unique by it", left, right)


def _joined(
    left: list[JSON],
    right: list[JSON],
    key_order: Callable[[JSON, JSON], int],
    item: Callable[[int], Reduce],
    full: bool,
) -> Iterator[JSON]:
    """Merge-join of two arrays that are sorted by key."""
    at_left = 0
    for place, value in enumerate(right):
        while at_left < len(left) and key_order(left[at_left], value) < 0:
            yield left[at_left]
            at_left += 1
        same = at_left < len(left) and key_order(left[at_left], value) == 0
        yield _at(place, item(place), left[at_left] if same else MISSING, value, full)
        at_left += same
    yield from left[at_left:]


def _at(place: int, reducer: Reduce, left: JSON, right: JSON, full: bool) -> JSON:
    try:
        return reducer(left, right, full)
    except _Failed as exc:
        exc.pointer = f"/{place}{exc.pointer}"
        raise


def _last(left: JSON, right: JSON, full: bool) -> JSON:
    return right


def _last_write_wins(plan: Plan) -> Reduce:
    if plan.associative and not plan.delete:
        return _last
    delete, associative = plan.delete, plan.associative

    def last(left: JSON, right: JSON, full: bool) -> JSON:
        if not full and not associative and left is not MISSING and compare(left, right):
            raise NotAssociative
        return MISSING if full and delete else right

    return last


def _first(left: JSON, right: JSON, full: bool) -> JSON:
    return right if left is MISSING else left


def _append(left: JSON, right: JSON, full: bool) -> JSON:
    if type(right) is not list or (left is not MISSING and left is not None and type(left) is not list):
        raise _Failed("'append' strategy expects arrays", left, right)
    if left is None:
        return None
    return right if left is MISSING else left + right


def _sum(left: JSON, right: JSON, full: bool) -> JSON:
    if left is MISSING:
        left = 0
    kind_left, kind_right = type(left), type(right)
    if (kind_left is not int and kind_left is not float) or (kind_right is not int and kind_right is not float):
        raise _Failed("'sum' strategy expects numbers", left, right)
    total = left + right
    if type(total) is float and not math.isfinite(total):
        raise _Failed("'sum' resulted in numeric overflow", left, right)
    return total
