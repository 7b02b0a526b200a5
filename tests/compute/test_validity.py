"""The times at which temporal filters are true."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from report_views import DeclaredNames, relation_of

from derive.algebra.expression import Expression
from derive.algebra.relation import Filter, Project
from derive.algebra.types import Datum, Row
from derive.compute.instance import can_follow_time
from derive.compute.oneshot import at_time
from derive.compute.plans.validity import split
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.types.datetime import INFINITY, date_of_text, timestamp_of_text

NAMES = DeclaredNames({"t": "a date,b timestamp"})
DAY = 86_400_000_000
DATES: list[Datum] = [None, *map(date_of_text, ["2024-02-29", "2024-12-31", "1969-12-31", "infinity", "-infinity"])]
TIMES: list[Datum] = [
    timestamp_of_text(text, has_zone=False)
    for text in (
        "2024-02-29 00:00",
        "2024-02-29 23:59:59.999999",
        "1969-12-30 12:00:00.000001",
        "infinity",
        "-infinity",
    )
]

SOLVED = [
    "b < now()",
    "b <= now()",
    "now() < b::timestamptz",
    "now() >= b",
    "now() = b",
    "NOT (b < now())",
    "NOT now() > b",
    "b > now() - interval '5 minutes'",
    "b + interval '1 month' > now() + interval '1 day 2 hours'",
    "b BETWEEN now() - interval '1 day' AND now()",
    "interval '-3 seconds' + current_timestamp <= b",
    "localtimestamp > b",
    "now() - b < interval '5 minutes'",
    "now() - b >= interval '1 month'",
    "b - now() <= interval '1 day'",
    "localtimestamp - interval '1 hour' - b = interval '0'",
    "now() - b < CASE WHEN a > '2024-03-01' THEN interval '1 day' ELSE interval '1 month' END",
    "a = current_date",
    "a < current_date",
    "a <= current_date - 7",
    "1 + current_date > a",
    "a >= now()",
    "a > current_date - interval '36 hours'",
    "current_date <= b",
    "date_trunc('hour', now()) >= b",
    "date_trunc('week', now()) = date_trunc('week', b)",
    "b > date_trunc('month', now() - interval '1 day')",
    "date_trunc('quarter', localtimestamp) + interval '1 hour' < b",
    "date_trunc('century', now())::date <= a",
    "b > transaction_timestamp() AND b <= statement_timestamp() + interval '1 day'",
    "mz_now() < b",
]
REFUSED = [
    "b < now() OR a IS NULL",
    "b <> now()",
    "b > now() - interval '1 month'",
    "b > now() - (a - date '2024-01-01') * interval '1 second'",
    "extract(hour FROM now()) = 3",
    "now() - b < now() - a",
    "CASE WHEN a IS NULL THEN b > now() END",
    "b::text < now()::text",
    "(b < now()) IS NOT FALSE",
]


def predicate_of(text: str) -> Expression:
    relation = relation_of(f"SELECT a FROM t WHERE {text}", NAMES)
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Filter)
    return relation.input.predicate


def is_true(predicate: Expression, row: Row, time: int) -> bool | None:
    """The value of a predicate at a time; None for an error."""
    bound = at_time(Filter(Project(RELATION, ()), predicate), time)
    assert isinstance(bound, Filter)
    try:
        return evaluate(bound.predicate, row) == 1
    except SqlError:
        return None


RELATION = relation_of("SELECT a, b FROM t", NAMES)


@pytest.mark.parametrize("text", SOLVED)
def test_validity_is_where_the_filter_is_true(text: str) -> None:
    """A filter is true from all begins on and before all ends, at every time."""
    predicate = predicate_of(text)
    temporal, others = split([predicate])
    assert temporal
    assert not others
    begins = [begin for _, validity in temporal for begin in validity.begins]
    ends = [end for _, validity in temporal for end in validity.ends]
    random, compared = Random(text), 0
    for row in product(DATES, TIMES):
        starts, stops = [evaluate(part, row) for part in begins], [evaluate(part, row) for part in ends]
        bounds = [bound for bound in (*starts, *stops) if isinstance(bound, int) and abs(bound) < INFINITY // 4]
        times = [bound + by for bound in bounds for by in (-DAY, -1, 0, 1, DAY)]
        for time in (*times, *(random.randrange(-40 * 365 * DAY, 80 * 365 * DAY) for _ in range(3))):
            value = is_true(predicate, row, time)
            if value is None:
                continue
            within = all(isinstance(bound, int) and bound <= time for bound in starts)
            within = within and all(isinstance(bound, int) and time < bound for bound in stops)
            assert value == within, (row, time)
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("text", REFUSED)
def test_other_uses_of_the_time_are_not_maintained(text: str) -> None:
    assert not can_follow_time(relation_of(f"SELECT a FROM t WHERE {text}", NAMES))
