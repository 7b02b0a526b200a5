"""Compile strategies to closures, so that the schema is interpreted once and not for every document.

A new strategy needs a name with its options in `STRATEGIES` of `derive.reduce.annotation`, a reducer in a file of its
own, and an entry in `_SIMPLE` or `_Compiler._make` here. `derive.catalog.schemas.reduction_rules` checks that schemas
suit it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from derive.document.order import compare
from derive.document.pointer import JSON, MISSING, escape
from derive.errors import ReductionError
from derive.reduce.annotation import Annotation
from derive.reduce.choice import Chosen, compile_choice
from derive.reduce.extreme import compile_extreme, compile_keyed_extreme
from derive.reduce.json_schema import merge_json_schemas
from derive.reduce.keyed import join, order_by, sorted_by
from derive.reduce.reducer import NotAssociative, Reduce, ReductionFailed, reduce_at, take_right
from derive.reduce.reduction import Choice, Location, Reduction, ReductionBuilder
from derive.reduce.set import compile_set
from derive.reduce.single import keeps_single, takes_last
from derive.reduce.sum import reduce_sum

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
    """Compiles each reduction once; a recursive one refers to itself through a cell.

    Args:
        full_differs: true if a full reduction of some value differs from a partial one.
    """

    def __init__(self, *, full_differs: bool) -> None:
        self._full_differs = full_differs
        self._done: dict[tuple[Location, Annotation], list[Reduce]] = {}

    def compile(self, location: Location, instead: Annotation | None = None) -> Reduce:
        """Return the reducer of a location, with the annotation `instead` of its own if given."""
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
        return self._extreme(reduction, annotation, 1 if annotation.strategy == "maximize" else -1)

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
        """Return a function from the name of an unnamed property to its reducer."""
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
                raise ReductionFailed("'merge' strategy with a key expects arrays sorted and unique by it", left, right)
            if by_index and before and not full:
                raise NotAssociative  # items change their indices
            return list(join(before, right, order, item, full))

        return merge


def _later(cell: list[Reduce]) -> Reduce:
    """Return a reducer that calls the future content of the cell."""

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
