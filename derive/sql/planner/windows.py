"""Planner of windows: partition, order and frame."""

from __future__ import annotations

from typing import TypeAlias

from derive.algebra.expression import Expression
from derive.algebra.relation import Bound, Frame, FrameUnit, Order
from derive.errors import SqlError
from derive.sql.parser.ast import (
    FrameBound,
    FunctionCall,
    NumberLiteral,
    WindowDefinition,
    WindowFrame,
    WindowReference,
)
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.output import orders_of

PlannedWindow: TypeAlias = tuple[tuple[Expression, ...], tuple[Order, ...], Frame | None]


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

    @staticmethod
    def _frame(frame: WindowFrame, order: tuple[Order, ...]) -> Frame:
        if frame.exclusion is not None:
            raise SqlError("0A000", "EXCLUDE is not supported", offset=frame.offset)
        unit = FrameUnit(frame.unit)
        has_distance = frame.begin.distance is not None or frame.end.distance is not None
        if unit is FrameUnit.RANGE and has_distance and len(order) != 1:
            message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column"
            raise SqlError("42P20", message, offset=frame.offset)
        if unit is FrameUnit.GROUPS and not order:
            raise SqlError("42P20", "GROUPS mode requires an ORDER BY clause", offset=frame.offset)
        return Frame(unit, _bound(frame.begin), _bound(frame.end))


def _bound(bound: FrameBound) -> Bound:
    if bound.kind.startswith("unbounded"):
        return Bound(None, is_following=bound.kind.endswith("following"))
    if bound.distance is None:
        return Bound(0)
    if not isinstance(bound.distance, NumberLiteral) or not bound.distance.text.lstrip("-").isdigit():
        raise SqlError("0A000", "bounds of frames must be whole numbers", offset=bound.offset)
    distance = int(bound.distance.text)
    if distance < 0:
        where = "starting" if bound.kind == "preceding" else "ending"
        raise SqlError("22013", f"frame {where} offset must not be negative", offset=bound.offset)
    return Bound(-distance if bound.kind == "preceding" else distance)
