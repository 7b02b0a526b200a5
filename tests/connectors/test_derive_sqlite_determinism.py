"""Time and chance in SQL are the document's (law L1)."""

from __future__ import annotations

import pytest
from sqlite_derivation import derivation, field, publish, run

from derive.lambda_sql.determinism import calls_chance

DOCUMENT = {"id": 3, "sender": "now", "amount": 1}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("CURRENT_TIMESTAMP", "2023-11-14 22:13:20"),
        ("current_date", "2023-11-14"),
        ("CURRENT_TIME", "22:13:20"),
        ("datetime('now')", "2023-11-14 22:13:20"),
        ("datetime()", "2023-11-14 22:13:20"),
        ("date('NOW', '+1 day')", "2023-11-15"),
        ("date($sender)", "2023-11-14"),  # a document may say `now`, too
        ("time('subsec')", "22:13:20.123"),
        ("unixepoch()", 1_700_000_000),
        ("unixepoch('subsec')", 1_700_000_000.123),
        ("strftime('%H:%M:%f')", "22:13:20.123"),
        ("strftime('%s', 'now', '-20 seconds')", "1699999980"),
        ("round(julianday('now'), 4)", 2460263.4259),
        ("timediff('now', '2023-11-14')", "+0000-00-00 22:13:20.123"),
        # what does not ask for the present is SQLite's own
        ("DATE('2023-04-17T16:45:31Z')", "2023-04-17"),
        ("datetime(0, 'unixepoch')", "1970-01-01 00:00:00"),
        ("date(' now')", None),
        ("date(NULL)", None),
        ("strftime()", None),
    ],
)
def test_now_is_the_adjusted_clock(expression: str, value: object) -> None:
    assert publish(f"SELECT {expression} AS x", DOCUMENT) == [{"x": value}]


def test_now_advances_with_the_next_document() -> None:
    rows = run(derivation("SELECT time('now') AS x; SELECT $id AS x"), [DOCUMENT, {**DOCUMENT, "id": 4}])
    assert rows == [(0, {"x": "22:13:20"}), (0, {"x": 3}), (1, {"x": "22:13:21"}), (1, {"x": 4})]


def test_now_never_rounds_into_the_future() -> None:
    spec = derivation("SELECT strftime('%S') AS x")
    assert run(spec, [DOCUMENT]) == [(0, {"x": "20"})]


def test_column_default_may_be_the_present_time() -> None:
    migrations = ["CREATE TABLE t (id, at DEFAULT CURRENT_TIMESTAMP); CREATE INDEX day ON t (date(at));"]
    spec = derivation("INSERT INTO t (id) VALUES ($id) RETURNING at", migrations=migrations)
    assert run(spec, [DOCUMENT]) == [(0, {"at": "2023-11-14 22:13:20"})]


def test_random_repeats_for_a_document_and_differs_between_documents() -> None:
    spec = derivation("SELECT random() AS x, random() AS y, hex(randomblob(8)) AS z")
    first = run(spec, [DOCUMENT, {**DOCUMENT, "id": 4}])
    assert first == run(spec, [DOCUMENT, {**DOCUMENT, "id": 4}])
    (_, one), (_, two) = first
    assert len({one["x"], one["y"], two["x"], two["y"]}) == 4
    assert len(one["z"]) == 16


def test_randomblob_has_at_least_one_byte() -> None:
    assert publish("SELECT length(randomblob(NULL)) AS x, length(randomblob(0)) AS y", DOCUMENT) == [{"x": 1, "y": 1}]


@pytest.mark.parametrize(
    ("sql", "called"),
    [
        ("SELECT date('now')", True),
        ("SELECT Date /* so */ ('now')", True),
        ('SELECT "random"()', True),
        ("INSERT INTO t VALUES (CURRENT_TIMESTAMP)", True),
        ("SELECT $date, time FROM t", False),  # names of fields and columns
        ("SELECT update_date($x), current_time_zone", False),
        ("SELECT 'now'", False),
    ],
)
def test_functions_are_overridden_only_if_called(sql: str, called: bool) -> None:
    assert calls_chance([sql]) is called


def test_field_may_have_the_name_of_a_function() -> None:
    assert publish("SELECT $date", {"date": "now"}, field("date", "string")) == [{"date": "now"}]
