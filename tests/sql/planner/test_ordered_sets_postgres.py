"""Aggregates WITHIN GROUP are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select percentile_cont(0.5) within group (order by b) from t",
    "select percentile_cont(0.3) within group (order by d desc), percentile_cont(1) within group (order by d) from t",
    "select percentile_disc(0.5) within group (order by b), percentile_disc(0) within group (order by c desc) from t",
    "select a, mode() within group (order by c) from t group by a",
    "select mode() within group (order by b desc), mode() within group (order by c) from t",
    "select percentile_cont(0.5) within group (order by n) from u",
    "select percentile_disc(0.5) within group (order by j) from u",
    "select percentile_disc(0.25) within group (order by b) filter (where a > 1) from t",
    "select percentile_cont(1.5) within group (order by b) from t",
    "select percentile_cont(null) within group (order by b) from t",
    "select percentile_cont(0.5) within group (order by b) from t where false",
    "select percentile_disc(0.5) within group (order by dt), percentile_disc(0.5) within group (order by iv) from d",
    "select percentile_cont($1) within group (order by b) from t",
    "select percentile_disc(0.5) within group (order by a nulls first) from t",
    "select a from t group by a having percentile_disc(0.5) within group (order by b) > 10",
]

REFUSED = [
    "select percentile_cont(0.5) within group (order by c) from t",
    "select sum(a) within group (order by b) from t",
    "select nofunc(a) within group (order by b) from t",
    "select percentile_cont(0.5) from t",
    "select percentile_cont(0.5) within group (order by b) over () from t",
    "select percentile_cont('x') within group (order by b) from t",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_ordered_sets_are_described_and_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_ordered_sets_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
