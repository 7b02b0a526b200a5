"""An INSERT that returns parameters is run as two statements where these are sure to do the same, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_derivation import derivation, run, script

from connectors.derive_sqlite.program import split_returning
from derive.errors import LambdaError
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.statements import Statement, read_block

TABLES = """
    CREATE TABLE t (a, b, c DEFAULT 7, PRIMARY KEY (a), UNIQUE (b), CHECK (c < 9));
    CREATE TABLE "my returning" (a ANY, b ANY) STRICT;
    CREATE TABLE log (a);
    CREATE VIEW v AS SELECT a, b FROM t;
    CREATE TRIGGER written INSTEAD OF INSERT ON v BEGIN INSERT INTO t (a, b) VALUES (new.a, new.b); END;
    CREATE TABLE logged (a UNIQUE);
    CREATE TRIGGER noted AFTER INSERT ON logged BEGIN INSERT INTO log VALUES (new.a); END;
    CREATE TABLE picky (a UNIQUE);
    CREATE TRIGGER odd BEFORE INSERT ON picky WHEN new.a % 2 BEGIN SELECT raise(IGNORE); END;
"""


def opened() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(TABLES).fetchall()
    return db


def statement(db: apsw.Connection, sql: str) -> Statement:
    guard = Guard(db)
    with guard:
        (only,) = read_block(guard, script(sql), "the lambda")
    assert isinstance(only, Statement)
    return only


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        (
            "INSERT INTO t (a, b) VALUES ($x, $y) ON CONFLICT DO NOTHING RETURNING $z, $x;",
            ["INSERT INTO t (a, b) VALUES ($x, $y) ON CONFLICT DO NOTHING ;", "SELECT $z,$x WHERE changes();"],
        ),
        (
            "insert or ignore into T values ($x, (SELECT $y), 1) -- so\n returning /* it */ $x",
            ["insert or ignore into T values ($x, (SELECT $y), 1) -- so\n ;", "SELECT $x WHERE changes();"],
        ),
        (
            "INSERT INTO t (a) VALUES ($x) ON CONFLICT (a) DO UPDATE SET b = $y WHERE c RETURNING $z",
            [
                "INSERT INTO t (a) VALUES ($x) ON CONFLICT (a) DO UPDATE SET b = $y WHERE c ;",
                "SELECT $z WHERE changes();",
            ],
        ),
        # A trigger that writes no other table is no hindrance.
        ("INSERT INTO picky VALUES ($x) RETURNING $x", ["INSERT INTO picky VALUES ($x) ;", "SELECT $x WHERE changes();"]),
        # One field may have two parameters.
        (
            "INSERT INTO t (a, b) VALUES ($x, :x) RETURNING $x",
            ["INSERT INTO t (a, b) VALUES ($x, :x) ;", "SELECT $x WHERE changes();"],
        ),
        # What is quoted says nothing.
        (
            "INSERT INTO \"my returning\" VALUES ($x, ' RETURNING $y') RETURNING $x",
            ["INSERT INTO \"my returning\" VALUES ($x, ' RETURNING $y') ;", "SELECT $x WHERE changes();"],
        ),
        ("INSERT INTO t (a) VALUES ($x) RETURNING ' RETURNING $x'", None),
        ("INSERT INTO t (a) VALUES ($x) ON CONFLICT (a) DO UPDATE SET b = ' RETURNING $x'", None),
        # More than parameters is returned.
        ("INSERT INTO t (a) VALUES ($x) RETURNING a", None),
        ("INSERT INTO t (a) VALUES ($x) RETURNING $x, a", None),
        ("INSERT INTO t (a) VALUES ($x) RETURNING $x + 1", None),
        ("INSERT INTO t (a) VALUES ($x) RETURNING ($x)", None),
        ("INSERT INTO t (a) VALUES ($x) RETURNING $x AS y", None),
        # Nothing is returned, or no parameter is written.
        ("INSERT INTO t (a) VALUES ($x)", None),
        ("INSERT INTO t DEFAULT VALUES RETURNING $x", None),
        ("INSERT INTO t (a) VALUES (1) RETURNING $x", None),
        # Rows may be several.
        ("INSERT INTO t (a) VALUES ($x), ($y) RETURNING $x", None),
        ("INSERT INTO t (a) SELECT $x RETURNING $x", None),
        ("WITH w AS (SELECT 1) INSERT INTO t (a) VALUES ($x) RETURNING $x", None),
        ("UPDATE t SET a = $x RETURNING $x", None),
        ("DELETE FROM t WHERE a = $x RETURNING $x", None),
        # What triggers write in the place of a view's row is not counted; one that writes elsewhere is left alone.
        ("INSERT INTO v VALUES ($x, $y) RETURNING $x", None),
        ("INSERT INTO logged VALUES ($x) RETURNING $x", None),
    ],
)  # fmt: skip
def test_returning_clauses_are_split_from_statements(sql: str, texts: list[str] | None) -> None:
    db = opened()
    parts = split_returning(db, statement(db, sql))
    assert [part.text for part in parts] == (texts or [sql])


_CONFLICTS = st.sampled_from(["", "OR IGNORE ", "OR REPLACE ", "OR FAIL ", "OR ABORT "])
_TARGETS = st.sampled_from(["t (a, b)", "t (b, a)", '"my returning"', "logged (a, rowid)", "picky (a, rowid)"])
_VALUES = st.sampled_from(["($x, $y)", "($y, $x)", "($x, 1)", "($x + 1, $y || '')", "((SELECT max(a) FROM t), $x)"])
_UPSERTS = st.sampled_from(
    [
        "",
        " ON CONFLICT DO NOTHING",
        " ON CONFLICT (a) DO UPDATE SET b = excluded.b WHERE b <> $y ON CONFLICT DO NOTHING",
    ]
)
_BOUND = st.sampled_from([None, 0, 1, 2, 3, 5.0, -0.0, 2.5, "", "1", "a", b"", b"\0", 1 << 62])
_DOCUMENTS = st.lists(st.tuples(_BOUND, _BOUND), min_size=1, max_size=12)


@given(_CONFLICTS, _TARGETS, _VALUES, _UPSERTS, st.sampled_from(["$x", "$y, $x", "$x,$x"]), _DOCUMENTS)
def test_split_statements_equal_the_original_statement(
    conflict: str, target: str, values: str, upsert: str, returned: str, documents: list[tuple[Any, Any]]
) -> None:
    """The oracle is SQLite: the rows that it returns, the errors, and what tables hold then."""
    sql = f"INSERT {conflict}INTO {target} VALUES {values}{upsert} RETURNING {returned}"
    db = opened()
    try:
        one = statement(db, sql)
    except (AssertionError, ValueError):  # the upsert names a column that is no key
        return
    parts = split_returning(db, one)
    assert outcome([one], documents) == outcome(parts, documents)


def outcome(parts: Sequence[Statement], documents: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """What statements return for documents, up to an error, and the rows that tables hold then."""
    db = opened()
    reporting: list[Any] = []
    db.execute("BEGIN")
    for x, y in documents:
        named = {"x": x, "y": y}
        values = [named[name] for part in parts for name in part.parameters]
        try:
            reporting += map(repr, db.execute(";".join(part.text for part in parts), values).fetchall())
        except apsw.Error as error:
            reporting.append(repr(error))
            break
    tables = ("t", '"my returning"', "log", "logged", "picky")
    return reporting, [repr(row) for table in tables for row in db.execute(f"SELECT rowid, * FROM {table}")]


TRANSFERS = [{"id": number, "sender": sender, "amount": 5} for number, sender in enumerate("abacbd")]
MIGRATIONS = ["CREATE TABLE seen (sender TEXT PRIMARY KEY CHECK (sender <> 'd'), n INTEGER)"]


def test_documents_are_distinguished_beside_other_statements() -> None:
    """Its neighbours count changes of their own."""
    sql = (
        "DELETE FROM seen WHERE $id = 3; INSERT INTO seen VALUES ($sender, $id) ON CONFLICT DO NOTHING"
        " RETURNING $id, $amount; UPDATE seen SET n = n + changes()"
    )
    assert run(derivation(sql, migrations=MIGRATIONS), TRANSFERS[:5]) == [
        (0, {"id": 0, "amount": 5}),
        (1, {"id": 1, "amount": 5}),
        (3, {"id": 3, "amount": 5}),
        (4, {"id": 4, "amount": 5}),
    ]


def test_the_document_that_fails_is_reported() -> None:
    sql = "DELETE FROM seen WHERE n < 0; INSERT INTO seen VALUES ($sender, $id) ON CONFLICT DO NOTHING RETURNING $id"
    with pytest.raises(LambdaError) as caught:
        run(derivation(sql, migrations=MIGRATIONS), TRANSFERS)
    assert 'CHECK constraint failed: sender <> \'d\'; the document was {"id":5,"sender":"d"' in caught.value.message
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (1, 31)
