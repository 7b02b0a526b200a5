"""WITH RECURSIVE is accepted, described, refused and answered as by a real PostgreSQL."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statement_oracle import (
    Description,
    Refusal,
    contents,
    description,
    planned,
    postgres_description,
    postgres_rows,
    rows,
)

from derive.compute.oneshot import evaluate
from derive.errors import SqlError
from derive.sql.planner.planned import bind

COUNT = "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5)"
ACCEPTED = [
    "select a, (with recursive r(n) as (select t.a union select n / 2 from r) select sum(n) from r) from t",
    "select a, (with recursive r(n) as (select 1 union select (n + t.a) % 5 from r) select count(*) from r) from t",
    "select a, b, array(with recursive r(n) as (select t.a union select n % 3 from r where n > t.b) select n from r order by 1) from t",
    "select t.a, s from t, lateral (with recursive r(n) as (select t.a union select n / 2 from r) select sum(n) from r) y(s)",
    (
        "select a from t where exists (with recursive r(n) as (select u.a from u where u.a = t.a"
        " union select u.a from u join r on u.a = r.n - 1) select from r where n = 1)"
    ),
    "select a, (with recursive r(n) as (select 1 union all select n + 1 from r left join t x on x.a = t.b where n < 3) select sum(n) from r) from t",
    f"{COUNT} select * from r",
    f"{COUNT} select count(*), sum(n) from r",
    f"{COUNT} select n, count(*) over () from r order by n desc limit 2",
    f"{COUNT} select a.n, b.n from r a join r b on a.n = b.n + 1",
    f"{COUNT} select t.a, (select max(n) from r where n > t.a) from t",
    f"{COUNT} select n from r limit 3 offset 1",
    "with recursive r(n) as (select 1 union all select n + 1 from r) select n from r limit 4",
    "with recursive r(n) as (select 1 union all select n + 1 from r) select n * 2 from r where n % 2 = 0 limit 4",
    "with recursive r(n) as (select 1 union select (n + 1) % 4 from r) select * from r",
    "with recursive r(n, m) as (select null::int, 1 union select n, (m + 1) % 3 from r) select * from r",
    "with recursive r as (select a, b from t where a = 1 union select t.a, t.b from t join r on t.b > r.b) select * from r",
    "with recursive r as (select a from t union all select u.a from u join r on u.a = r.a + 1) select * from r",
    (
        "with recursive r(x, path) as (select a, array[a] from u where a = 1"
        " union all select u.a, path || u.a from r join u on u.a > r.x) select * from r"
    ),
    "with recursive r(n) as (values (1), (2) union all select n * 3 from r where n < 20) select * from r",
    "with recursive r(n) as (select 1 union all select 2 union all select n * 3 from r where n < 20) select * from r",
    "with recursive r(s) as (select 'a'::text union all select s || 'b' from r where length(s) < 4) select * from r",
    "with recursive r(s) as (select 'a' union all select s || 'b' from r where length(s) < 4) select * from r",
    "with recursive r(n) as (select 1 union all select n + 1 from (select n from r where n < 3) x) select * from r",
    "with recursive r(n) as (select 1 union all select max(n) over () + 1 from r where n < 4) select * from r",
    "with recursive r(n) as (select 1 union all select n + g from r, generate_series(1, 2) g where n < 4) select * from r",
    "with recursive r(n) as (select 1 union all select r.n + 1 from r left join t on t.a = r.n where n < 4) select * from r",
    "with recursive r(n) as (select 1 union all (select n + 1 from r where n < 4 limit 1)) select * from r",
    "with recursive r(n) as (select 1 union all (select n + 1 from r where n < 9 except select 4)) select * from r",
    "with recursive w as (select 3 as m), r(n) as (select 1 union all select n + 1 from r, w where n < m) select * from r",
    (
        "with recursive r(n) as (with w as (select 2 as n) select n from w union all select n + 1 from r where n < 4)"
        " select * from r"
    ),
    (
        "with recursive a(n) as (select 1 union all select n + 1 from a where n < 3),"
        " b(m) as (select n from a union all select m + 10 from b where m < 20) select * from b"
    ),
    "select * from t where a in (with recursive r(n) as (select 1 union all select n + 2 from r where n < 4) select n from r)",
    (
        "with recursive r(n) as (select 1 union all select n + 1 from r where exists (select 1 from t where t.a = r.n))"
        " select * from r"
    ),
    "with recursive r(n) as (select $1::int union all select n + 1 from r where n < $2) select * from r",
    "with recursive r(n) as (select 2 union all select 10 / (n - 1) from r where n < 5) select * from r",
    "with recursive t as (select 1 as a) select * from t",
]
REFUSED = [
    "with recursive r as (select * from r) select * from r",
    "with recursive r(n) as (select n from r union all select 1) select * from r",
    "with recursive r(n) as (select 1 intersect select n from r) select * from r",
    "with recursive r(n) as (select 1 union all select a.n from r a, r b) select * from r",
    "with recursive r(n) as (select 1 union all select 2 where 3 in (select n from r)) select * from r",
    "with recursive r(n) as (select 1 union all select t.a from t left join r on true) select * from r",
    "with recursive r(n) as (select 1 union all select t.a from r right join t on true) select * from r",
    "with recursive r(n) as (select 1 union all (select 2 except select n from r)) select * from r",
    "with recursive r(n) as (select 1 union all (select 2 intersect all select n from r)) select * from r",
    "with recursive r(n) as (select 1 union all select n + 1.5 from r) select * from r",
    "with recursive r(n) as (select 1 union all select n from r order by 1) select * from r",
    "with recursive r(n) as (select 1 union all select n from r limit 3) select * from r",
    "with recursive r(n) as (select 1 union all select n from r offset 3) select * from r",
    "with recursive r(n) as (select 1 union all select count(*)::int from r) select * from r",
    "with recursive r(n) as (select 1 union all select n, 2 from r) select * from r",
    "with recursive r(n, m) as (select 1 union all select n from r) select * from r",
    "with recursive r(n) as (select 1 union all select 'x' || n from r) select * from r",
    "with r(n) as (select 1 union all select n from r) select * from r",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_recursions_are_described_and_answered_as_in_postgresql(text: str) -> None:
    expected = postgres_description(text)

    assert isinstance(expected, Description)
    assert description(text) == expected
    if not expected.parameters:
        assert sorted(rows(text), key=repr) == sorted(postgres_rows(text), key=repr)


@pytest.mark.parametrize("text", REFUSED)
def test_recursions_are_refused_as_in_postgresql(text: str) -> None:
    expected, ours = postgres_description(text), description(text)

    assert isinstance(expected, Refusal)
    assert isinstance(ours, Refusal)
    assert ours.sqlstate == expected.sqlstate


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12), st.booleans())
def test_recursive_closure_equals_a_graph_walk(edges: list[tuple[int, int]], joined_last: bool) -> None:
    values = ", ".join(f"({begin}, {end})" for begin, end in edges)
    tables = "r join e on e.x = r.y" if joined_last else "e join r on e.x = r.y"
    text = (
        f"with recursive e(x, y) as (values {values}), r(x, y) as (select x, y from e union "
        f"select r.x, e.y from {tables}) select x, y from r"
    )
    closed = set(edges)
    while more := {(a, d) for (a, b), (c, d) in itertools.product(closed, edges) if b == c} - closed:
        closed |= more

    assert sorted(rows(text)) == sorted((str(begin), str(end)) for begin, end in closed)


def evaluated(text: str, most_bytes: int | None = None, most_asked: int = 100) -> None:
    asked = itertools.count()
    query = bind(planned(text), [])
    for _ in evaluate(query.relation, query.finishing, contents, most_bytes, lambda: next(asked) > most_asked):
        pass


def test_endless_recursion_is_bounded_and_can_be_cancelled() -> None:
    endless = "with recursive r(n) as (select 1::bigint union all select n + 1 from r) select max(n) from r"

    with pytest.raises(SqlError) as cancelled:
        evaluated(endless)
    with pytest.raises(SqlError) as limited:
        evaluated(endless.replace("n + 1 from r", "n from r, (values (1), (2)) two(x)"), 1_000_000, 10_000)

    assert cancelled.value.sqlstate == "57014"
    assert limited.value.sqlstate == "54000"


def test_recursion_that_refers_two_queries_outwards_is_refused() -> None:
    with pytest.raises(SqlError) as error:
        planned(
            "select a, (select (with recursive r(n) as (select t.a union all select n from r) select max(n) from r)) from t"
        )

    assert error.value.sqlstate == "0A000"
    assert error.value.hint is not None
