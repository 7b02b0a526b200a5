"""Statements that write are described, refused and carried out as by a real PostgreSQL."""

from collections import Counter

import pytest
from statement_oracle import (
    Description,
    Refusal,
    SampleNames,
    Shown,
    contents,
    postgres_description,
    postgres_outcome,
    shown,
)
from typing_extensions import override

from derive.algebra.types import Row, Type
from derive.compute.oneshot import evaluate
from derive.errors import SqlError
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import Delete, Insert, Update
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, RelationKind
from derive.sql.planner.planned import PlannedWrite, bind, check_rows
from derive.sql.planner.writes import plan_write

STATEMENTS = [
    "insert into t values (1, 2, 'x', 1.5, true)",
    "insert into t (c, a) values ('5', 1), (null, default)",
    "insert into t values (1, 2.6)",
    "insert into t default values returning a, b + 1 as x, *",
    "insert into t (a) select a from u returning a",
    "insert into t (b, c) select 1, 'x'",
    "insert into t (d) select n from u",
    "insert into t select a, 5, 'x' from u where n > 1",
    "insert into t (c) values (5)",
    "insert into t (a) values ('x')",
    "insert into t (a) values (true)",
    "insert into t (a, a) values (1, 2)",
    "insert into t (nope) values (1)",
    "insert into nope values (1)",
    "insert into t (a, b) values (1)",
    "insert into t values (1,2,'x',1,true,6)",
    "insert into t values ($1, $2, $3)",
    "insert into t (d) values ($1 + 1)",
    "insert into t (a) values (1), (2, 3)",
    "insert into t (a) values (b)",
    "insert into t (a) select f from u",
    "insert into t (a) select a, n from u",
    "insert into t as x (a) values (1) returning x.a, t.a",
    "insert into t as x (a) values (1) returning x.a",
    "update t set b = b + 1, c = 'q' where a = 2 returning *",
    "update t set a = b",
    "update t set a = default, d = 5",
    "update t set a = 'x'",
    "update t set a = c",
    "update t set nope = 1",
    "update t set a = 1, a = 2",
    "update t set b = u.a from u where u.a = t.a returning t.b, u.f",
    "update t x set b = 1 where x.a = 1",
    "update t x set b = 1 where t.a = 1",
    "update t set (a, b) = (1, 2) where a = 2",
    "update t set b = $1 where a = $2",
    "update t set b = count(*)",
    "update t set b = (select max(a) from u where u.a = t.a)",
    "delete from t",
    "delete from t where a = 2 returning a as z",
    "delete from t using u where t.a = u.a",
    "delete from t where a in (select a from u)",
    "delete from t where b",
    "delete from nope",
    "delete from t where count(*) > 1",
    "delete from t returning count(*)",
]


def planned(text: str) -> PlannedWrite:
    statement = parse(text)
    assert isinstance(statement, Insert | Update | Delete)
    return plan_write(statement, SampleNames())


def description(text: str) -> Description | Refusal:
    try:
        write = planned(text)
    except SqlError as error:
        return Refusal(error.sqlstate, error.offset)
    return Description([(column.name, column.type) for column in write.returning or ()], list(write.query.parameters))


def outcome(text: str) -> tuple[Shown, Shown]:
    """What is returned, and all rows of the table afterwards."""
    write = planned(text)
    bound = bind(write.query, [])
    returned: list[Row] = []
    table = Counter(row for batch in contents(write.table.id) for row in batch)
    for batch in evaluate(bound.relation, bound.finishing, contents):
        for row in batch:
            ((gone, new, values),) = write.parts([row])
            table -= Counter([gone] if gone else [])
            table += Counter([new] if new else [])
            returned.append(values)
    kinds = [column.type for column in write.returning or ()]
    return shown(returned if kinds else [], kinds), shown(
        table.elements(), [column.type for column in write.table.columns]
    )


@pytest.mark.parametrize("text", STATEMENTS)
def test_writes_equal_postgresql(text: str) -> None:
    expected, ours = postgres_description(text), description(text)

    if isinstance(expected, Refusal):
        assert isinstance(ours, Refusal)
        assert ours.sqlstate == expected.sqlstate
        assert expected.offset in {None, ours.offset}
        return
    assert ours == expected
    if not expected.parameters:
        returned, table = outcome(text)
        expected_returned, expected_table = postgres_outcome(text, "t")
        assert sorted(returned, key=repr) == sorted(expected_returned, key=repr)
        assert sorted(table, key=repr) == sorted(expected_table, key=repr)


def test_not_null_columns_refuse_null() -> None:
    columns = (NamedColumn("a", Type.INTEGER, is_nullable=False), NamedColumn("b", Type.TEXT))
    table = NamedRelation(1, "t", columns, RelationKind.TABLE)

    check_rows(table, [(1, None)])
    with pytest.raises(
        SqlError, match='null value in column "a" of relation "t" violates not-null constraint'
    ) as caught:
        check_rows(table, [(1, "x"), (None, "y")])

    assert caught.value.sqlstate == "23502"


@pytest.mark.parametrize(
    "kind", [RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW, RelationKind.SOURCE, RelationKind.COLLECTION]
)
def test_only_tables_are_written(kind: RelationKind) -> None:
    class OneName(SampleNames):
        @override
        def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
            return NamedRelation(1, "v", (NamedColumn("a", Type.INTEGER),), kind)

    statement = parse("insert into v values (1)")
    assert isinstance(statement, Insert)
    with pytest.raises(SqlError, match='"v" is not a table') as caught:
        plan_write(statement, OneName())

    assert (caught.value.sqlstate, caught.value.offset) == ("42809", 12)
