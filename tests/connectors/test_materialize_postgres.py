"""What PostgreSQL alone does: large transactions, sessions that are stopped, and texts that it does not take."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_server import server
from sql_databases import Database, commit, load, postgres, source, stored

from connectors.materialize_postgres.endpoint import copy_text
from derive.errors import EndpointError, EndpointGoneError, FencedError

BALANCES = source({"account": ["string"]}, {"balance": ["integer", "null"], "note": ["string", "null"]})
BINDING = BALANCES.binding()
MANY = [{"account": f"account {number}", "balance": number, "note": None} for number in range(1000)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return postgres(tmp_path)


def balances(database: Database) -> list[tuple[Any, ...]]:
    return database.query("SELECT count(*), sum(balance) FROM balances")


def test_many_rows_are_copied(database: Database) -> None:
    database.apply(BINDING)
    with database.session(BINDING) as session:
        commit(session, BINDING, MANY, b"one")
        commit(session, BINDING, [row | {"balance": 1} for row in MANY], b"two", exists=True)
        assert len(load(session, [(row["account"],) for row in MANY] + [("nobody",)])) == 1000

        session.prepare(b"three")
        session.store(0, stored(BINDING, [row | {"account": f"new {row['account']}"} for row in MANY]))
        session.store(0, stored(BINDING, MANY, exists=True))
        session.store(0, stored(BINDING, MANY[:300], exists=True, deleted=True))
        session.store(0, stored(BINDING, [{"account": "few"}]))
        session.commit()
        assert balances(database) == [(1701, sum(range(1000)) + sum(range(300, 1000)))]

    with database.session(BINDING) as session:
        assert session.checkpoint == b"three"


def test_existing_rows_are_replaced_by_inserts(database: Database) -> None:
    database.apply(BINDING)
    with database.session(BINDING) as session:
        commit(session, BINDING, MANY[:500])
        session.prepare(b"two")
        session.store(0, stored(BINDING, [row | {"balance": 1} for row in MANY[250:]]))
        session.store(0, stored(BINDING, [{"account": "last", "balance": 0}]))
        session.commit()
        commit(session, BINDING, [row | {"balance": 2} for row in MANY])

    assert balances(database) == [(1001, 2000)]


def test_rows_of_several_tables_are_stored_in_turns(database: Database) -> None:
    bindings = [BALANCES.binding("left"), BALANCES.binding("right"), BALANCES.binding("added", delta=True)]
    database.apply(*bindings)
    with database.session(*bindings) as session:
        session.prepare(b"one")
        for begin in range(0, 1000, 250):
            for index, binding in enumerate(bindings):
                session.store(index, stored(binding, MANY[begin : begin + 250]))
        session.commit()

    for table in ("left", "right", "added"):
        assert database.query(f'SELECT count(*) FROM "{table}"') == [(1000,)]


def test_a_fenced_session_stores_nothing_of_many_rows(database: Database) -> None:
    database.apply(BINDING)
    with database.session(BINDING) as first, database.session(BINDING):
        first.prepare(b"not")
        first.store(0, stored(BINDING, MANY))
        with pytest.raises(FencedError, match="fence 1"):
            first.commit()

    assert balances(database) == [(0, None)]


def test_stopped_session_loses_its_locks_to_a_successor(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.materialize_postgres.connector._PATIENCE", "300ms")
    database.apply(BINDING)
    with database.session(BINDING, end=0x7FFF_FFFF) as other, database.session(BINDING, begin=0x8000_0000) as stopped:
        stopped.prepare(b"not")
        stopped.store(0, stored(BINDING, MANY))
        with database.session(BINDING, begin=0x8000_0000) as second:
            with pytest.raises(EndpointGoneError):
                stopped.commit()
            commit(second, BINDING, [row | {"balance": 1} for row in MANY], b"one")
        commit(other, BINDING, [{"account": "other", "balance": 1}])

    assert balances(database) == [(1001, 1001)]


def test_texts_with_nul_are_refused_in_columns_and_stored_in_documents(database: Database) -> None:
    database.apply(BINDING)
    with database.session(BINDING) as session:
        session.prepare(b"one")
        for row in ({"account": "a\0b"}, {"account": "a", "note": "\0"}):
            with pytest.raises(EndpointError, match="has the character NUL, which PostgreSQL's texts cannot have"):
                session.store(0, stored(BINDING, [row]))
        commit(session, BINDING, [{"account": "a", "other": "\0"}])
        assert load(session, [("a",)]) == ['{"account":"a","other":"\\u0000"}']


def test_numbers_are_exact(database: Database) -> None:
    numbers = source({"id": ["integer"]}, {"number": ["fractional", "integer"]})
    binding = numbers.binding()
    values = [0.1, 1e300, 5e-324, 2**70, -(10**40), 123456789.123456789, 1.7976931348623157e308]
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"id": index, "number": value} for index, value in enumerate(values)])

    rows = database.query("SELECT number FROM balances ORDER BY id")
    assert [type(value)(number) for (number,), value in zip(rows, values, strict=True)] == values


def test_a_key_that_is_too_long_is_refused_by_the_server(database: Database) -> None:
    database.apply(BINDING)
    with database.session(BINDING) as session:
        text = random.Random(1).randbytes(5000).hex()
        with pytest.raises(EndpointError, match="index row requires 10016 bytes, maximum size is 8191"):
            commit(session, BINDING, [{"account": text}])


def test_many_documents_are_loaded_during_a_commit(database: Database) -> None:
    """The commit waits for a lock that somebody else has; more is loaded than is taken ahead."""
    rows = [{"account": f"{number}", "note": "x" * 5000} for number in range(5000)]
    database.apply(BINDING)
    with database.session(BINDING) as session, closing(server().connect()) as other:
        commit(session, BINDING, rows, b"one")
        other.execute(f"BEGIN; UPDATE \"{database.schema[0]}\".balances SET balance = 7 WHERE account = '0'")
        session.prepare(b"two")
        session.store(0, stored(BINDING, [{"account": "0"}], exists=True))
        with ThreadPoolExecutor(1) as committer:
            committing = committer.submit(session.commit)
            session.load(0, [(row["account"],) for row in rows[1:]])
            assert not committing.done()
            other.execute("COMMIT")
            committing.result()
        assert sum(len(documents) for _, documents in session.loaded()) == 4999


def test_keys_of_any_text_are_loaded_and_deleted(database: Database) -> None:
    texts = ["plain", 'a"b', "a\\b", "{,}", "", "null", "ü\n\t "]
    pairs = source({"left": ["string"], "right": ["string"]}, {}).binding("pairs")
    kept = [f"{text}2" for text in texts]
    database.apply(BINDING, pairs)
    with database.session(BINDING, pairs) as session:
        session.prepare(b"one")
        session.store(0, stored(BINDING, [{"account": text} for text in (*texts, *kept)]))
        session.store(1, stored(pairs, [{"left": text, "right": right} for text in texts for right in (text, "2")]))
        session.commit()
        session.load(0, [*((text,) for text in texts), ("other",)])
        session.load(1, [*((text, text) for text in texts), *(("2", text) for text in texts)])
        assert [len(documents) for _, documents in session.loaded()] == [len(texts)] * 2
        session.prepare(b"two")
        session.store(0, stored(BINDING, [{"account": text} for text in texts], exists=True, deleted=True))
        session.store(1, stored(pairs, [{"left": text, "right": text} for text in texts], exists=True, deleted=True))
        session.commit()

    assert sorted(database.query("SELECT account FROM balances")) == sorted((text,) for text in kept)
    assert database.query('SELECT "right" FROM pairs') == [("2",)] * len(texts)


def test_copy_text_escapes_values() -> None:
    assert copy_text([["a", "b"], ["1", "2"]]) == b"a\t1\nb\t2\n"
    assert copy_text([["a\\b\t", "\\N"], ["\n\r", None]]) == b"a\\\\b\\t\t\\n\\r\n\\\\N\t\\N\n"
