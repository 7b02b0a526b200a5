"""Window frames that SQLite cannot evaluate: each row is joined to the rows of its frame, and these are aggregated.

These frames are RANGE with a distance of numbers that are no integers, or of intervals with months, and ROWS without
the peers of the row. The work grows with the number of rows in all frames together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.expression import Call, Case, Column, Expression, Literal
from derive.algebra.modifier_inference import modifier_of, modifiers_of
from derive.algebra.relation import (
    Aggregate,
    Bound,
    Exclusion,
    Frame,
    FrameUnit,
    Order,
    OuterJoin,
    Project,
    Reduce,
    Relation,
    Side,
    Window,
    WindowFunction,
)
from derive.algebra.types import Type, TypeModifier
from derive.errors import SqlError
from derive.functions.aggregates.library import AGGREGATES
from derive.functions.registry import resolve_aggregate, resolve_cast, resolve_operator
from derive.sql.planner.building import columns_of, joined
from derive.sql.planner.coercion import Coercion
from derive.sql.planner.dependencies import volatile_function
from derive.sql.planner.predicates import connected

CHOOSING = frozenset({"first_value", "last_value", "nth_value"})
"""Functions that return the value of one row of the frame."""
_PEERS = frozenset({Exclusion.GROUP, Exclusion.TIES})
_Window: TypeAlias = tuple[tuple[Expression, ...], tuple[Order, ...], Frame | None]
_BOOLEAN, _BIGINT = Type.BOOLEAN, Type.BIGINT


def is_joined(function: WindowFunction) -> bool:
    """Return whether a function is evaluated by a join of each row to its frame."""
    frame = function.frame
    if frame is None or not (function.function in AGGREGATES or function.function in CHOOSING):
        return False
    has_distance = frame.begin.distance is not None or frame.end.distance is not None
    return has_distance or (frame.unit is FrameUnit.ROWS and frame.exclusion in _PEERS)


def framed(relation: Relation, functions: Sequence[WindowFunction]) -> Relation:
    """Return rows with the value of each window function behind their columns.

    Raises:
        SqlError: a frame needs a join, and the rows change with each evaluation (0A000).
    """
    groups: dict[_Window, list[int]] = {}
    for index, function in enumerate(functions):
        if is_joined(function):
            groups.setdefault((function.partition, function.order, function.frame), []).append(index)
    if not groups:
        return Window(relation, tuple(functions))
    name = volatile_function(relation)
    if name is not None:
        hint = "Compute the values in a table, or use another frame."
        raise SqlError("0A000", f"{name}() is not supported below this window frame", hint=hint)
    # The columns of joined functions get a number for the time being, so that the others keep their places.
    plain = [WindowFunction("row_number", (), _BIGINT) if is_joined(one) else one for one in functions]
    numbers = [WindowFunction("row_number", (), _BIGINT, partition, order) for partition, order, _ in groups]
    rows: Relation = Window(relation, (*plain, *numbers))
    width = len(relation.types)
    values: list[Expression] = list(columns_of(rows)[: width + len(functions)])
    for place, indexes in enumerate(groups.values(), start=len(values)):
        chosen = [functions[index] for index in indexes]
        keys = (*chosen[0].partition, Column(place, _BIGINT))
        frames = _frames(relation, chosen)
        columns = [replace(column, index=len(rows.types) + column.index) for column in columns_of(frames)]
        same = [_operation("is not distinct from", own, key) for own, key in zip(keys, columns, strict=False)]
        rows = joined(rows, frames, same)
        for index, column in zip(indexes, columns[len(keys) :], strict=True):
            values[width + index] = column
    return Project(rows, tuple(values))


def _frames(relation: Relation, functions: Sequence[WindowFunction]) -> Relation:
    """Return partition and number of each row, and the values of functions of one frame."""
    partition, order, frame = functions[0].partition, functions[0].order, functions[0].frame
    assert frame is not None
    width = len(relation.types)
    numbering = [WindowFunction(name, (), _BIGINT, partition, order) for name in ("row_number", "rank")]
    numbered = Window(relation, tuple(numbering))
    both_numbers = (Column(width, _BIGINT), Column(width + 1, _BIGINT))
    sort = order[0] if order else None
    key = () if sort is None else (sort.expression,)
    limits = [_limit(bound, sort) for bound in (frame.begin, frame.end)]
    head = (*partition, *both_numbers, *key)
    own = Project(numbered, (*head, *(limit for limit in limits if limit is not None)))
    arguments = tuple(one for function in functions for one in function.arguments)
    others = Project(numbered, (*head, *arguments))
    predicate = connected("and", _Sides(own.types, others.types, len(partition), frame, sort).predicates(limits))
    both = OuterJoin(Side.LEFT, own, others, predicate)
    values = list(columns_of(both)[len(own.types) + len(head) :])
    number = Column(len(own.types) + len(partition), _BIGINT)
    aggregates = []
    for function in functions:
        aggregates.append(_aggregate(function, values[: len(function.arguments)], number))
        del values[: len(function.arguments)]
    keys = columns_of(both)[: len(partition) + 1]
    reduced = Reduce(both, keys, tuple(aggregates))
    columns = columns_of(reduced)
    own_modifiers = modifiers_of(relation)
    results = (
        _result(one, column, modifier_of(one.arguments[0], own_modifiers) if one.arguments else None)
        for one, column in zip(functions, columns[len(keys) :], strict=True)
    )
    return Project(reduced, (*columns[: len(keys)], *results))


def _aggregate(function: WindowFunction, arguments: Sequence[Expression], number: Column) -> Aggregate:
    """Return the aggregate over the rows of a frame; for a choice of a row, the array of values in order."""
    is_there = Call("is_not_null", (number,), _BOOLEAN)
    if function.function in CHOOSING:
        if arguments[0].type.element is not None:
            hint = "Cast the array to text, and its result back."
            raise SqlError("0A000", f"{function.function} of arrays is not supported for such a frame", hint=hint)
        resolution = resolve_aggregate("array_agg", (arguments[0].type,))
        order: tuple[Order, ...] = (Order(number, function.function == "last_value"),)
        return Aggregate(resolution.function, (arguments[0],), resolution.result_type, condition=is_there, order=order)
    order = (Order(number),) if AGGREGATES[function.function].is_ordered else ()
    return Aggregate(function.function, tuple(arguments), function.type, condition=is_there, order=order)


def _result(function: WindowFunction, column: Column, modifier: TypeModifier | None) -> Expression:
    """Return the value of a function from its aggregate; `modifier` is that of its argument."""
    if function.function not in CHOOSING:
        return column
    place = function.arguments[1] if function.function == "nth_value" else Literal(1, Type.INTEGER)
    resolution = resolve_operator("[]", (column.type, Type.INTEGER))
    value = Call(resolution.function, (column, place), function.type)
    is_lost = modifier is not None and modifier.size and function.type is Type.TEXT
    return Coercion.fitted(value, modifier, is_cast=True) if is_lost else value


def _limit(bound: Bound, sort: Order | None) -> Expression | None:
    """Return the sort key at a bound with a distance, over the current row."""
    if bound.distance is None or bound.offset is None or sort is None:
        return None
    symbol = "+" if (bound.offset > 0) is not sort.is_descending else "-"
    return _operation(symbol, sort.expression, bound.distance)


class _Sides:
    """The current rows and the rows of frames, side by side.

    Args:
        own: types of the current rows: partition, number, rank, sort key if there is one, and limits.
        others: types of the other rows, which begin alike.
        keys: number of expressions of the partition.
        frame: the frame.
        sort: the sort key; None without one.
    """

    def __init__(
        self, own: Sequence[Type], others: Sequence[Type], keys: int, frame: Frame, sort: Order | None
    ) -> None:
        self._frame, self._sort = frame, sort
        columns = [Column(index, kind) for index, kind in enumerate((*own, *others))]
        self._keys = list(zip(columns[:keys], columns[len(own) : len(own) + keys], strict=True))
        self._own, self._others = columns[keys : len(own)], columns[len(own) + keys :]

    def predicates(self, limits: Sequence[Expression | None]) -> list[Expression]:
        """Return the conditions that another row is in the frame of the current row."""
        conditions = [_operation("is not distinct from", own, other) for own, other in self._keys]
        place = 3
        for bound, limit, symbol in zip((self._frame.begin, self._frame.end), limits, (">=", "<="), strict=True):
            if limit is not None:
                conditions.append(self._beyond(self._own[place], symbol))
                place += 1
            elif bound.offset is not None:
                conditions.append(self._counted(bound.offset, symbol))
        number, rank = self._own[:2]
        other_number, other_rank = self._others[:2]
        if self._frame.exclusion is Exclusion.CURRENT_ROW:
            conditions.append(_operation("<>", other_number, number))
        elif self._frame.exclusion in _PEERS:
            is_apart = _operation("<>", other_rank, rank)
            is_same = _operation("=", other_number, number)
            is_kept = self._frame.exclusion is Exclusion.TIES
            conditions.append(Call("or", (is_apart, is_same), _BOOLEAN) if is_kept else is_apart)
        return conditions

    def _counted(self, offset: int, symbol: str) -> Expression:
        """Return the condition of a bound in rows, or at the peers of the current row."""
        index = 0 if self._frame.unit is FrameUnit.ROWS else 1
        own = self._own[index]
        shifted = _operation("+", own, Literal(offset, _BIGINT)) if offset else own
        return _operation(symbol, self._others[index], shifted)

    def _beyond(self, limit: Column, symbol: str) -> Expression:
        """Return the condition of a bound at a distance; NULL is at no distance from other values."""
        assert self._sort is not None
        own, other = self._own[2], self._others[2]
        at_peers = _operation(symbol, self._others[1], self._own[1])
        is_behind = (symbol == ">=") is not self._sort.nulls_first
        if self._sort.is_descending:
            symbol = {">=": "<=", "<=": ">="}[symbol]
        missing = Call("is_null", (own,), _BOOLEAN), at_peers
        of_null = Call("is_null", (other,), _BOOLEAN), Literal(int(is_behind), _BOOLEAN)
        return Case((missing, of_null), _operation(symbol, other, limit), _BOOLEAN)


def _operation(symbol: str, left: Expression, right: Expression) -> Expression:
    """Return an operation on values of any types."""
    resolution = resolve_operator(symbol, (left.type, right.type))
    arguments = (_cast(value, kind) for value, kind in zip((left, right), resolution.argument_types, strict=True))
    return Call(resolution.function, tuple(arguments), resolution.result_type)


def _cast(value: Expression, kind: Type) -> Expression:
    name = resolve_cast(value.type, kind, "implicit")
    return Call(name, (value,), kind) if name else replace(value, type=kind)
