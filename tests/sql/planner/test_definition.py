"""Columns of relations that statements name or define, and what may be maintained."""

import pytest
from statement_oracle import SampleNames, contents, planned

from derive.algebra.expression import Literal
from derive.algebra.relation import Get
from derive.algebra.types import Type
from derive.compute.oneshot import evaluate
from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import Copy, CreateTable, SelectStatement
from derive.sql.planner.ddl import (
    columns_of_definitions,
    copied_table,
    indexes_of,
    plan_relation,
    plan_subscribed,
    relation_named,
)
from derive.sql.planner.dependencies import ids_of, require_maintainable, volatile_function
from derive.sql.planner.interfaces import NamedColumn
from derive.sql.planner.plan import plan_value, plan_view
from derive.sql.planner.planned import bind


def columns(text: str) -> tuple[NamedColumn, ...]:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return columns_of_definitions(statement.columns, SampleNames())


def test_new_table_has_the_declared_columns() -> None:
    assert columns("create table x (a int not null, b double precision, c varchar, d jsonb null)") == (
        NamedColumn("a", Type.INTEGER, is_nullable=False),
        NamedColumn("b", Type.DOUBLE),
        NamedColumn("c", Type.TEXT),
        NamedColumn("d", Type.JSONB),
    )


def test_a_table_has_1600_columns_at_most() -> None:
    def wide(count: int) -> str:
        return f"create table x ({', '.join(f'c{number} int' for number in range(count))})"

    assert len(columns(wide(1600))) == 1600
    with pytest.raises(SqlError, match="at most 1600 columns") as raised:
        columns(wide(1601))
    assert raised.value.sqlstate == "54011"


@pytest.mark.parametrize(
    ("text", "sqlstate", "offset"),
    [
        ("create table x (a int, a text)", "42701", 23),
        ("create table x (a intt)", "42704", 18),
        ("create table x (a interval(3))", "0A000", 18),
        ("create table x (a int null not null)", "42601", 27),
        ("create table x (a int default 'x')", "22P02", 30),
    ],
)
def test_invalid_table_definitions_are_refused(text: str, sqlstate: str, offset: int) -> None:
    with pytest.raises(SqlError) as caught:
        columns(text)

    assert (caught.value.sqlstate, caught.value.offset) == (sqlstate, offset)


def test_names_of_a_statement_are_resolved() -> None:
    copy = parse("copy u (f, a) to stdout")
    assert isinstance(copy, Copy)
    assert isinstance(copy.source, QualifiedName)
    query = plan_relation(copy.source, SampleNames(), copy.columns)

    assert [column.name for column in query.columns] == ["f", "a"]
    assert query.finishing.columns == (1, 0)
    assert copied_table(copy.source, SampleNames()).name == "u"
    assert isinstance(plan_subscribed(copy.source, SampleNames()).relation, Get)


@pytest.mark.parametrize(
    ("text", "sqlstate", "offset"),
    [
        ("copy u (f, nope) to stdout", "42703", 11),
        ("copy u (f, f) to stdout", "42701", 11),
        ("copy v to stdout", "42P01", 5),
    ],
)
def test_missing_names_are_refused(text: str, sqlstate: str, offset: int) -> None:
    copy = parse(text)
    assert isinstance(copy, Copy)
    assert isinstance(copy.source, QualifiedName)
    with pytest.raises(SqlError) as caught:
        indexes_of(relation_named(copy.source, SampleNames()), copy.columns)

    assert (caught.value.sqlstate, caught.value.offset) == (sqlstate, offset)


def test_query_reads_relations_of_subqueries() -> None:
    query = planned("select a from t where exists (select 1 from u where u.a = t.a and u.a in (select s from d))")

    assert ids_of(query.relation) == {0, 1, 2}


def test_volatile_functions_are_refused_in_views() -> None:
    require_maintainable(planned("select a from t").relation, "materialized view")
    with pytest.raises(SqlError, match=r"now\(\) cannot be used in a materialized view") as caught:
        require_maintainable(planned("select a from t where exists (select now())").relation, "materialized view")

    assert caught.value.sqlstate == "0A000"


def test_now_is_one_timestamp() -> None:
    query = planned("select now(), current_date, (select current_timestamp) from t")
    bound = bind(query, [], now=86_400_000_000 * 366)

    assert volatile_function(query.relation) == "now"
    assert volatile_function(bound.relation) is None
    assert next(evaluate(bound.relation, bound.finishing, contents))[0] == (
        86_400_000_000 * 366,
        366,
        86_400_000_000 * 366,
    )


def test_views_are_planned() -> None:
    statement = parse("select a, b + 1 from t order by a limit 3")
    assert isinstance(statement, SelectStatement)
    view = plan_view(statement.query, SampleNames(), ("x",))

    assert [(column.name, column.type) for column in view.columns] == [("x", Type.INTEGER), ("?column?", Type.BIGINT)]
    assert view.relation.types == (Type.INTEGER, Type.BIGINT)


@pytest.mark.parametrize(
    ("text", "names", "sqlstate"),
    [("select a, b as a from t", (), "42701"), ("select $1::int", (), "42P02"), ("select 1", ("a", "b"), "42601")],
)
def test_invalid_view_definitions_are_refused(text: str, names: tuple[str, ...], sqlstate: str) -> None:
    statement = parse(text)
    assert isinstance(statement, SelectStatement)
    with pytest.raises(SqlError) as caught:
        plan_view(statement.query, SampleNames(), names)

    assert caught.value.sqlstate == sqlstate


def test_values_are_planned() -> None:
    statement = parse("select 1 from t as of '5'")
    assert isinstance(statement, SelectStatement)
    assert statement.as_of is not None

    assert plan_value(statement.as_of.time, SampleNames(), Type.BIGINT) == (Literal(5, Type.BIGINT), ())


@pytest.mark.parametrize(
    "text",
    [
        "select a from t where " + " or ".join(f"a = {number}" for number in range(2000)),
        f"select a from t where a in ({', '.join(map(str, range(20_000)))})",
        " union all ".join(["select 1"] * 300),
    ],
)
def test_long_queries_are_planned(text: str) -> None:
    assert len(planned(text).columns) == 1


@pytest.mark.parametrize("text", [f"select {'+'.join(['1'] * 3000)}", f"select {'(select ' * 300}1{')' * 300}"])
def test_excessive_nesting_is_refused(text: str) -> None:
    with pytest.raises(SqlError, match="stack depth limit exceeded") as caught:
        planned(text)

    assert caught.value.sqlstate == "54001"
