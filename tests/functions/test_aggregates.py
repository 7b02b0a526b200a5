"""Aggregates give what PostgreSQL gives; states that rows were added to and taken from give what the rows give."""

from __future__ import annotations

import math
import os
from collections import Counter
from decimal import Decimal
from functools import cache

import apsw
import psycopg
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from postgres_oracle import connection, literal_sql
from sql_values import usual_texts

from derive.algebra.expression import Column
from derive.algebra.relation import Aggregate
from derive.algebra.types import CATALOG_TYPES, Datum, Row, Type
from derive.errors import SqlError
from derive.functions.aggregates.accumulator import AggregateFunction
from derive.functions.aggregates.aggregate_functions import ORDERED_SETS
from derive.functions.aggregates.library import AGGREGATES
from derive.functions.aggregates.regression import NAMES as REGRESSIONS
from derive.functions.registry import accumulator_of, aggregate_sql, register, resolve_aggregate
from derive.functions.types.numbers import decimal_of
from derive.functions.types.type_info import datum_of_text

SAME = "FLOW_LAW_EXAMPLES" not in os.environ
"""Whether all runs have the same examples."""
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10")) * 10
NUMERIC_ROUNDED = Decimal("1e-14")
ROUNDED = 1e-9
"""How far PostgreSQL's own sums of doubles may be from the exact ones, relatively to the greatest value."""
OURS = {"any_value"}
"""Aggregates that PostgreSQL leaves open; those of json, which is jsonb here, are left out, too."""
FUNCTIONS = [
    function
    for name, function in AGGREGATES.items()
    if name not in OURS
    and not name.startswith("json_")
    and not {*CATALOG_TYPES, Type.DOUBLE_ARRAY} & {*function.signature.arguments}
]
OF_PAIRS = [function for function in FUNCTIONS if function.signature.symbol in REGRESSIONS]
"""Aggregates whose values at PostgreSQL are inexact, where values differ little."""
COMPARED = [function for function in FUNCTIONS if function not in OF_PAIRS]
FRACTIONS = st.sampled_from([None, "0", "0.25", "0.5", "0.9", "1", "1.5", "-0.5", "NaN"])
"""Of percentiles: one for all rows."""


@cache
def database() -> apsw.Connection:
    opened = apsw.Connection(":memory:")
    register(opened)
    return opened


def fill(rows: list[Row]) -> None:
    width = len(rows[0]) if rows else 3
    database().execute("DROP TABLE IF EXISTS r")
    database().execute(f"CREATE TABLE r ({', '.join(f'c{index}' for index in range(width))})")
    database().executemany(f"INSERT INTO r VALUES ({', '.join('?' * width)})", rows)


@st.composite
def calls(
    draw: st.DrawFn, functions: list[AggregateFunction]
) -> tuple[AggregateFunction, tuple[Type, ...], list[list[str | None]]]:
    function = draw(st.sampled_from(functions))
    any_kind = st.sampled_from([Type.BIGINT, Type.TEXT, Type.DOUBLE, Type.NUMERIC, Type.DATE])
    kinds = tuple(kind or draw(any_kind) for kind in function.signature.arguments)
    values = [st.one_of(st.none(), *[usual_texts(kind)] * 6) for kind in kinds]
    if ORDERED_SETS.get(function.signature.symbol):
        values[-1] = st.just(draw(FRACTIONS))
    rows = draw(st.lists(st.tuples(*values), max_size=6))
    return function, kinds, [list(row) for row in rows]


def data_of(texts: list[list[str | None]], kinds: tuple[Type, ...]) -> list[Row]:
    return [
        tuple(None if text is None else datum_of_text(kind, text) for text, kind in zip(row, kinds, strict=True))
        for row in texts
    ]


def aggregate_of(function: AggregateFunction, kinds: tuple[Type, ...], *, is_distinct: bool = False) -> Aggregate:
    resolution = resolve_aggregate(function.signature.symbol, kinds)
    assert resolution.function == function.signature.name
    arguments = tuple(Column(index, kind) for index, kind in enumerate(kinds))
    is_of_them = resolution.result_type is Type.UNKNOWN  # as the planner has it: the result is one of the values
    return Aggregate(resolution.function, arguments, kinds[0] if is_of_them else resolution.result_type, is_distinct)


