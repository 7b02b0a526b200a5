"""What SQLite alone does: tables that are replaced keep what belongs to them, and columns that have values of any type."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_databases import Database, commit, load, source, sqlite, stored

BEFORE = source({"account": ["string"]}, {"balance": ["integer"]}).binding()
AFTER = source({"account": ["string"]}, {"balance": ["integer", "null"], "note": ["string", "null"]}).binding()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return sqlite(tmp_path)


def test_altered_table_keeps_indexes_and_triggers(database: Database) -> None:
    database.apply(BEFORE)
    database.query("CREATE INDEX by_balance ON balances (balance)")
    database.query("CREATE TABLE noted (account)")
    database.query("CREATE TRIGGER notes AFTER INSERT ON balances BEGIN INSERT INTO noted VALUES (NEW.account); END")
    database.query("CREATE VIEW total AS SELECT sum(balance) AS total FROM balances")
    with database.session(BEFORE) as session:
        commit(session, BEFORE, [{"account": "ann", "balance": 3}])
    assert "DROP TABLE" in database.apply(AFTER)
    with database.session(AFTER) as session:
        commit(session, AFTER, [{"account": "bob", "note": "new"}])

    assert database.query("SELECT account FROM noted ORDER BY 1") == [("ann",), ("bob",)]
    assert database.query("SELECT total FROM total") == [(3,)]
    assert database.query("SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL") == [("by_balance",)]


def test_numbers_of_any_size_are_stored(database: Database) -> None:
    numbers = source({"id": ["integer"]}, {"number": ["fractional", "integer"]}).binding()
    values = [1, 1.5, 2**63 - 1, 2**63, -(10**40), 1e300]
    database.apply(numbers)
    with database.session(numbers) as session:
        commit(session, numbers, [{"id": index, "number": value} for index, value in enumerate(values)])

    rows = database.query("SELECT number, typeof(number) FROM balances ORDER BY id")
    assert rows == [
        (1, "integer"),
        (1.5, "real"),
        (9223372036854775807, "integer"),
        ("9223372036854775808", "text"),
        ("-10000000000000000000000000000000000000000", "text"),
        (1e300, "real"),
    ]


def test_texts_with_nul_are_stored(database: Database) -> None:
    database.apply(AFTER)
    with database.session(AFTER) as session:
        commit(session, AFTER, [{"account": "a\0b", "note": "\0"}])
        assert load(session, [("a\0b",)]) == ['{"account":"a\\u0000b","note":"\\u0000"}']

    assert database.query("SELECT account, note FROM balances") == [("a\0b", "\0")]


def test_waiting_rows_in_memory_are_bounded(database: Database) -> None:
    database.apply(AFTER)
    large = "x" * (33 << 20)
    with database.session(AFTER) as session:
        session.prepare(b"one")
        for account in ("ann", "bob"):
            session.store(0, stored(AFTER, [{"account": account, "note": large}]))
        # more than is kept has been written, in a transaction that nobody sees
        assert database.query("SELECT count(*) FROM balances") == [(0,)]
        session.commit()

    assert database.query("SELECT account, length(note) FROM balances") == [("ann", 33 << 20), ("bob", 33 << 20)]
