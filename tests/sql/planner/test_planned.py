"""Parameters given values: the same as if they had been written."""

import pytest
from statement_oracle import contents, planned, rows, shown

from derive.algebra.relation import Join, Project, Relation, TopK
from derive.algebra.rewrite import inputs_of
from derive.algebra.types import Datum
from derive.compute.oneshot import evaluate
from derive.errors import SqlError
from derive.functions.types.type_info import datum_of_text
from derive.sql.planner.planned import bind


def bound_rows(text: str, arguments: list[str | None]) -> list[tuple[str | None, ...]]:
    query = planned(text)
    data: list[Datum] = [
        None if argument is None else datum_of_text(kind, argument)
        for argument, kind in zip(arguments, query.parameters, strict=True)
    ]
    bound = bind(query, data)
    batches = evaluate(bound.relation, bound.finishing, contents)
    return shown([row for batch in batches for row in batch], [column.type for column in query.columns])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("select a from t where a = $1 or c = $2", ["3", "'x'"]),
        ("select a, $1 from t order by b limit $2 offset $3", ["'q'", "2", "1"]),
        ("select a from t order by b limit $1", [None]),
        ("select a from t order by b offset $1", ["3"]),
        ("select * from (select a, b from t order by b desc limit $1 offset $2) q", ["2", "1"]),
        ("select * from (select a, b from t order by b limit $1) q", [None]),
        ("select t.b, q.f from t, lateral (select f from u where u.a = t.a order by f limit $1) q", ["1"]),
        (
            "select a from t where ($1 is null or a = $1) and exists (select 1 from u where u.a = t.a and u.n > $2)",
            ["2", "1.5"],
        ),
        ("select a + $1, sum(b) filter (where b > $2) over (order by b) from t", ["5", "15"]),
        ("select a + $1 from t group by a + $1", ["5"]),
        ("select f from u where j @> $1", ["'{\"k\": 1}'"]),
    ],
)
def test_bound_parameters_equal_literals(text: str, arguments: list[str | None]) -> None:
    written = text
    for index, argument in enumerate(arguments, start=1):
        written = written.replace(f"${index}", argument or "null")

    unquoted = [argument and argument.strip("'") for argument in arguments]
    assert bound_rows(text, unquoted) == rows(written)


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [("select 1 limit $1", "2201W"), ("select 1 offset $1", "2201X"), ("select 1 limit -1 offset $1", "2201W")],
)
def test_negative_limits_are_refused(text: str, sqlstate: str) -> None:
    with pytest.raises(SqlError, match="must not be negative") as caught:
        bind(planned(text), [-1])

    assert caught.value.sqlstate == sqlstate


# Plans of LATERAL: other tests compare the rows with PostgreSQL, these limit the cost.


def kinds(relation: Relation) -> list[str]:
    return [type(relation).__name__, *(name for child in inputs_of(relation) for name in kinds(child))]


def test_a_query_that_filters_is_a_join() -> None:
    relation = planned("select t.b, q.x from t, lateral (select u.n + t.a as x from u where u.a = t.a) q").relation

    assert kinds(relation) == ["Project", "Project", "Join", "Get", "Get"]
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Project)
    assert isinstance(relation.input.input, Join)
    assert len(relation.input.input.predicates) == 1


def test_lateral_limit_becomes_the_first_rows_per_key() -> None:
    relation = planned("select q.f from t, lateral (select f from u where u.a = t.a order by f limit 1) q").relation

    assert kinds(relation)[:5] == ["Project", "Project", "Join", "Get", "TopK"]
    first_rows = next(part for part in parts(relation) if isinstance(part, TopK))
    assert len(first_rows.keys) == 1


def parts(relation: Relation) -> list[Relation]:
    return [relation, *(part for child in inputs_of(relation) for part in parts(child))]
