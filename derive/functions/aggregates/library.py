"""All aggregates and window functions, by name: the resolution of calls, and their SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import apsw

from derive.algebra.relation import Aggregate
from derive.algebra.types import ARRAYS, Type
from derive.functions.aggregates import aggregate_functions, regression
from derive.functions.aggregates.accumulator import (
    NAMES,
    Accumulator,
    AggregateForm,
    AggregateFunction,
    counter,
    of_counts,
    of_halves,
    of_squares,
    of_sums,
    of_truths,
    python_form,
)
from derive.functions.function import Function, registered_name, word_of
from derive.functions.resolve import Resolution, ambiguous_function, choose, unknown_function
from derive.functions.scalar.json import json_form, key_form

AGGREGATES: dict[str, AggregateFunction] = {}
UNCHANGED_BY_DISTINCT = {"min", "max", "any_value", "bool_and", "bool_or", "every"}


_NUMERIC_SPECIALS = (
    aggregate_functions.NUMERIC_NAN,
    aggregate_functions.NUMERIC_INFINITY,
    aggregate_functions.NUMERIC_MINUS_INFINITY,
)
_DOUBLE_SPECIALS = ("'NaN'", "9e999", "-9e999")


def _add(
    symbol: str,
    arguments: tuple[Type | None, ...],
    result: Type,
    form: AggregateForm,
    accumulator: Accumulator | None = None,
    *,
    name: str | None = None,
    is_ordered: bool = False,
    conversions: tuple[Callable[[str, Type], str], ...] = (),
) -> None:
    name = name or "_".join((symbol, *map(word_of, arguments)))
    signature = Function(name, symbol, arguments, result)
    AGGREGATES[name] = AggregateFunction(signature, form, accumulator, is_ordered, conversions)


def _add_counts() -> None:
    _add("count", (), Type.BIGINT, lambda _, suffix: f"count(*){suffix}", of_counts(lambda _, weight: f"sum({weight})"))
    _add(
        "count",
        (None,),
        Type.BIGINT,
        lambda arguments, suffix: f"count({arguments[0]}){suffix}",
        of_counts(lambda arguments, weight: counter(arguments[0], weight)),
    )


def _add_extremes() -> None:
    for name, native in (("min", "min"), ("max", "max"), ("any_value", "min")):
        _add(name, (None,), Type.UNKNOWN, _native(native), name=name)
    for name, native, result in (
        ("bool_and", "min", "iif({1} > 0, 0, iif({0} > 0, 1, NULL))"),
        ("every", "min", "iif({1} > 0, 0, iif({0} > 0, 1, NULL))"),
        ("bool_or", "max", "iif({0} > 0, 1, iif({1} > 0, 0, NULL))"),
    ):
        _add(name, (Type.BOOLEAN,), Type.BOOLEAN, _native(native), of_truths(result), name=name)


def _native(name: str) -> AggregateForm:
    return lambda arguments, suffix: f"{name}({arguments[0]}){suffix}"


def _halves_form(function: str, *, counts: bool) -> AggregateForm:
    def form(arguments: Sequence[str], suffix: str) -> str:
        argument = arguments[0]
        halves = (f"sum({argument} >> 32){suffix}", f"sum({argument} & 4294967295){suffix}")
        return f"{function}({', '.join((f'count({argument}){suffix}', *halves) if counts else halves)})"

    return form


def _add_sums() -> None:
    sum_of_integers = of_halves("iif({0} = 0, NULL, ({1} << 32) + {2})")
    for kind in (Type.SMALLINT, Type.INTEGER):
        _add("sum", (kind,), Type.BIGINT, _native("sum"), sum_of_integers)
    sum_of_bigint = of_halves("iif({0} = 0, NULL, flow_sum_of_halves({1}, {2}))")
    _add("sum", (Type.BIGINT,), Type.NUMERIC, _halves_form("flow_sum_of_halves", counts=False), sum_of_bigint)
    average = of_halves("flow_average_of_halves({0}, {1}, {2})")
    for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
        _add("avg", (kind,), Type.NUMERIC, _halves_form("flow_average_of_halves", counts=True), average)
    for symbol, result in (("sum", "sum"), ("avg", "average")):
        _add(
            symbol,
            (Type.NUMERIC,),
            Type.NUMERIC,
            python_form(f"{symbol}_numeric"),
            of_sums("flow_numeric_units", "flow_added_numeric", f"flow_numeric_{result}", "x'02'", _NUMERIC_SPECIALS),
        )
        _add(
            symbol,
            (Type.DOUBLE,),
            Type.DOUBLE,
            python_form(f"{symbol}_double"),
            of_sums("flow_exact", "flow_added_units", f"flow_exact_{result}", "x''", _DOUBLE_SPECIALS),
        )


def _add_sum_of_reals() -> None:
    """Add the sum of `real`, whose other aggregates are those of double precision."""
    state = of_sums("flow_exact", "flow_added_units", "flow_real_sum", "x''", _DOUBLE_SPECIALS)
    _add("sum", (Type.REAL,), Type.REAL, python_form("sum_real"), state)


def _add_deviations() -> None:
    for name, (is_root, is_sample) in NAMES.items():
        options = f"{int(is_root)}, {int(is_sample)}"
        for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.NUMERIC):
            state = of_squares(
                ("flow_numeric_units", "flow_numeric_squares"),
                "flow_added_numeric",
                f"flow_numeric_deviation({options}",
                "x'02'",
                _NUMERIC_SPECIALS,
            )
            _add(name, (kind,), Type.NUMERIC, python_form(f"{name}_{word_of(kind)}"), state)
        state = of_squares(
            ("flow_exact", "flow_exact_squares"),
            "flow_added_units",
            f"flow_exact_deviation({options}",
            "x''",
            _DOUBLE_SPECIALS,
        )
        _add(name, (Type.DOUBLE,), Type.DOUBLE, python_form(f"{name}_double"), state)


def _add_lists() -> None:
    for kind in (Type.TEXT, Type.BYTEA):
        name = f"string_agg_{word_of(kind)}"
        _add("string_agg", (kind, kind), kind, python_form(name), name=name, is_ordered=True)
    for kind in ARRAYS:
        assert kind.element is not None
        for argument in (kind.element, kind):
            name = f"array_agg_{word_of(argument)}"
            _add("array_agg", (argument,), kind, python_form(name), name=name, is_ordered=True)
    for prefix in ("jsonb", "json"):
        for name in (f"{prefix}_agg", f"{prefix}_agg_strict"):
            _add(name, (None,), Type.JSONB, python_form(name), name=name, is_ordered=True, conversions=(json_form,))
        for suffix in ("", "_strict", "_unique", "_unique_strict"):
            name = f"{prefix}_object_agg{suffix}"
            both = (key_form, json_form)
            _add(name, (None, None), Type.JSONB, python_form(name), name=name, is_ordered=True, conversions=both)
    for name in ("bit_and", "bit_or", "bit_xor"):
        for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
            _add(name, (kind,), kind, python_form(f"{name}_{word_of(kind)}"))
    for name in ("sum", "avg"):
        _add(name, (Type.INTERVAL,), Type.INTERVAL, python_form(f"{name}_interval"))


def _add_ordered_sets() -> None:
    for name, arguments, result in (
        ("percentile_cont", (Type.DOUBLE, Type.DOUBLE), Type.DOUBLE),
        ("percentile_disc", (None, Type.DOUBLE), Type.UNKNOWN),
        ("mode", (None,), Type.UNKNOWN),
    ):
        _add(name, arguments, result, python_form(name), name=name, is_ordered=True)
    for name, value, fraction, result in (
        ("percentile_cont_array", Type.DOUBLE, Type.DOUBLE_ARRAY, Type.DOUBLE_ARRAY),
        ("percentile_cont_interval", Type.INTERVAL, Type.DOUBLE, Type.INTERVAL),
        ("percentile_cont_interval_array", Type.INTERVAL, Type.DOUBLE_ARRAY, Type.INTERVAL_ARRAY),
    ):
        _add("percentile_cont", (value, fraction), result, python_form(name), name=name, is_ordered=True)
    for kind in ARRAYS:
        assert kind.element is not None
        name = f"percentile_disc_{word_of(kind.element)}"
        both = (kind.element, Type.DOUBLE_ARRAY)
        _add("percentile_disc", both, kind, python_form(name), name=name, is_ordered=True)


def _add_regressions() -> None:
    for name in regression.NAMES:
        result = Type.BIGINT if name == "regr_count" else Type.DOUBLE
        form = python_form(f"{name}_double_double")
        _add(name, (Type.DOUBLE, Type.DOUBLE), result, form, regression.accumulator_of(name))


_add_ordered_sets()
_add_regressions()
_add_counts()
_add_extremes()
_add_sums()
_add_sum_of_reals()
_add_deviations()
_add_lists()


def resolve_aggregate(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Return the aggregate of a call; `count(*)` has no arguments.

    Raises:
        SqlError: 42883, no aggregate matches; 42725, the call is ambiguous.
    """
    functions = [function.signature for function in AGGREGATES.values() if function.signature.symbol == name]
    chosen = choose(functions, types)
    if len(chosen) == 1:
        resolution = chosen[0]
        if resolution.function in {"min", "max", "any_value"}:
            if name != "any_value" and resolution.argument_types[0] in _UNORDERED:
                raise unknown_function(name, types, {name: ()}, offset)
            kind = resolution.argument_types[0]
            result = Type.INET if kind is Type.CIDR and name != "any_value" else kind
            return Resolution(resolution.function, resolution.argument_types, result)
        return resolution
    if chosen:
        raise ambiguous_function(name, types, offset)
    raise unknown_function(name, types, {function.signature.symbol: () for function in AGGREGATES.values()}, offset)


