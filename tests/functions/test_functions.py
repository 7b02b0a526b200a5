"""Every function gives what PostgreSQL gives: the same value, type and SQLSTATE."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from postgres_oracle import Outcome, call, call_sql, cast_target, literal, literal_sql, of_ours, of_postgres
from sql_values import texts_of

from derive.algebra.expression import Column
from derive.algebra.types import CATALOG_TYPES, Type
from derive.functions.function import Function
from derive.functions.registry import functions_by_name
from derive.functions.scalar import catalog, validity
from derive.functions.scalar.json import IS_JSON
from derive.functions.scalar.json_paths import PATH_SYMBOLS

SAME = "FLOW_LAW_EXAMPLES" not in os.environ
"""Whether all runs have the same examples."""
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10")) * 20
EACH = int(os.environ.get("FLOW_EVERY_FUNCTION", "0"))
"""Examples of every function, which take minutes."""
OURS = {"to_number_text_text"}
OURS |= {f"to_char_{kind}_text" for kind in ("integer", "bigint", "numeric", "real", "double")}
"""Functions whose templates make no sense by chance."""
OURS |= {function.name for function in catalog.FUNCTIONS}  # tests/sql/pg_catalog/test_one_engine.py has them
OURS |= {function.name for function in validity.FUNCTIONS}  # tests/sql/test_temporal_views.py has them
OURS |= {"current_schema", "current_catalog", "current_database"}  # of type name at PostgreSQL, and of its database
SUBNORMAL = 1e-320
"""How far results with few significant bits may be from PostgreSQL's."""
ROUNDED = 1e-13
"""How far results may be from PostgreSQL's, relatively, where a library of mathematics decides."""


def _comparable(function: Function) -> bool:
    kinds = {*function.arguments, function.result}
    if function.symbol.endswith(("(n)", "(p)", "(p,s)", "()")):
        return False  # what casts to types with modifiers are
    if (function.symbol.endswith("[]") and function.symbol != "[]") or function.symbol == "[:][:]":
        return False  # what functions in FROM, and subscripts in several dimensions, are
    if function.symbol.startswith(("elements_of_", "json_", "to_json_")) or function.symbol in {
        "to_json",
        "array_to_json",
    }:
        return False  # they are jsonb's here
    if function.symbol.endswith("_in_zone") or function.symbol == "array_fill":
        return False  # what casts with the time zone of the session are; of several dimensions elsewhere
    if function.symbol in {*PATH_SYMBOLS, IS_JSON}:
        return False  # tests/sql/test_functions_postgres.py has them, because their texts have a syntax
    return (
        kinds.isdisjoint({Type.MZ_TIMESTAMP, *CATALOG_TYPES}) and function.name not in OURS and not function.is_volatile
    )


FUNCTIONS = [function for function in functions_by_name().values() if _comparable(function)]


def same(ours: Outcome, theirs: Outcome) -> bool:
    if ours.sqlstate or theirs.sqlstate:
        return ours.sqlstate == theirs.sqlstate
    if isinstance(ours.datum, float) and isinstance(theirs.datum, float):
        is_close = math.isclose(ours.datum, theirs.datum, rel_tol=ROUNDED, abs_tol=SUBNORMAL)
        return ours.type == theirs.type and is_close
    return ours == theirs


def check(function: Function, texts: list[tuple[str | None, Type]]) -> None:
    arguments = [literal(text, kind) for text, kind in texts]
    written = [literal_sql(text, kind) for text, kind in texts]
    target = cast_target(function)
    sql = f"CAST({written[0]} AS {target.value})" if target else call_sql(function.symbol, written)
    ours, theirs = of_ours(call(function, arguments)), of_postgres(sql)
    columns = [Column(index, kind) for index, (_, kind) in enumerate(texts)]
    of_columns = of_ours(call(function, columns), tuple(argument.value for argument in arguments))
    assert same(of_columns, ours), f"{function.name}: of columns {of_columns}, of literals {ours}"
    note(f"{function.name}: {sql}\nours: {ours}\nPostgreSQL: {theirs}")
    assert same(ours, theirs), f"{function.name}: {sql}\nours: {ours}\nPostgreSQL: {theirs}"


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(st.data())
def test_functions_equal_postgresql(data: st.DataObject) -> None:
    function = data.draw(st.sampled_from(FUNCTIONS))
    check(function, data.draw(arguments_of(function)))


@pytest.mark.parametrize("function", FUNCTIONS if EACH else FUNCTIONS[:1], ids=lambda function: function.name)
def test_functions_are_all_tested(function: Function) -> None:
    @settings(max_examples=EACH or 1, database=None)
    @given(arguments_of(function))
    def holds(texts: list[tuple[str | None, Type]]) -> None:
        check(function, texts)

    holds()


@st.composite
def arguments_of(draw: st.DrawFn, function: Function) -> list[tuple[str | None, Type]]:
    any_kind = draw(st.sampled_from([Type.BIGINT, Type.TEXT, Type.BOOLEAN, Type.DOUBLE, Type.DATE]))
    kinds = [kind or any_kind for kind in function.arguments]
    if function.is_variadic:
        kinds += kinds[-1:] * draw(st.integers(0, 2))
    return [(draw(texts_of(kind, function.symbol)), kind) for kind in kinds]
