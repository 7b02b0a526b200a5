"""The queries of TPC-H and Nexmark as maintained views, under insertions and deletions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from auction_reports import AUCTION_REPORTS
from auction_rows import Auctions
from report_views import AUCTIONS, TRADE, ReportViews
from test_hydration import Stages
from trade_reports import REPORTS
from trade_rows import Trade

from derive.compute.instance import Instance

MOST_SECONDS = 5.0
"""Maximum processor seconds until a view is known, at scale 0.01."""


def check(views: ReportViews, number: int, *, evaluates: bool) -> None:
    """Compare a view with DuckDB, and with the one-time evaluation."""
    rows = views.maintained(number)
    assert views.comparable(number, rows) == views.of_duckdb(number)
    if evaluates:
        assert rows == views.evaluated(number)


@pytest.fixture(scope="module")
def small_trade() -> Iterator[ReportViews]:
    views = ReportViews(TRADE, Trade(0.001))
    yield views
    views.close()


@pytest.fixture(scope="module")
def small_auctions() -> Iterator[ReportViews]:
    views = ReportViews(AUCTIONS, Auctions(20))
    yield views
    views.close()


def change_and_check(views: ReportViews, number: int, postgres: psycopg.Connection[Any]) -> None:
    """Compare a view at its first time, and after two changes; then also with PostgreSQL."""
    views.maintain(number)
    views.settle()
    check(views, number, evaluates=True)
    for count in (1, 20):
        views.change(count)
        views.settle()
    check(views, number, evaluates=True)
    assert views.comparable(number, views.maintained(number)) == views.of_postgres(number, postgres)
    views.instance.drop(100 + number)
    views.settle()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", REPORTS)
def test_trade_reports_equal_other_databases_under_changes(
    small_trade: ReportViews, number: int, postgres: psycopg.Connection[Any]
) -> None:
    change_and_check(small_trade, number, postgres)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", AUCTION_REPORTS)
def test_auction_reports_equal_other_databases_under_changes(
    small_auctions: ReportViews, number: int, postgres: psycopg.Connection[Any]
) -> None:
    change_and_check(small_auctions, number, postgres)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_trade", [True, False])
def test_reports_that_hydrate_together_equal_duckdb_under_changes(is_trade: bool) -> None:
    """They read each input once, and dataflow groups copy arrangements of one another."""
    instance = Instance(most_here=0, stage=Stages())
    views = ReportViews(TRADE, Trade(0.001), instance) if is_trade else ReportViews(AUCTIONS, Auctions(20), instance)
    numbers = REPORTS if is_trade else AUCTION_REPORTS
    for number in numbers:
        views.maintain(number)
    for count in (0, 20):
        if count:
            views.change(count)
        views.settle()
        for number in numbers:
            check(views, number, evaluates=False)
    views.close()


@pytest.mark.torture
@pytest.mark.parametrize("name", ["60,000 lines", "46,000 bids"])
def test_reports_are_known_within_seconds(name: str) -> None:
    """Each view alone, and then all views at once."""
    is_trade = name == "60,000 lines"
    views = ReportViews(TRADE, Trade(0.01)) if is_trade else ReportViews(AUCTIONS, Auctions(1000))
    seconds = {}
    numbers = REPORTS if is_trade else AUCTION_REPORTS
    for number in numbers:
        begin = time.thread_time()
        views.maintain(number)
        views.settle()
        seconds[number] = time.thread_time() - begin
    assert {number: spent for number, spent in seconds.items() if spent > MOST_SECONDS} == {}
    for count in (1, 10, 100, 1000):
        views.change(count)
        views.settle()
        for number in numbers:
            check(views, number, evaluates=False)
    views.close()
