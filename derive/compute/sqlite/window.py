"""Window functions as SQL of SQLite, with ties ordered by all columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from derive.algebra.expression import Expression
from derive.algebra.relation import Aggregate, Bound, Frame, FrameUnit, Order, WindowFunction
from derive.errors import SqlError
from derive.functions.registry import aggregate_sql

_OF_PEERS = {"rank", "dense_rank", "percent_rank", "cume_dist"}
"""Functions that depend on the order alone."""
_OF_POSITIONS = {"row_number", "ntile", "lag", "lead"}
"""Functions that depend on the position of a row, whatever the frame is."""
_OF_FRAMES = {"first_value", "last_value", "nth_value"}
"""Functions that return the value of one row of the frame."""

Lower: TypeAlias = Callable[[Expression], str]
"""A function that returns SQL of an expression over the row."""
Ordered: TypeAlias = Callable[[Sequence[Order], bool], str]
"""A function that returns an ORDER BY list, with all columns appended if the flag is set."""


def window_sql(function: WindowFunction, lower: Lower, ordered: Ordered) -> str:
    """Return a window function as SQL.

    Raises:
        SqlError: 0A000, its value would depend on an undefined order.
    """
    name = function.function
    arguments = [lower(argument) for argument in function.arguments]
    call = f"{name}({', '.join(arguments)})"
    if name in _OF_POSITIONS:
        return f"{call} OVER ({_window(function, lower, ordered, ties=True)})"
    if name in _OF_PEERS:
        return f"{call} OVER ({_window(function, lower, ordered, ties=False)})"
    if name in _OF_FRAMES:
        return _chosen_row(function, call, lower, ordered)
    ties = function.frame is not None and function.frame.unit is FrameUnit.ROWS
    over = f"OVER ({_window(function, lower, ordered, ties=ties)}{_frame_sql(function.frame)})"
    aggregate = Aggregate(name, function.arguments, function.type)
    return aggregate_sql(aggregate, arguments, over=over)


def _window(function: WindowFunction, lower: Lower, ordered: Ordered, *, ties: bool) -> str:
    partition = ", ".join(f"({lower(key)})" for key in function.partition)
    order = ordered(function.order, ties)
    clauses = [f"PARTITION BY {partition}" if partition else "", f"ORDER BY {order}" if order else ""]
    return " ".join(filter(None, clauses))


def _chosen_row(function: WindowFunction, call: str, lower: Lower, ordered: Ordered) -> str:
    """Return SQL of the value of one row of the frame.

    SQLite would number peers in any order, so a frame of peers is expressed in rows.
    """
    window = _window(function, lower, ordered, ties=True)
    frame = function.frame
    if frame is not None and (frame.unit is FrameUnit.ROWS or _is_whole(frame)):
        rows = Frame(FrameUnit.ROWS, frame.begin, frame.end)
        return f"{call} OVER ({window}{_frame_sql(rows)})"
    if frame is not None and not (
        frame.begin.offset is None and not frame.begin.is_following and frame.end.offset == 0
    ):
        raise SqlError(
            "0A000",
            f"{function.function} is not supported over this frame of peers",
            hint="Say ROWS in place of RANGE or GROUPS.",
        )
    everything = f"{window} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    value = lower(function.arguments[0])
    if function.function == "first_value":
        return f"first_value({value}) OVER ({everything})"
    until_peers = _window(function, lower, ordered, ties=False)
    seen = f"count(*) OVER ({until_peers})"
    nth = lower(function.arguments[1]) if function.function == "nth_value" else None
    if nth is None:
        peers = [f"({lower(part.expression)})" for part in function.order]
        partition = ", ".join([f"({lower(key)})" for key in function.partition] + peers)
        by = f"PARTITION BY {partition} " if partition else ""
        order = ordered((), True)
        return (
            f"last_value({value}) OVER ({by}ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        )
    return f"CASE WHEN {seen} >= {nth} THEN nth_value({value}, {nth}) OVER ({everything}) END"


def _is_whole(frame: Frame) -> bool:
    """Return whether the frame is the whole partition."""
    return frame.begin.offset is None and frame.end.offset is None


def _frame_sql(frame: Frame | None) -> str:
    if frame is None:
        return ""
    return f" {frame.unit.value.upper()} BETWEEN {_bound_sql(frame.begin)} AND {_bound_sql(frame.end)}"


def _bound_sql(bound: Bound) -> str:
    if bound.offset is None:
        return f"UNBOUNDED {'FOLLOWING' if bound.is_following else 'PRECEDING'}"
    if bound.offset == 0:
        return "CURRENT ROW"
    return f"{abs(bound.offset)} {'FOLLOWING' if bound.offset > 0 else 'PRECEDING'}"
