"""Strategies are compiled to closures, so that the schema is interpreted once, and not for each document.

The later value chooses a conditional annotation. This value may itself be the reduction of a part of a history. If the
reduction chooses another strategy than its parts, the parts must stay separate because of law L6. Take `sum` for the
value 1, and `lastWriteWins` for other values. One by one, 1, 1, 1 are reduced to 3; if the last two values are reduced
first, the result is 2.

A new strategy needs a name with its options in `STRATEGIES` of `derive.reduce.reduce_keyword`, a reducer, and an entry
in `_SIMPLE` or `_Compiler._make`. docs/architecture.md, "Extension points", lists the other places.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema_rs

from derive.document.key import compare
from derive.document.pointer import JSON, MISSING, escape
from derive.errors import ReductionError
from derive.reduce.applicable_schemas import Condition, Part
from derive.reduce.keyed import KeyOrder, compile_set, join, order_by, sorted_by
from derive.reduce.reduce_keyword import Annotation
from derive.reduce.reduction import (
    Choice,
    Location,
    NotAssociative,
    Reduce,
    Reduction,
    ReductionBuilder,
    ReductionFailed,
    keeps_single,
    reduce_at,
    take_right,
    takes_last,
)
from derive.schema.shape import infer, serialize, union


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

    A full reduction first reduces a new value by itself. Without this step, the presence of tombstones in the value
    would depend on the grouping of documents (law L6).

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


_DECIMAL = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_GREATEST_EXPONENT = 6144
_EXACT = decimal.Context(
    prec=4 * _GREATEST_EXPONENT,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.Inexact, decimal.Overflow],
)
_EXPECTED = "'sum' strategy expects numbers"
_OVERFLOW = "'sum' resulted in numeric overflow"


def reduce_sum(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the sum of two numbers; without an earlier number, the later number unchanged.

    The sum of two integers is an integer of any size. The sum of an integer and a floating-point number is a
    floating-point number. The sum of a decimal string (`"10.25"`, `"-3e2"`) and a number is a decimal string with all
    digits; its exponent has the limits of decimal128 (IEEE 754).

    Raises:
        ReductionFailed: a value is not a number, or the sum is out of range.
    """
    if left is MISSING:
        reduce_sum(0, right, full)
        return right
    kinds = type(left), type(right)
    if kinds == (int, int):
        return left + right
    if not all(kind is int or kind is float or kind is str for kind in kinds):
        raise ReductionFailed(_EXPECTED, left, right)
    if str in kinds:
        return _exact_sum(left, right)
    try:
        total = left + right
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise ReductionFailed(_OVERFLOW, left, right)
    return total


def _exact_sum(left: JSON, right: JSON) -> str:
    for value in (left, right):
        if type(value) is str and not _DECIMAL.fullmatch(value):
            raise ReductionFailed(_EXPECTED, left, right)
    try:
        terms = [decimal.Decimal(value) for value in (left, right)]
        for term in terms:
            if abs(term.adjusted()) > _GREATEST_EXPONENT or abs(int(term.as_tuple().exponent)) > _GREATEST_EXPONENT:
                raise ReductionFailed(_OVERFLOW, left, right)
        # The sum with 0 has no positive exponent and no negative zero, so sums do not depend on the order.
        return format(_EXACT.add(_EXACT.add(terms[0], decimal.Decimal(0)), terms[1]), "f")
    except (decimal.DecimalException, ValueError):
        raise ReductionFailed(_OVERFLOW, left, right) from None


