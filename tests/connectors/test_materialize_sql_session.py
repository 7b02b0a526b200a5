"""Sessions of every SQL connector: rows and checkpoint of one transaction, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sql_databases import DATABASES, Database, commit, load, source, stored

from connectors.kit.connector import BEGIN_FROM_NOTHING
from derive.document.exact import parse_exact
from derive.errors import EndpointError, FencedError

BALANCES = source({"account": ["string"]}, {"balance": ["integer", "null"], "note": ["string", "null"]})
PAIRS = source({"left": ["integer"], "right": ["string"]}, {"both": ["boolean", "null"]})


@pytest.fixture(params=sorted(DATABASES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path)


def test_what_is_stored_is_there_and_is_loaded(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        assert session.checkpoint == BEGIN_FROM_NOTHING
        commit(session, binding, [{"account": "ann", "balance": 3}, {"account": "bob", "note": "new"}], b"one")
        commit(session, binding, [{"account": "ann", "balance": 5}], b"two", exists=True)

        assert load(session, [("ann",), ("cat",)]) == ['{"account":"ann","balance":5}']
        assert load(session, [("bob",)]) == ['{"account":"bob","note":"new"}']
        assert load(session, []) == []

    with database.session(binding) as session:
        assert session.checkpoint == b"two"
    assert sorted(database.query("SELECT account, balance, note FROM balances")) == [
        ("ann", 5, None),
        ("bob", None, "new"),
    ]


def test_a_key_of_several_components_is_one_row(database: Database) -> None:
    binding = PAIRS.binding()
    database.apply(binding)
    documents = [{"left": left, "right": right, "both": left == 1} for left in (1, 2) for right in ("a", "b")]
    with database.session(binding) as session:
        commit(session, binding, documents)
        commit(session, binding, [documents[3] | {"both": True}], exists=True)

        assert load(session, [(2, "b"), (1, "a")]) == [
            '{"left":1,"right":"a","both":true}',
            '{"left":2,"right":"b","both":true}',
        ]
    rows = database.query('SELECT "left", "right", "both" FROM balances ORDER BY 1, 2')
    assert [(left, right, bool(both)) for left, right, both in rows] == [
        (1, "a", True),
        (1, "b", True),
        (2, "a", False),
        (2, "b", True),
    ]


def test_a_deleted_row_is_not_there(database: Database) -> None:
    binding = PAIRS.binding()
    database.apply(binding)
    documents = [{"left": number, "right": "x"} for number in range(5)]
    with database.session(binding) as session:
        commit(session, binding, documents)
        session.prepare(b"{}")
        session.store(0, stored(binding, documents[:2], exists=True, deleted=True))
        session.store(0, stored(binding, [{"left": 9, "right": "x"}], deleted=True))
        session.store(0, stored(binding, documents[2:3], exists=True))
        session.commit()

    assert database.query('SELECT "left" FROM balances ORDER BY 1') == [(2,), (3,), (4,)]


def test_delta_updates_are_appended(database: Database) -> None:
    binding = BALANCES.binding(delta=True)
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"account": "ann", "balance": 3}])
        commit(session, binding, [{"account": "ann", "balance": 4}])

    assert sorted(database.query("SELECT account, balance FROM balances")) == [("ann", 3), ("ann", 4)]


def test_delta_updates_may_leave_out_documents(database: Database) -> None:
    binding = BALANCES.binding(delta=True, leave_out=["flow_document"])
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"account": "ann", "balance": 3}])

    assert database.query("SELECT * FROM balances") == [("ann", 3, None)]


def test_what_is_not_committed_is_not_there(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"account": "ann", "balance": 3}], b"one")
        session.prepare(b"two")
        session.store(0, stored(binding, [{"account": "bob", "balance": 3}]))

    with database.session(binding) as session:
        assert session.checkpoint == b"one"
        assert load(session, [("ann",), ("bob",)]) == ['{"account":"ann","balance":3}']


def test_an_empty_transaction_commits_its_checkpoint(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [], b"\0\xff")

    with database.session(binding) as session:
        assert session.checkpoint == b"\0\xff"


def test_who_opens_later_fences_off_who_was_there(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as first:
        commit(first, binding, [{"account": "ann", "balance": 1}], b"one")
        with database.session(binding) as second:
            with pytest.raises(FencedError, match="this session .fence 1. was fenced off"):
                commit(first, binding, [{"account": "ann", "balance": 2}], b"not", exists=True)
            assert second.checkpoint == b"one"
            commit(second, binding, [{"account": "ann", "balance": 3}], b"two", exists=True)

    assert database.query("SELECT account, balance FROM balances") == [("ann", 3)]


def test_ranges_beside_one_another_do_not_fence(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with (
        database.session(binding, end=0x7FFF_FFFF) as lower,
        database.session(binding, begin=0x8000_0000) as upper,
    ):
        commit(lower, binding, [{"account": "ann", "balance": 1}], b"lower")
        commit(upper, binding, [{"account": "bob", "balance": 2}], b"upper")
        commit(lower, binding, [{"account": "cat", "balance": 3}], b"lower again")

    with database.session(binding, begin=0x8000_0000) as upper:
        assert upper.checkpoint == b"upper"
    assert sorted(database.query("SELECT account FROM balances")) == [("ann",), ("bob",), ("cat",)]


def test_a_range_that_was_split_goes_on_from_where_it_was(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as before:
        commit(before, binding, [], b"before")
        with database.session(binding, end=0x7FFF_FFFF) as half:
            assert half.checkpoint == b"before"
            with pytest.raises(FencedError):
                commit(before, binding, [], b"not")
            commit(half, binding, [], b"half")
            with database.session(binding, end=0x3FFF_FFFF) as quarter:
                assert quarter.checkpoint == b"half"
    with database.session(binding, begin=0x8000_0000) as other:
        assert other.checkpoint == b"before"


def test_a_materialization_does_not_fence_another(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        rows = [*database.query("SELECT materialization, key_begin, key_end, fence FROM flow_checkpoints")]
        assert rows == [("acmeBank/warehouse", 0, 0xFFFF_FFFF, 1)]
        commit(session, binding, [], b"one")


@pytest.mark.parametrize(
    ("types", "value"),
    [
        (["string"], "äöü 😀 \u2028 '\"\\ \t\n\r"),
        (["string"], ""),
        (["string"], "\\N"),
        (["string"], "NULL"),
        (["integer"], 0),
        (["integer"], -(2**63)),
        (["integer"], 2**64),
        (["integer"], -(10**37)),
        (["boolean"], False),
        (["integer", "string"], "5"),
        (["integer", "string"], 5),
        (["null", "string"], None),
        (["null", "string"], "null"),
    ],
)
def test_every_key_is_loaded_as_it_was_stored(database: Database, types: list[str], value: Any) -> None:
    binding = source({"id": types}, {}).binding()
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"id": value}])
        (document,) = load(session, [(value,)])
        assert parse_exact(document.encode()) == {"id": value}

        commit(session, binding, [{"id": value, "again": True}], exists=True)
        (document,) = load(session, [(value,)])
        assert parse_exact(document.encode()) == {"id": value, "again": True}


def test_keys_that_differ_in_type_are_two(database: Database) -> None:
    binding = source({"id": ["boolean", "integer", "null", "string"]}, {}).binding()
    database.apply(binding)
    values = [None, "null", True, "true", 1, "1", "", '"1"']
    with database.session(binding) as session:
        commit(session, binding, [{"id": value} for value in values])

        assert load(session, [(value,) for value in values[3:6]]) == ['{"id":"1"}', '{"id":"true"}', '{"id":1}']
    assert database.query("SELECT count(*) FROM balances") == [(8,)]


def test_a_column_takes_no_value_of_another_type(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    with database.session(binding) as session:
        session.prepare(b"{}")
        with pytest.raises(EndpointError, match=r"column 'balance' of type \w+, key \['ann'\]: 'three' is no integer"):
            session.store(0, stored(binding, [{"account": "ann", "balance": "three"}]))


def test_a_session_needs_tables_as_they_should_be(database: Database) -> None:
    with pytest.raises(EndpointError, match="'flow_checkpoints' is not there"):
        database.open(BALANCES.binding())
    database.apply(BALANCES.binding(leave_out=["note"]))
    with pytest.raises(EndpointError, match="balances' is not as this version needs it"):
        database.open(BALANCES.binding())
