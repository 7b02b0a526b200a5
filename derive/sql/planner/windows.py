"""Planner of windows: partitions, orders and frames, and functions that SQLite evaluates in several steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.expression import Call, Case, Column, Expression, Literal
from derive.algebra.relation import Bound, Exclusion, FrameUnit, Order, Project, Relation, Window, WindowFunction
from derive.algebra.relation import Frame as RowFrame
from derive.algebra.rewrite import columns_read
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import evaluate, resolve_operator, resolve_window
from derive.functions.types.datetime import DAY, interval_of
from derive.functions.types.type_info import datum_of_text, text_of
from derive.sql.parser.ast import FrameBound, FunctionCall, WindowDefinition, WindowFrame, WindowReference
from derive.sql.planner.building import columns_of
from derive.sql.planner.coercion import CastContext
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.joined_frames import CHOOSING, framed, is_joined
from derive.sql.planner.output import orders_of, start_of

PlannedWindow: TypeAlias = tuple[tuple[Expression, ...], tuple[Order, ...], RowFrame | None]


class WindowPlanner:
    """Planner of the windows in one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    def plan(self, node: FunctionCall) -> PlannedWindow:
        """Return the partition, order and frame of a call's OVER clause."""
        if isinstance(node.over, WindowReference):
            definition = self._named(node.over.name, node.over.offset)
        else:
            assert node.over is not None
            definition = self._complete(node.over)
        partition = tuple(self._expressions.known(part) for part in definition.partition)
        order = orders_of(definition.order, self._expressions)
        return partition, order, self._frame(definition.frame, order) if definition.frame else None

    def _named(self, name: str, offset: int) -> WindowDefinition:
        windows = self._expressions.frame.named_windows
        if name not in windows:
            raise SqlError("42704", f'window "{name}" does not exist', offset=offset)
        return self._complete(windows[name])

    def _complete(self, definition: WindowDefinition) -> WindowDefinition:
        """Return a definition completed from its base window."""
        if definition.base is None:
            return definition
        base = self._named(definition.base, definition.offset)
        if definition.partition:
            message = f'cannot override PARTITION BY clause of window "{definition.base}"'
            raise SqlError("42P20", message, offset=definition.offset)
        if definition.order and base.order:
            message = f'cannot override ORDER BY clause of window "{definition.base}"'
            raise SqlError("42P20", message, offset=definition.offset)
        if base.frame:
            message = f'cannot copy window "{definition.base}" because it has a frame clause'
            raise SqlError("42P20", message, offset=definition.offset)
        order = definition.order or base.order
        return WindowDefinition(None, base.partition, order, definition.frame, definition.offset)

    def _frame(self, frame: WindowFrame, order: tuple[Order, ...]) -> RowFrame:
        unit = FrameUnit(frame.unit)
        has_distance = frame.begin.distance is not None or frame.end.distance is not None
        if unit is FrameUnit.RANGE and has_distance and len(order) != 1:
            message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column"
            raise SqlError("42P20", message, offset=frame.offset)
        if unit is FrameUnit.GROUPS and not order:
            raise SqlError("42P20", "GROUPS mode requires an ORDER BY clause", offset=frame.offset)
        bounds = _BoundPlanner(self._expressions, unit, order)
        begin, end = bounds.plan_both(frame)
        exclusion = Exclusion(frame.exclusion) if frame.exclusion else None
        planned = RowFrame(unit, begin, end, exclusion)
        if unit is FrameUnit.ROWS and exclusion in _EXCLUDE_PEERS and planned.is_whole:
            return replace(planned, unit=FrameUnit.RANGE)
        return planned


