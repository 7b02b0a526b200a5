"""Grouping sets are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select a, c, count(*) from t group by rollup(a, c)",
    "select a, c, sum(b) from t group by cube(a, c)",
    "select a, c, sum(b), grouping(a, c), grouping(c) from t group by grouping sets ((a, c), (a), ())",
    "select a, c, e, count(*) from t group by a, rollup(c, e)",
    "select a, count(*) from t group by a, grouping sets ((), ())",
    "select a, count(*) from t group by distinct rollup(a), rollup(a)",
    "select a, count(*) from t group by rollup(a), rollup(a)",
    "select a, c, count(*) from t group by rollup((a, c), e)",
    "select a, c, count(*) from t group by (a, c)",
    "select a, count(*), grouping(a) from t group by a",
    "select a, count(*) from t group by rollup(a) having grouping(a) = 0 order by a",
    "select a, count(*) from t group by rollup(a) order by grouping(a), a",
    "select coalesce(c, 'all'), sum(b) from t group by rollup(c)",
    "select a + 1, count(*) from t group by rollup(a + 1)",
    "select a + 1, count(*) from t group by rollup(a)",
    "select count(*) from t where false group by grouping sets ((), (a))",
    "select a, sum(a) from t group by rollup(a)",
    "select a as x, count(*) from t group by cube(x)",
    "select 1 as one, count(*) from t group by rollup(1)",
    "select a, row_number() over (order by a, count(*)) from t group by rollup(a)",
    "select a, c, count(*) from t group by grouping sets (a, rollup(c, e), cube(a))",
    "select grouping(a, a, c) from t group by cube(a, c)",
    "select distinct grouping(a) from t group by rollup(a)",
    "select x, sum(x) from (values (1.50), (2.50)) v(x) group by rollup(x)",
]

REFUSED = [
    "select grouping(a) from t",
    "select grouping(b) from t group by rollup(a)",
    "select b from t group by rollup(a)",
    "select a from t where grouping(a) = 1 group by rollup(a)",
    "select sum(grouping(a)) from t group by rollup(a)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_grouping_sets_are_described_and_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_grouping_sets_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
