"""Recorded changes of rows, compared with the tables before and after."""

from __future__ import annotations

import apsw
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.document.pointer import MISSING
from derive.errors import UsageError
from derive.preview.recording import RowChanges

TABLES = """
CREATE TABLE named (k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE numbered (k INTEGER PRIMARY KEY, v);
CREATE TABLE plain (k, v);
CREATE TABLE flow_shard (token);
"""
NAMES = ("named", "numbered", "plain")
KEYS = {"named": "k", "numbered": "k", "plain": "rowid"}
key, value = st.integers(1, 3), st.integers(1, 3)
statements = st.one_of(
    st.builds(
        lambda table, k, v: (f"INSERT OR REPLACE INTO {table}({KEYS[table]}, v) VALUES (?, ?)", (k, v)),
        st.sampled_from(NAMES),
        key,
        value,
    ),
    st.builds(
        lambda table, k, v: (f"UPDATE {table} SET v = ? WHERE {KEYS[table]} = ?", (v, k)),
        st.sampled_from(NAMES),
        key,
        value,
    ),
    st.builds(
        lambda table, k, n: (f"UPDATE OR REPLACE {table} SET {KEYS[table]} = ? WHERE {KEYS[table]} = ?", (n, k)),
        st.sampled_from(NAMES),
        key,
        key,
    ),
    st.builds(lambda table, k: (f"DELETE FROM {table} WHERE {KEYS[table]} = ?", (k,)), st.sampled_from(NAMES), key),
    st.builds(lambda table: (f"DELETE FROM {table}", ()), st.sampled_from(NAMES)),
)


def contents(db: apsw.Connection) -> dict[tuple[str, object], object]:
    return {
        (table, row[0]): {"k": row[1], "v": row[2]}
        for table in NAMES
        for row in db.execute(f"SELECT {KEYS[table]}, k, v FROM {table}")
    }


@given(st.lists(st.lists(statements, max_size=6), min_size=1, max_size=3))
@settings(max_examples=examples(200))
def test_row_changes_lead_from_the_old_rows_to_the_new_rows(documents: list[list[tuple[str, tuple[int, ...]]]]) -> None:
    db = apsw.Connection(":memory:")
    db.execute(TABLES)
    db.execute("INSERT INTO named VALUES ('1', 1); INSERT INTO numbered VALUES (1, 1); INSERT INTO plain VALUES (9, 1)")
    changes = RowChanges(db)
    for document in documents:
        before = contents(db)
        for sql, values in document:
            db.execute(sql, values)
        after = contents(db)
        expected = [
            (table, before.get((table, k), MISSING), after.get((table, k), MISSING))
            for table, k in before.keys() | after.keys()
            if before.get((table, k)) != after.get((table, k))
        ]
        found = [(change.table, change.old, change.new) for change in changes.take()]
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_row_changes_leave_out_tables_of_the_runtime() -> None:
    db = apsw.Connection(":memory:")
    db.execute(TABLES + "CREATE VIRTUAL TABLE words USING fts5(text)")
    changes = RowChanges(db)
    db.authorizer = lambda *_: apsw.SQLITE_OK
    db.execute("INSERT INTO flow_shard VALUES ('x'); INSERT INTO words VALUES ('tea'); INSERT INTO plain VALUES (1, 2)")

    assert [change.table for change in changes.take()] == ["plain"]
    assert db.authorizer is not None
    changes.close()
    db.execute("INSERT INTO plain VALUES (1, 2)")
    assert changes.take() == []


@pytest.mark.parametrize("text", ["ß" * 3, "\x00"])
def test_row_changes_show_any_text(text: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute(TABLES)
    changes = RowChanges(db)
    db.execute("INSERT INTO named VALUES (?, ?)", (text, b"\x01"))

    assert [change.new for change in changes.take()] == [{"k": text, "v": "AQ=="}]


def test_row_changes_refuse_text_that_is_not_utf8() -> None:
    db = apsw.Connection(":memory:")
    db.execute(TABLES)
    changes = RowChanges(db)
    db.execute("INSERT INTO named VALUES (CAST(x'ff' AS TEXT), 1)")

    with pytest.raises(UsageError, match="a changed row of the table 'named' has a text that is not valid UTF-8"):
        changes.take()