def is_aggregate(name: str) -> bool:
    """Return whether an aggregate has this name in SQL."""
    return any(function.signature.symbol == name for function in AGGREGATES.values())


def is_window_function(name: str) -> bool:
    """Return whether a function that needs a window has this name in SQL."""
    return name in _WINDOW_FUNCTIONS


_UNORDERED = {Type.BOOLEAN, Type.JSONB}
"""Types without a minimum and a maximum."""
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
"""Types of arguments, and of the result; None for any type, and for the type of the first argument."""


def window_signatures() -> Mapping[str, tuple[tuple[Type | None, ...], Type | None]]:
    """Return the types of arguments and of the result of each window function; None is any type, or the first one."""
    shifted = dict.fromkeys(("lag", "lead"), ((None, Type.INTEGER, None), None))
    return {**_WINDOW_FUNCTIONS, **shifted}


def resolve_window(name: str, types: Sequence[Type], offset: int | None = None) -> Resolution:
    """Return the window function, or aggregate, of a call with OVER.

    Raises:
        SqlError: there is none (42883).
    """
    if name in {"lag", "lead"} and 1 <= len(types) <= 3:
        first = Type.TEXT if types[0] is Type.UNKNOWN else types[0]
        arguments = (first, Type.INTEGER, first)[: len(types)]
        signature = Function(name, name, arguments, first)
        if choose([signature], types):
            return Resolution(name, arguments, first)
    if name in _WINDOW_FUNCTIONS:
        expected, result = _WINDOW_FUNCTIONS[name]
        chosen = choose([Function(name, name, expected, result or Type.UNKNOWN)], types)
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
    """Return SQL of an aggregate.

    Args:
        aggregate: the aggregate.
        arguments: SQL of its arguments.
        condition: SQL of its condition.
        order: SQL of its sort keys, each with its direction.
        over: `OVER (…)` for a window.
    """
    function = AGGREGATES[aggregate.function]
    suffix = (f" FILTER (WHERE {condition})" if condition else "") + (f" {over}" if over else "")
    if not aggregate.is_distinct and not function.is_ordered:
        return function.form(arguments, suffix)
    name = registered_name(aggregate.function)
    if aggregate.is_distinct and aggregate.function in UNCHANGED_BY_DISTINCT:
        return function.form(arguments, suffix)
    if aggregate.is_distinct and aggregate.function == "count_any":
        return f"count(DISTINCT {arguments[0]}){suffix}"
    ties = (f"{argument} NULLS LAST" for argument in arguments)
    ordered = "" if over else f" ORDER BY {', '.join((*order, *ties))}"
    if function.conversions:
        converted = zip(function.conversions, arguments, aggregate.arguments, strict=True)
        arguments = [convert(form, argument.type) for convert, form, argument in converted]
    return f"{name}{'_distinct' if aggregate.is_distinct else ''}({', '.join(arguments)}{ordered}){suffix}"


def accumulator_of(aggregate: Aggregate) -> Accumulator | None:
    """Return the incremental state of an aggregate; None if it has none, or is distinct."""
    if aggregate.is_distinct and aggregate.function not in UNCHANGED_BY_DISTINCT:
        return None
    return AGGREGATES[aggregate.function].accumulator


def register_aggregates(connection: apsw.Connection) -> None:
    """Register the aggregates in Python, and the functions of states."""
    aggregate_functions.register(connection)