def call_sql(
    symbol: str, names: list[str], ties: list[str], fraction: str | None, *, is_distinct: bool, is_ordered: bool
) -> str:
    """A call as PostgreSQL takes it, of rows that are ordered by `ties` where that matters."""
    if symbol in ORDERED_SETS:
        argument = literal_sql(fraction, Type.DOUBLE) if ORDERED_SETS[symbol] else ""
        return f"{symbol}({argument}) WITHIN GROUP (ORDER BY {names[0]})"
    order = f" ORDER BY {', '.join(ties)}" if is_ordered else ""
    arguments = f"{'DISTINCT ' if is_distinct else ''}{', '.join(names)}{order}" if names else "*"
    return f"{symbol}({arguments})"


def of_ours(aggregate: Aggregate, over: str = "") -> list[Datum] | str:
    names = [f"c{column.index}" for column in aggregate.arguments if isinstance(column, Column)]
    try:
        return [row[0] for row in database().execute(f"SELECT {aggregate_sql(aggregate, names, over=over)} FROM r")]
    except SqlError as exc:
        return exc.sqlstate


def same(ours: Datum, theirs: Datum, greatest: float, symbol: str) -> bool:
    if symbol.startswith(("var", "stddev")) and isinstance(ours, bytes) and isinstance(theirs, bytes):
        exact, shown = decimal_of(ours), decimal_of(theirs)  # how many digits are shown of a root is nobody's promise
        return ours == theirs or abs(exact - shown) <= abs(exact) * NUMERIC_ROUNDED
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=ROUNDED, abs_tol=ROUNDED * greatest)
    return ours == theirs


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(calls(COMPARED), st.booleans())
def test_aggregates_equal_postgresql(
    call: tuple[AggregateFunction, tuple[Type, ...], list[list[str | None]]], is_distinct: bool
) -> None:
    function, kinds, texts = call
    symbol = function.signature.symbol
    is_comparable = not {Type.INTERVAL, Type.JSONB} & set(kinds)  # a month is 30 days to PostgreSQL; `ties` are texts
    is_distinct = is_distinct and bool(kinds) and symbol not in ORDERED_SETS and is_comparable
    rows = data_of(texts, kinds)
    numbers = [abs(datum) for row in rows for datum in row if isinstance(datum, float)]
    # PostgreSQL's own arithmetic overflows where the exact value need not.
    assume(max(numbers, default=0) < 1e100)
    # And its squares of tiny numbers have few digits, or none.
    assume(min((number for number in numbers if number), default=1) > 1e-100)
    names = [f"c{index}" for index in range(len(kinds))]
    fraction = texts[0][-1] if texts and kinds else None
    # Without an ORDER BY of its own, a call has values of jsonb in the order of their texts.
    ties = [f'{one}::text COLLATE "C"' if kind is Type.JSONB else one for one, kind in zip(names, kinds, strict=True)]
    called = call_sql(symbol, names, ties, fraction, is_distinct=is_distinct, is_ordered=function.is_ordered)
    values = [
        f"({', '.join(literal_sql(text, kind) for text, kind in zip(row, kinds, strict=True)) or 'NULL'})"
        for row in texts
    ]
    values = values or [f"({', '.join(literal_sql(None, kind) for kind in kinds) or 'NULL'})"]
    where = "" if texts else " WHERE false"
    sql = f"SELECT ({called})::text FROM (VALUES {', '.join(values)}) AS r({', '.join(names) or 'c0'}){where}"
    aggregate = aggregate_of(function, kinds, is_distinct=is_distinct)
    theirs: Datum
    try:
        row = connection().execute(sql).fetchone()
        theirs = None if row is None or row[0] is None else datum_of_text(aggregate.type, row[0])
    except psycopg.Error as exc:
        theirs = f"{exc.sqlstate}"
    except SqlError:
        assume(False)
    fill(rows if kinds else [(None,)] * len(rows))
    ours = of_ours(aggregate)
    note(f"{sql}\nours: {ours}\nPostgreSQL: {theirs!r}")
    assert same(ours if isinstance(ours, str) else ours[0], theirs, max(numbers, default=0) ** 2, symbol)


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(calls(FUNCTIONS), st.data())
def test_accumulator_states_equal_aggregates(
    call: tuple[AggregateFunction, tuple[Type, ...], list[list[str | None]]], data: st.DataObject
) -> None:
    """Rows come and go in several ticks; the state gives what the rows that are left give at once."""
    function, kinds, texts = call
    aggregate = aggregate_of(function, kinds)
    accumulator = accumulator_of(aggregate)
    assume(accumulator is not None and texts)
    assert accumulator is not None
    rows = data_of(texts, kinds)
    columns = [f"s{index}" for index in range(len(accumulator.empty))]
    own, others = [f":{name}" for name in columns], [f":n{name}" for name in columns]
    merged = f"SELECT {', '.join(accumulator.merged(own, others))}"
    names = [f"c{index}" for index in range(len(kinds))]
    delta = f"SELECT {', '.join(accumulator.delta(names, f'c{len(kinds)}'))} FROM r"
    state = database().execute(f"SELECT {', '.join(accumulator.empty)}").fetchall()[0]
    contents: Counter[Row] = Counter()
    for picked in data.draw(st.lists(st.lists(st.sampled_from(rows), min_size=1, max_size=5), max_size=4)):
        changes: list[Row] = []
        for row in picked:
            weight = data.draw(st.sampled_from([1, 2, -1])) if contents[row] else 1
            contents[row] += weight
            changes.append((*row, weight))
        fill(changes)
        added = database().execute(delta).fetchall()[0]
        both = zip((*columns, *(f"n{name}" for name in columns)), (*state, *added), strict=True)
        state = database().execute(merged, dict(both)).fetchall()[0]
    result = f"SELECT {accumulator.result(own)}"
    maintained = database().execute(result, dict(zip(columns, state, strict=True))).get
    left = list(contents.elements())
    fill(left if kinds else [(None,)] * len(left))
    assert [maintained] == of_ours(aggregate)


