"""A conflict that would end the transaction is found wherever SQL can say it, and nowhere else."""

from __future__ import annotations

from contextlib import suppress

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.lambda_sql.statements import find_rollback, shorten


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("INSERT OR ROLLBACK INTO t VALUES (1)", 10),
        ("insert /* or */ or -- x\n rollback into t values (1)", 25),
        ("UPDATE OR ROLLBACK t SET a = 1", 10),
        ("WITH x AS (SELECT 1) INSERT OR ROLLBACK INTO t SELECT * FROM x", 31),
        ("CREATE TABLE t (a PRIMARY KEY ON CONFLICT ROLLBACK)", 42),
        ("CREATE TABLE t (a, UNIQUE (a) ON CONFLICT\nROLLBACK)", 42),
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT raise ( ROLLBACK, 'no'); END", 56),
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT OR ROLLBACK INTO u VALUES (1); END", 51),
        ("INSERT OR REPLACE INTO t VALUES ('INSERT OR ROLLBACK')", None),
        ("INSERT OR ABORT INTO t VALUES (1) -- OR ROLLBACK", None),
        ("SELECT a OR rollback, 'it''s', [ON CONFLICT ROLLBACK], `ON CONFLICT ROLLBACK` FROM t", None),
        ('SELECT "INSERT OR ROLLBACK", $p::(INSERT\tOR) FROM t', None),
        ("INSERT OR IGNORE INTO rollback (rollback) VALUES (x'00')", None),
        ("REPLACE INTO t VALUES ($insert, $or, $rollback)", None),
    ],
)
def test_find_rollback_returns_the_clause(sql: str, place: int | None) -> None:
    assert find_rollback(sql) == place


_BETWEEN = st.sampled_from([" ", "\n", "/**/", "-- x\n", "\t/* ' */ "])
_WORDS = st.sampled_from(["'insert or rollback'", "[or]", '"or"', "rollback", "1.5", "x'00'", "(SELECT rollback)"])


@given(st.sampled_from(["ROLLBACK", "ABORT", "FAIL", "IGNORE", "REPLACE"]), st.lists(_BETWEEN, min_size=3), _WORDS)
def test_find_rollback_agrees_with_sqlite(policy: str, between: list[str], value: str) -> None:
    """The oracle is SQLite: a conflict, and whether the transaction is still there."""
    db = apsw.Connection(":memory:")
    db.execute(
        'CREATE TABLE t ("or", rollback, k UNIQUE ON CONFLICT FAIL); INSERT INTO t VALUES (1, 2, 3); BEGIN'
    ).fetchall()
    one, two, three, *_ = between
    sql = f"INSERT{one}OR{two}{policy}{three}INTO t SELECT {value}, rollback, 3 FROM t"
    with suppress(apsw.ConstraintError):
        db.execute(sql).fetchall()
    assert (find_rollback(sql) is not None) == (not db.in_transaction)


@pytest.mark.parametrize(
    ("sql", "shorter"),
    [
        ("-- Why.\nSELECT  $a , ( $b ) AS  c\nWHERE $a >= 1 ; -- so", "SELECT ?1,(?2)AS c WHERE ?1>=1;"),
        ("SELECT '-- $a  ' || \"  $b\", [ $a ], 1 - -1, a/**/b", "SELECT '-- $a  '||\"  $b\",[ $a ],1 - -1,a b"),
        ("SELECT $p::(a b), $b", "SELECT $p::(a b), $b"),
        ("SELECT :a, @b, $a", "SELECT ?1,?2,?1"),
        ("SELECT $missing", "SELECT $missing"),
        ("", ""),
    ],
)
def test_shorten_removes_comments_and_spaces(sql: str, shorter: str) -> None:
    assert shorten(sql, ["a", "b"]) == shorter


_PIECES = st.sampled_from(
    [
        "$a",
        "$b",
        "1",
        "-",
        "+",
        "*",
        "/",
        "<",
        "=",
        "(",
        ")",
        ",",
        "'x  y'",
        '"c"',
        "c",
        "NOT",
        "IS",
        "||",
        "0.5",
        "x'00'",
    ]
)


@given(st.lists(st.tuples(_PIECES, st.sampled_from(["", " ", "  ", "\n", "/* $a */", " -- x\n"])), max_size=8))
def test_shortened_statements_compile_to_the_same_instructions(pieces: list[tuple[str, str]]) -> None:
    """The oracle is SQLite: the instructions that it makes of a statement."""
    sql = "SELECT " + "".join(piece + between for piece, between in pieces) + " FROM t WHERE c = $b"
    names: list[str] = []

    def look(cursor: apsw.Cursor, *_: object) -> bool:
        names.extend(map(str, cursor.bindings_names))
        return True

    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (c)")
    db.exec_trace = look
    try:
        expected = db.execute(f"EXPLAIN {sql}", {"a": None, "b": None}).fetchall()
    except (apsw.Error, KeyError):  # it is no statement, or two parameters have become one name
        return
    db.exec_trace = None
    assert db.execute(f"EXPLAIN {shorten(sql, names)}", (None,) * len(names)).fetchall() == expected