def merge_json_schemas(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the union of two schemas' shapes, as a schema.

    Raises:
        ReductionFailed: a value is not an object that is a JSON Schema.
    """
    for schema in (left, right):
        if schema is not MISSING and not _is_schema(schema):
            raise ReductionFailed("'jsonSchemaMerge' strategy expects objects that are JSON Schemas", left, right)
    return right if left is MISSING else serialize(union(infer(left), infer(right)))


def _is_schema(value: JSON) -> bool:
    # A schema of another dialect, or an unknown one, is read in the dialect of the catalog's schemas.
    return type(value) is dict and jsonschema_rs.meta.is_valid({**value, "$schema": _DIALECT})


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The reducer that was chosen for a value.

    Attributes:
        reduce: the reducer.
        nature: value that is equal for equivalent reducers.
        takes_right: true if the result is the later value, or nothing.
        deletes: true if a full reduction removes the location.
    """

    reduce: Reduce
    nature: Any
    takes_right: bool
    deletes: bool

    @property
    def replaces(self) -> bool:
        """Return true if the result is always the later value."""
        return self.takes_right and not self.deletes


def compile_choice(
    conditions: tuple[Condition, ...], choose: Callable[[Iterable[Part]], Chosen], *, full_differs: bool
) -> Reduce:
    """Return the reducer of a location whose annotations depend on the value.

    Args:
        conditions: conditions of the annotations.
        choose: returns the reducer for the applying parts of the schema; called once per combination.
        full_differs: true if a full reduction below may differ from a partial one.
    """
    decide = _compile_decision(conditions)
    known: dict[tuple[bool, ...], Chosen] = {}

    def chosen_for(value: JSON) -> Chosen:
        outcome = decide(value)
        chosen = known.get(outcome)
        if chosen is None:
            chosen = known[outcome] = choose(_applying(conditions, iter(outcome)))
        return chosen

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        chosen = chosen_for(right)
        if full or left is MISSING or chosen.takes_right:
            return chosen.reduce(left, right, full)
        before = chosen_for(left)
        same = chosen.nature == before.nature
        try:
            reduced = chosen.reduce(left, right, full)
        except ReductionFailed:
            if same:
                raise
            raise NotAssociative from None  # the earlier value may be absent in the full reduction
        after = chosen_for(reduced)
        if after.nature == chosen.nature and (same or chosen.deletes):
            return reduced
        if full_differs or not (before.replaces and after.replaces):
            raise NotAssociative
        return reduced

    return reduce


def _compile_decision(conditions: tuple[Condition, ...]) -> Callable[[JSON], tuple[bool, ...]]:
    """Return a function from a value to the conditions that it meets, in evaluation order."""
    if all(not condition.then.conditions and not condition.otherwise.conditions for condition in conditions):
        tests = [condition.holds for condition in conditions]
        if len(tests) == 1:
            (test,) = tests
            return lambda value: (test(value),)
        return lambda value: tuple([test(value) for test in tests])
    return lambda value: tuple(_outcome(conditions, value))


def _outcome(conditions: tuple[Condition, ...], value: JSON) -> Iterator[bool]:
    for condition in conditions:
        held = condition.holds(value)
        yield held
        yield from _outcome((condition.then if held else condition.otherwise).conditions, value)


def _applying(conditions: tuple[Condition, ...], outcome: Iterator[bool]) -> Iterator[Part]:
    for condition in conditions:
        applied = condition.then if next(outcome) else condition.otherwise
        yield from applied.parts
        yield from _applying(applied.conditions, outcome)


_NAMES = 4096
_SHOWN = 200
_LAST = Annotation("lastWriteWins")
_MERGE = Annotation("merge")
_CONTAINERS = ("maximize", "merge", "minimize", "set")


@dataclass(frozen=True, slots=True)
class DocumentReducer:
    """The reduction of whole documents.

    Attributes:
        reduce: the reducer; it raises `ReductionError` if a strategy does not accept the values, and `NotAssociative`.
        takes_last: true if every full reduction returns the last document unchanged.
        keeps_single: true if every full reduction of a single document returns it unchanged.
    """

    reduce: Reduce
    takes_last: bool
    keeps_single: bool


def compile_schema(schema: JSON, name: str) -> DocumentReducer:
    """Return the reducer of whole documents.

    Args:
        schema: self-contained JSON Schema with `reduce` annotations.
        name: name of the collection, for messages.

    Raises:
        SchemaError: the annotations are invalid.
    """
    builder = ReductionBuilder(schema, name)
    root = builder.build()
    inner = _Compiler(full_differs=builder.full_differs).compile(root)

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        try:
            return inner(left, right, full)
        except ReductionFailed as exc:
            raise ReductionError(
                f"while reducing '{exc.pointer}': {exc.reason}, having values LHS: {_show(exc.left)},"
                f" RHS: {_show(exc.right)}"
            ) from None

    return DocumentReducer(reduce, takes_last(root), keeps_single(root))


def _show(value: JSON) -> str:
    shown = "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


class _Compiler:
    """Compiles each reduction once; a recursive reduction refers to itself through a cell.

    Args:
        full_differs: true if a full reduction of some value differs from a partial one.
    """

    def __init__(self, *, full_differs: bool) -> None:
        self._full_differs = full_differs
        self._done: dict[tuple[Location, Annotation], list[Reduce]] = {}

    def compile(self, location: Location, instead: Annotation | None = None) -> Reduce:
        """Return the reducer of a location, with its own annotation or with the annotation `instead`."""
        if isinstance(location, Choice):
            choice = location
            return compile_choice(
                choice.conditions,
                lambda parts: self._chosen(choice.decide(parts), instead),
                full_differs=self._full_differs,
            )
        annotation = instead or location.annotation or _LAST
        cell = self._done.setdefault((location, annotation), [])
        if not cell:
            cell.append(_later(cell))  # placeholder for recursive references
            cell[0] = _conflict(location.conflict) if location.conflict else self._make(location, annotation)
        return cell[0]

    def _chosen(self, reduction: Reduction, instead: Annotation | None) -> Chosen:
        annotation = instead or reduction.annotation or _LAST
        return Chosen(
            reduce=self.compile(reduction, instead),
            nature=(annotation, reduction if reduction.conflict or annotation.strategy in _CONTAINERS else None),
            takes_right=annotation.strategy == "lastWriteWins" and not reduction.conflict,
            deletes=annotation.delete,
        )

    def _make(self, reduction: Reduction, annotation: Annotation) -> Reduce:
        simple = _SIMPLE.get(annotation.strategy)
        if simple is not None:
            return simple
        if annotation.strategy == "merge":
            return self._merge(reduction, annotation)
        if annotation.strategy == "set":
            return self._set(reduction, annotation)
        if annotation.strategy == "lastWriteWins":
            return _last_write_wins(annotation)
        return self._extreme(reduction, annotation, {"maximize": 1, "minimize": -1}[annotation.strategy])

    def _set(self, reduction: Reduction, annotation: Annotation) -> Reduce:
        member = reduction.properties.get("add") or reduction.others(
            tuple([match("add") for match in reduction.patterns])
        )
        return compile_set(annotation.key, self.compile(member, Annotation("merge", annotation.key)))

    def _extreme(self, reduction: Reduction, annotation: Annotation, sign: int) -> Reduce:
        if not annotation.key:
            return compile_extreme(sign)
        return compile_keyed_extreme(sign, order_by(annotation.key), self.compile(reduction, _MERGE))

    def _merge(self, reduction: Reduction, annotation: Annotation) -> Reduce:
        merge_objects = self._objects(reduction)
        merge_arrays = self._keyed(reduction, annotation.key) if annotation.key else self._indexed(reduction)
        delete = annotation.delete

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            kind = type(right)
            if kind is not dict and kind is not list:
                raise ReductionFailed("'merge' strategy expects objects or arrays", left, right)
            if left is not MISSING and type(left) is not kind:
                if not full:
                    raise NotAssociative
                left = MISSING
            if full and delete:
                return MISSING
            return merge_objects(left, right, full) if kind is dict else merge_arrays(left, right, full)

        return merge

    def _objects(self, reduction: Reduction) -> Reduce:
        children = {name: self.compile(location) for name, location in reduction.properties.items()}
        other = self._others(reduction)

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            reduced = {} if left is MISSING else dict(left)
            for name, value in right.items():
                reducer = children.get(name) or other(name)
                if reducer is take_right:
                    reduced[name] = value
                    continue
                try:
                    result = reducer(reduced.get(name, MISSING), value, full)
                except ReductionFailed as exc:
                    exc.pointer = f"/{escape(name)}{exc.pointer}"
                    raise
                if result is MISSING:
                    reduced.pop(name, None)
                else:
                    reduced[name] = result
            return reduced

        return merge

    def _others(self, reduction: Reduction) -> Callable[[str], Reduce]:
        """Return a function from the name of a property that the schema does not name to its reducer."""
        patterns = reduction.patterns
        if not patterns:
            reduce_other = self.compile(reduction.others(()))
            return lambda _: reduce_other
        return lru_cache(_NAMES)(
            lambda name: self.compile(reduction.others(tuple([match(name) for match in patterns])))
        )

    def _item(self, reduction: Reduction) -> Callable[[int], Reduce]:
        prefix = [self.compile(location) for location in reduction.prefix]
        reduce_other = self.compile(reduction.items)
        return lambda index: prefix[index] if index < len(prefix) else reduce_other

    def _indexed(self, reduction: Reduction) -> Reduce:
        item = self._item(reduction)
        full_differs = self._full_differs

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            before = [] if left is MISSING else left
            if (
                full_differs
                and not full
                and any(_is_tombstone(item(index), item_value) for index, item_value in enumerate(before))
            ):
                raise NotAssociative  # the removal of a tombstone shifts the following indices
            reduced = [
                reduce_at(index, item(index), before[index] if index < len(before) else MISSING, value, full)
                for index, value in enumerate(right)
            ]
            return [item_value for item_value in reduced if item_value is not MISSING] + before[len(right) :]

        return merge

    def _keyed(self, reduction: Reduction, key: tuple[str, ...]) -> Reduce:
        item = self._item(reduction)
        order, is_sorted = order_by(key), sorted_by(key)
        by_index = bool(reduction.prefix)

        def merge(left: JSON, right: JSON, full: bool) -> JSON:
            before = [] if left is MISSING else left
            if not is_sorted(before) or not is_sorted(right):
                raise ReductionFailed(
                    "'merge' strategy with a key expects arrays that are sorted and unique by the key", left, right
                )
            if by_index and before and not full:
                raise NotAssociative  # items change their indices
            return list(join(before, right, order, item, full))

        return merge


def _later(cell: list[Reduce]) -> Reduce:
    """Return a reducer that calls the reducer in a cell; the cell may be filled later."""

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        return cell[0](left, right, full)

    return reduce


def _conflict(reason: str) -> Reduce:
    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        raise ReductionFailed(reason, left, right)

    return reduce


def _is_tombstone(reduce: Reduce, value: JSON) -> bool:
    return reduce(MISSING, value, True) is MISSING


def _last_write_wins(annotation: Annotation) -> Reduce:
    if annotation.associative and not annotation.delete:
        return take_right
    delete, associative = annotation.delete, annotation.associative

    def last(left: JSON, right: JSON, full: bool) -> JSON:
        if not full and not associative and left is not MISSING and compare(left, right):
            raise NotAssociative
        return MISSING if full and delete else right

    return last


def _first(left: JSON, right: JSON, full: bool) -> JSON:
    return right if left is MISSING else left


def _append(left: JSON, right: JSON, full: bool) -> JSON:
    if left is MISSING:
        return right
    if type(right) is not list or (left is not None and type(left) is not list):
        raise ReductionFailed("'append' strategy expects arrays", left, right)
    return None if left is None else left + right


_SIMPLE: Mapping[str, Reduce] = {
    "append": _append,
    "firstWriteWins": _first,
    "jsonSchemaMerge": merge_json_schemas,
    "sum": reduce_sum,
}