WHOLE = st.sampled_from([None, *map(str, range(-3, 4)), "NaN", "Infinity", "-Infinity"])


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(st.sampled_from(OF_PAIRS), st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=6))
def test_aggregates_of_pairs_equal_postgresql(
    function: AggregateFunction, texts: list[tuple[str | None, str | None]]
) -> None:
    """Pairs of small whole numbers have sums that PostgreSQL computes without error, too."""
    kinds = (Type.DOUBLE, Type.DOUBLE)
    values = ", ".join(f"({literal_sql(y, kinds[0])}, {literal_sql(x, kinds[1])})" for y, x in texts)
    symbol = function.signature.symbol
    row = connection().execute(f"SELECT {symbol}(y, x)::text FROM (VALUES {values}) AS r(y, x)").fetchone()
    assert row is not None
    theirs = None if row[0] is None else datum_of_text(function.signature.result, row[0])
    fill(data_of([list(pair) for pair in texts], kinds))
    ours = of_ours(aggregate_of(function, kinds))
    note(f"{symbol} of {values}\nours: {ours}\nPostgreSQL: {theirs!r}")
    assert same(ours[0], theirs, 10, symbol)


def test_sliding_window_removes_rows_from_the_sum() -> None:
    """Rows that leave a frame are taken from the aggregate."""
    fill([(index, number) for index, number in enumerate([0.1, 1e300, 0.2, -1e300, 0.3])])
    over = "OVER (ORDER BY c0 ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
    aggregate = Aggregate("sum_double", (Column(1, Type.DOUBLE),), Type.DOUBLE)

    assert of_ours(aggregate, over) == [0.1, 1e300, 1e300, -1e300, -1e300]


@pytest.mark.parametrize(
    ("name", "kind"), [("min", Type.BOOLEAN), ("max", Type.JSONB), ("sum", Type.TEXT), ("nothing", Type.TEXT)]
)
def test_unknown_aggregates_are_refused(name: str, kind: Type) -> None:
    with pytest.raises(SqlError) as raised:
        resolve_aggregate(name, (kind,), 3)
    assert (raised.value.sqlstate, raised.value.offset) == ("42883", 3)