_INTEGERS = frozenset({Type.SMALLINT, Type.INTEGER, Type.BIGINT})
_INSTANTS = frozenset({Type.DATE, Type.TIMESTAMP, Type.TIMESTAMPTZ, Type.TIME})
_DISTANCES = {
    Type.NUMERIC: Type.NUMERIC,
    Type.REAL: Type.DOUBLE,
    Type.DOUBLE: Type.DOUBLE,
    Type.INTERVAL: Type.INTERVAL,
    **dict.fromkeys(_INSTANTS, Type.INTERVAL),
}
"""Types of distances that are added to sort keys of other types than integers."""
_EXCLUDE_PEERS = frozenset({Exclusion.GROUP, Exclusion.TIES})


class _BoundPlanner:
    """Planner of the bounds of one frame, whose order is planned already."""

    def __init__(self, expressions: Expressions, unit: FrameUnit, order: tuple[Order, ...]) -> None:
        self._expressions = expressions
        self._unit = unit
        self._order = order

    def plan_both(self, frame: WindowFrame) -> tuple[Bound, Bound]:
        """Plan both bounds of a frame. Either both add their distances to sort keys, or none.

        Raises:
            SqlError: as `plan`.
        """
        begin, end = self.plan(frame.begin, is_start=True), self.plan(frame.end, is_start=False)
        if begin.distance is None and end.distance is None:
            return begin, end
        return self._beside(frame.begin, begin), self._beside(frame.end, end)

    def _beside(self, node: FrameBound, bound: Bound) -> Bound:
        """Return a bound of a frame whose other bound adds a distance to sort keys."""
        if bound.distance is not None or node.distance is None:
            return bound
        added = self._constant(node, _DISTANCES[self._order[0].expression.type])
        return Bound(-1 if node.kind == "preceding" else 1, distance=added)

    def plan(self, node: FrameBound, *, is_start: bool) -> Bound:
        """Plan a bound: the number of rows or groups, or the difference of the order's datum.

        Raises:
            SqlError: 22013 or 22004, the distance is negative or NULL; 42804 or 0A000, its type does not fit the order,
                or it is not a constant.
        """
        if node.kind.startswith("unbounded"):
            return Bound(None, is_following=node.kind.endswith("following"))
        if node.distance is None:
            return Bound(0)
        is_preceding = node.kind == "preceding"
        if self._unit is FrameUnit.RANGE:
            added = self._added(node)
            if added is not None:
                return Bound(-1 if is_preceding else 1, distance=added)
            distance = self._difference(node, rounds_up=is_start is not is_preceding)
        else:
            distance = self._number(node, is_start=is_start)
        return Bound(-distance if is_preceding else distance)

    def _constant(self, node: FrameBound, kind: Type) -> Literal:
        assert node.distance is not None
        value = self._expressions.plan(node.distance)
        if columns_read(value):
            message = f"argument of {self._unit.value.upper()} must not contain variables"
            raise SqlError("42P10", message, offset=start_of(node.distance))
        context: CastContext = "implicit" if self._unit is FrameUnit.RANGE else "assignment"
        cast = self._expressions.coercion.cast(value, kind, start_of(node.distance), context)
        if cast is None and self._unit is not FrameUnit.RANGE:
            message = f"argument of {self._unit.value.upper()} must be type bigint, not type {value.type.value}"
            raise SqlError("42804", message, offset=start_of(node.distance))
        if cast is None:
            message = (
                "RANGE with offset PRECEDING/FOLLOWING is not supported for column type"
                f" {self._order[0].expression.type.value} and offset type {value.type.value}"
            )
            hint = "Cast the offset value to an appropriate type."
            raise SqlError("0A000", message, offset=start_of(node.distance), hint=hint)
        if not isinstance(cast, Literal):
            hint = "Write a literal, without parameters and functions of the session."
            raise SqlError("0A000", "a bound of a frame must be a constant", offset=node.offset, hint=hint)
        return cast

    def _number(self, node: FrameBound, *, is_start: bool) -> int:
        where, constant = "starting" if is_start else "ending", self._constant(node, Type.BIGINT)
        if constant.value is None:
            raise SqlError("22004", f"frame {where} offset must not be null", offset=node.offset)
        number = int(constant.value)
        if number < 0:
            raise SqlError("22013", f"frame {where} offset must not be negative", offset=node.offset)
        return number

    def _added(self, node: FrameBound) -> Literal | None:
        """Return a distance that is added to sort keys; None if it is a number of units of their data, or zero."""
        key = self._order[0].expression.type
        if key in _INTEGERS:
            return None
        if key not in _DISTANCES:
            message = f"RANGE with offset PRECEDING/FOLLOWING is not supported for column type {key.value}"
            hint = "Order by a number, a date, a time or an interval."
            raise SqlError("0A000", message, offset=node.offset, hint=hint)
        constant = self._constant(node, _DISTANCES[key])
        if constant.value is None:
            raise SqlError("22004", "frame starting offset must not be null", offset=node.offset)
        if isinstance(constant.value, bytes) and constant.type is Type.INTERVAL:
            interval = interval_of(constant.value)
            if key in _INSTANTS and (not interval.months or key is Type.TIME):
                return None
        if key is Type.TIMESTAMPTZ and self._expressions.coercion.zone is not None:
            hint = "Write days, such as INTERVAL '30 days'."
            message = "months in RANGE over timestamp with time zone are supported in the time zone UTC only"
            raise SqlError("0A000", message, offset=node.offset, hint=hint)
        below = resolve_operator("<", (constant.type, constant.type)).function
        zero = Literal(datum_of_text(constant.type, "0"), constant.type)
        text = text_of(constant.type, constant.value)
        if text == "NaN" or evaluate(Call(below, (constant, zero), Type.BOOLEAN)):
            message = "invalid preceding or following size in window function"
            raise SqlError("22013", message, offset=node.offset)
        if text == "Infinity":
            message = "infinite distances in RANGE are not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Write UNBOUNDED PRECEDING or FOLLOWING.")
        return constant

    def _difference(self, node: FrameBound, *, rounds_up: bool) -> int:
        key = self._order[0].expression.type
        constant = self._constant(node, Type.BIGINT if key in _INTEGERS else Type.INTERVAL)
        if constant.value is None:
            raise SqlError("22004", "frame starting offset must not be null", offset=node.offset)
        if key in _INTEGERS:
            difference = int(constant.value)
        else:
            assert isinstance(constant.value, bytes)
            interval = interval_of(constant.value)
            days = 0 if key is Type.TIME else interval.days
            difference = interval.microseconds + days * DAY
        if difference < 0:
            message = "invalid preceding or following size in window function"
            raise SqlError("22013", message, offset=node.offset)
        return difference if key is not Type.DATE else -(-difference // DAY) if rounds_up else difference // DAY


def check_choice(function: WindowFunction, offset: int) -> None:
    """Check that a function that returns the value of one row of its frame can be evaluated.

    Raises:
        SqlError: the function is `nth_value`, and its frame has gaps, or its number is not a constant (0A000).
    """
    is_apart = _is_layered(function) or is_joined(function)
    if not is_apart or function.function != "nth_value":
        return
    assert function.frame is not None
    if function.frame.exclusion is not None and not is_joined(function):
        hint = "Omit EXCLUDE, or write ROWS."
        raise SqlError("0A000", "nth_value over a frame with EXCLUDE is not supported", offset=offset, hint=hint)
    number = function.arguments[1]
    if not isinstance(number, Literal):
        message = "the number of nth_value must be a constant for this frame"
        raise SqlError("0A000", message, offset=offset, hint="Write a literal number, or a frame of ROWS.")
    if number.value is not None and int(number.value) < 1:
        raise SqlError("22016", "argument of nth_value must be greater than zero", offset=offset)


def _is_layered(function: WindowFunction) -> bool:
    """Return whether the value is that of a row whose number depends on the peers of each row."""
    frame = function.frame
    if function.function not in CHOOSING or frame is None or is_joined(function):
        return False
    is_plain = frame.unit is FrameUnit.ROWS or frame.is_whole or frame.is_until_peers
    return frame.exclusion in _EXCLUDE_PEERS or not (is_plain and (frame.exclusion is None or _counts_rows(frame)))


def _counts_rows(frame: RowFrame) -> bool:
    return frame.unit is FrameUnit.ROWS or frame.is_whole


def windowed(relation: Relation, functions: Sequence[WindowFunction]) -> Relation:
    """Return rows with the value of each window function behind their columns.

    The value of one row of a frame of peers takes three steps: rows are numbered in their partition, the number of the
    chosen row is the least or greatest one of the frame, and the row with this number is looked up.
    """
    layered = [function for function in functions if _is_layered(function)]
    if not layered:
        return framed(relation, functions)
    width, count = len(relation.types), len(functions)
    numbering = [WindowFunction("row_number", (), Type.BIGINT, one.partition, one.order) for one in layered]
    numbers = [Column(width + count + index, Type.BIGINT) for index in range(len(layered))]
    chosen = [_chosen(one, number) for one, number in zip(layered, numbers, strict=True)]
    begins = [sum(map(len, chosen[:index])) for index in range(len(chosen))]
    extremes = [Column(width + count + len(layered) + begin, Type.BIGINT) for begin in begins]
    # The columns of functions that are evaluated at once keep their places; the others get a number for the time being.
    plain = [WindowFunction("row_number", (), Type.BIGINT) if _is_layered(one) else one for one in functions]
    numbered = framed(relation, [*plain, *numbering])
    bounded = framed(numbered, [one for group in chosen for one in group])
    places = [_place(one, extreme) for one, extreme in zip(layered, extremes, strict=True)]
    looked_up = [
        WindowFunction(
            "nth_value",
            (one.arguments[0], Call("coalesce", (place, Literal(1, Type.BIGINT)), Type.BIGINT)),
            one.type,
            one.partition,
            (Order(number),),
            RowFrame(FrameUnit.ROWS, Bound(None), Bound(None, is_following=True)),
        )
        for one, number, place in zip(layered, numbers, places, strict=True)
    ]
    with_values = Window(bounded, tuple(looked_up))
    values = columns_of(with_values)
    looked_up_values = values[len(bounded.types) :]
    result: list[Expression] = [*values[: width + count]]
    for index, place, value in zip(
        [index for index, one in enumerate(functions) if _is_layered(one)], places, looked_up_values, strict=True
    ):
        is_found = Call(resolve_operator("is not null", (Type.BIGINT,)).function, (place,), Type.BOOLEAN)
        result[width + index] = Case(((is_found, value),), Literal(None, value.type), value.type)
    return Project(with_values, tuple(result))


def _chosen(function: WindowFunction, number: Column) -> list[WindowFunction]:
    """Return functions of a frame: the least or greatest number of its rows, or both."""
    least, greatest = (
        WindowFunction(
            resolve_window(name, (Type.BIGINT,), None).function,
            (number,),
            Type.BIGINT,
            function.partition,
            function.order,
            function.frame,
        )
        for name in ("min", "max")
    )
    return {"first_value": [least], "last_value": [greatest]}.get(function.function, [least, greatest])


def _place(function: WindowFunction, extreme: Column) -> Expression:
    """Return the number of the chosen row, NULL for none; `extreme` is the first column of `_chosen`."""
    if function.function != "nth_value":
        return extreme
    number = function.arguments[1]
    assert isinstance(number, Literal)
    if number.value is None:
        return Literal(None, Type.BIGINT)
    types = (Type.BIGINT, Type.BIGINT)
    behind = Literal(int(number.value) - 1, Type.BIGINT)
    place = Call(resolve_operator("+", types).function, (extreme, behind), Type.BIGINT)
    last = replace(extreme, index=extreme.index + 1)
    is_inside = Call(resolve_operator("<=", types).function, (place, last), Type.BOOLEAN)
    return Case(((is_inside, place),), Literal(None, Type.BIGINT), Type.BIGINT)
