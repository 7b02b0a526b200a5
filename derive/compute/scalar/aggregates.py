"""Aggregates: which there are, their SQL for rows that are at hand, and their state for rows that come and go.

A state is a row of columns. What rows add to it is an aggregate of each column over them and their weights, negative
for rows that go; states are added column by column. `min`, `max` and what else depends on more than sums has no such
state, and is worked out from the multiset of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import apsw

from derive.compute.algebra.relation import Aggregate
from derive.compute.algebra.types import Type
from derive.compute.scalar import folds
from derive.compute.scalar.function import Function, registered_name, word_of
from derive.compute.scalar.resolve import Resolution, ambiguous_function, choose, unknown_function

AggregateForm: TypeAlias = Callable[[Sequence[str], str], str]
"""SQL over rows, given that of the arguments, and what follows every aggregate: FILTER, OVER."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """State of an aggregate, as columns.

    Attributes:
        empty: SQL of the columns for no rows.
        delta: from SQL of the arguments and of a row's weight, an aggregate for each column: what rows add to it.
        merged: from SQL of two states, one of their sum: a column for each.
        result: from SQL of a state, that of the aggregate's value.
    """

    empty: tuple[str, ...]
    delta: Callable[[Sequence[str], str], tuple[str, ...]]
    merged: Callable[[Sequence[str], Sequence[str]], tuple[str, ...]]
    result: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate of arguments of certain types.

    Attributes:
        signature: its name, symbol and types.
        form: its SQL.
        distinct: its SQL if arguments count once; None if that changes nothing.
        accumulator: None if it has no state that rows can be taken from.
        is_ordered: whether its value depends on the order of rows.
    """

    signature: Function
    form: AggregateForm
    accumulator: Accumulator | None = None
    is_ordered: bool = False


