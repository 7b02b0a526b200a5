"""The 22 reports of TPC-H's shape as maintained views, under insertions and deletions."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from trade_reports import REPORTS
from trade_views import TradeViews

MOST_SECONDS = 5.0
"""Maximum processor seconds until a view is known, at scale 0.01."""


def check(views: TradeViews, number: int, *, evaluates: bool) -> None:
    """Compare a view with DuckDB, and with the one-time evaluation."""
    rows = views.maintained(number)
    assert views.comparable(number, rows) == views.of_duckdb(number)
    if evaluates:
        assert rows == views.evaluated(number)


@pytest.fixture(scope="module")
def small() -> Iterator[TradeViews]:
    views = TradeViews(0.001)
    yield views
    views.close()


@pytest.mark.parametrize("number", REPORTS)
def test_reports_equal_duckdb_under_changes(small: TradeViews, number: int) -> None:
    small.maintain(number)
    small.settle()
    check(small, number, evaluates=True)
    for count in (1, 20):
        small.change(count)
        small.settle()
    check(small, number, evaluates=True)
    small.instance.drop(100 + number)
    small.settle()


@pytest.mark.torture
def test_reports_over_60_000_lines_are_known_within_seconds() -> None:
    """Each view alone, and then all views at once."""
    views = TradeViews(0.01)
    seconds = {}
    for number in REPORTS:
        begin = time.thread_time()
        views.maintain(number)
        views.settle()
        seconds[number] = time.thread_time() - begin
    assert {number: spent for number, spent in seconds.items() if spent > MOST_SECONDS} == {}
    for count in (1, 10, 100, 1000):
        views.change(count)
        views.settle()
        for number in REPORTS:
            check(views, number, evaluates=False)
    views.close()