def resolve_aggregate(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """The aggregate that a call means; none of its arguments for `count(*)`.

    Raises:
        SqlError: 42883, there is none; 42725, several fit.
    """
    functions = [function.signature for function in _AGGREGATES.values() if function.signature.symbol == name]
    chosen = choose(functions, types)
    if len(chosen) == 1:
        resolution = chosen[0]
        if resolution.function in {"min", "max"}:
            return Resolution(resolution.function, resolution.argument_types, resolution.argument_types[0])
        return resolution
    if chosen:
        raise ambiguous_function(name, types, offset)
    raise unknown_function(name, types, {function.signature.symbol: () for function in _AGGREGATES.values()}, offset)


def is_aggregate(name: str) -> bool:
    """Whether SQL calls an aggregate so."""
    return any(function.signature.symbol == name for function in _AGGREGATES.values())


def is_window_function(name: str) -> bool:
    """Whether SQL calls a function so that needs a window."""
    return name in _WINDOW_FUNCTIONS


_B, _N, _D = Type.BIGINT, Type.INTEGER, Type.DOUBLE
_WINDOW_FUNCTIONS: dict[str, tuple[tuple[Type | None, ...], Type | None]] = {
    "row_number": ((), _B),
    "rank": ((), _B),
    "dense_rank": ((), _B),
    "percent_rank": ((), _D),
    "cume_dist": ((), _D),
    "ntile": ((_N,), _N),
    "first_value": ((None,), None),
    "last_value": ((None,), None),
    "nth_value": ((None, _N), None),
}
"""Types of arguments, and of the result; None for any type, and for that of the first argument."""


def resolve_window(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """The window function, or aggregate, that a call with OVER means.

    Raises:
        SqlError: 42883, there is none.
    """
    if name in {"lag", "lead"} and 1 <= len(types) <= 3:
        first = Type.TEXT if types[0] is Type.UNKNOWN else types[0]
        arguments = (first, Type.INTEGER, first)[: len(types)]
        signature = Function(name, name, arguments, first)
        if choose([signature], types):
            return Resolution(name, arguments, first)
    if name in _WINDOW_FUNCTIONS:
        wanted, result = _WINDOW_FUNCTIONS[name]
        chosen = choose([Function(name, name, wanted, result or Type.UNKNOWN)], types)
        if chosen:
            return Resolution(name, chosen[0].argument_types, result or chosen[0].argument_types[0])
        raise unknown_function(name, types, _WINDOW_FUNCTIONS, offset)
    if is_aggregate(name):
        return resolve_aggregate(name, types, offset)
    raise unknown_function(name, types, dict.fromkeys((*_WINDOW_FUNCTIONS, "lag", "lead")), offset)


def aggregate_sql(
    aggregate: Aggregate,
    arguments: Sequence[str],
    condition: str | None = None,
    order: Sequence[str] = (),
    over: str = "",
) -> str:
    """SQL of an aggregate of rows.

    Args:
        aggregate: which.
        arguments: SQL of its arguments.
        condition: SQL of its condition.
        order: SQL of what it is ordered by, each with its direction.
        over: for a window, `OVER (…)`.
    """
    function = _AGGREGATES[aggregate.function]
    suffix = (f" FILTER (WHERE {condition})" if condition else "") + (f" {over}" if over else "")
    if not aggregate.is_distinct and not function.is_ordered:
        return function.form(arguments, suffix)
    name = registered_name(aggregate.function)
    if aggregate.is_distinct and aggregate.function in _UNCHANGED_BY_DISTINCT:
        return function.form(arguments, suffix)
    if aggregate.is_distinct and aggregate.function == "count_any":
        return f"count(DISTINCT {arguments[0]}){suffix}"
    ordered = "" if over else f" ORDER BY {', '.join((*order, *arguments))}"
    return f"{name}{'_distinct' if aggregate.is_distinct else ''}({', '.join(arguments)}{ordered}){suffix}"


def accumulator_of(aggregate: Aggregate) -> Accumulator | None:
    """The state of an aggregate that rows are added to and taken from; None if it has none, or counts distinct ones."""
    if aggregate.is_distinct and aggregate.function not in _UNCHANGED_BY_DISTINCT:
        return None
    return _AGGREGATES[aggregate.function].accumulator


def register_aggregates(connection: apsw.Connection) -> None:
    """Have a connection know the aggregates in Python, and what states need."""
    folds.register(connection)


_AGGREGATES: dict[str, AggregateFunction] = {}
_UNCHANGED_BY_DISTINCT = {"min", "max", "bool_and", "bool_or", "every"}


def _add(
    symbol: str,
    arguments: tuple[Type | None, ...],
    result: Type,
    form: AggregateForm,
    accumulator: Accumulator | None = None,
    *,
    name: str | None = None,
    is_ordered: bool = False,
) -> None:
    name = name or "_".join((symbol, *map(word_of, arguments)))
    signature = Function(name, symbol, arguments, result)
    _AGGREGATES[name] = AggregateFunction(signature, form, accumulator, is_ordered)


def _added(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{one} + {other}" for one, other in zip(left, right, strict=True))


def _python_form(name: str) -> AggregateForm:
    return lambda arguments, suffix: f"{registered_name(name)}({', '.join(arguments)}){suffix}"


def _counter(argument: str, weight: str) -> str:
    """How many values other than NULL rows add."""
    return f"sum(iif({argument} IS NULL, 0, {weight}))"


def _weighted(argument: str, condition: str, weight: str) -> str:
    return f"sum(iif({argument} {condition}, {weight}, 0))"


def _of_halves(result: str) -> Accumulator:
    """For integers: how many, and the sums of their upper and lower 32 bits, none of which overflows."""
    return Accumulator(
        ("0", "0", "0"),
        lambda arguments, weight: (
            _counter(arguments[0], weight),
            f"coalesce(sum(({arguments[0]} >> 32) * {weight}), 0)",
            f"coalesce(sum(({arguments[0]} & 4294967295) * {weight}), 0)",
        ),
        _added,
        lambda state: result.format(*state),
    )


def _of_sums(fold: str, add: str, result: str, empty: str, specials: tuple[str, str, str]) -> Accumulator:
    """For doubles and numeric: how many, the sum of those that are finite, and how many there are of the others."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        counts = (_weighted(arguments[0], f"= {special}", weight) for special in specials)
        return (_counter(arguments[0], weight), f"{fold}({arguments[0]}, {weight})", *counts)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = _added(left, right)
        return (counts[0], f"{add}({left[1]}, {right[1]})", *counts[2:])

    return Accumulator(("0", empty, "0", "0", "0"), delta, merged, lambda state: f"{result}({', '.join(state)})")


def _counts(form: Callable[[Sequence[str], str], str]) -> Accumulator:
    return Accumulator(("0",), lambda arguments, weight: (form(arguments, weight),), _added, lambda state: state[0])


def _truths(result: str) -> Accumulator:
    """For booleans: how many are true, and how many are false."""
    return Accumulator(
        ("0", "0"),
        lambda arguments, weight: (
            _weighted(arguments[0], "IS TRUE", weight),
            _weighted(arguments[0], "IS FALSE", weight),
        ),
        _added,
        lambda state: result.format(*state),
    )


def _add_counts() -> None:
    _add("count", (), Type.BIGINT, lambda _, suffix: f"count(*){suffix}", _counts(lambda _, weight: f"sum({weight})"))
    _add(
        "count",
        (None,),
        Type.BIGINT,
        lambda arguments, suffix: f"count({arguments[0]}){suffix}",
        _counts(lambda arguments, weight: _counter(arguments[0], weight)),
    )


def _add_extremes() -> None:
    for name in ("min", "max"):
        _add(name, (None,), Type.UNKNOWN, _native(name), name=name)
    for name, native, result in (
        ("bool_and", "min", "iif({1} > 0, 0, iif({0} > 0, 1, NULL))"),
        ("every", "min", "iif({1} > 0, 0, iif({0} > 0, 1, NULL))"),
        ("bool_or", "max", "iif({0} > 0, 1, iif({1} > 0, 0, NULL))"),
    ):
        _add(name, (Type.BOOLEAN,), Type.BOOLEAN, _native(native), _truths(result), name=name)


def _native(name: str) -> AggregateForm:
    return lambda arguments, suffix: f"{name}({arguments[0]}){suffix}"


def _halves_form(function: str, *, counts: bool) -> AggregateForm:
    def form(arguments: Sequence[str], suffix: str) -> str:
        argument = arguments[0]
        halves = (f"sum({argument} >> 32){suffix}", f"sum({argument} & 4294967295){suffix}")
        return f"{function}({', '.join((f'count({argument}){suffix}', *halves) if counts else halves)})"

    return form


def _add_sums() -> None:
    sum_of_integers = _of_halves("iif({0} = 0, NULL, ({1} << 32) + {2})")
    for kind in (Type.SMALLINT, Type.INTEGER):
        _add("sum", (kind,), Type.BIGINT, _native("sum"), sum_of_integers)
    sum_of_bigint = _of_halves("iif({0} = 0, NULL, flow_sum_of_halves({1}, {2}))")
    _add("sum", (Type.BIGINT,), Type.NUMERIC, _halves_form("flow_sum_of_halves", counts=False), sum_of_bigint)
    average = _of_halves("flow_average_of_halves({0}, {1}, {2})")
    for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
        _add("avg", (kind,), Type.NUMERIC, _halves_form("flow_average_of_halves", counts=True), average)
    numeric = (folds.NUMERIC_NAN, folds.NUMERIC_INFINITY, folds.NUMERIC_MINUS_INFINITY)
    double = ("'NaN'", "9e999", "-9e999")
    for symbol, result in (("sum", "sum"), ("avg", "average")):
        _add(
            symbol,
            (Type.NUMERIC,),
            Type.NUMERIC,
            _python_form(f"{symbol}_numeric"),
            _of_sums("flow_numeric_units", "flow_added_numeric", f"flow_numeric_{result}", "x'02'", numeric),
        )
        _add(
            symbol,
            (Type.DOUBLE,),
            Type.DOUBLE,
            _python_form(f"{symbol}_double"),
            _of_sums("flow_exact", "flow_added_units", f"flow_exact_{result}", "x''", double),
        )


def _add_lists() -> None:
    for kind in (Type.TEXT, Type.BYTEA):
        name = f"string_agg_{word_of(kind)}"
        _add("string_agg", (kind, kind), kind, _python_form(name), name=name, is_ordered=True)


_add_counts()
_add_extremes()
_add_sums()
_add_lists()
