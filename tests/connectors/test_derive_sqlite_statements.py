"""Blocks are split by SQLite itself."""

from __future__ import annotations

import apsw
import pytest
from sqlite_derivation import script

from derive.errors import Issue
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.statements import Statement, read_block
from derive.position import Position


def read(text: str) -> list[Statement | Issue]:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (a, b)")
    guard = Guard(db)
    with guard:
        return list(read_block(guard, script(text), "the block"))


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("", []),
        (" \n;; ;", []),
        ("-- only a comment", []),
        ("/* never closed", []),
        ("SELECT 1", [0]),  # no semicolon
        ("SELECT 1; -- trailing comment", [0]),
        ("SELECT ';'; SELECT 2;", [0, 12]),  # a semicolon in a string
        ("-- a; b\n SELECT 1; ; SELECT 2", [9, 21]),  # and in a comment
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; SELECT 1; END; SELECT 2", [0, 71]),
        ("SELECT $p::(a;b); SELECT 2", [0, 18]),  # and in a parameter
        ("SELECT '/*'; SELECT '*/'", [0, 13]),  # a comment that is none
    ],
)
def test_a_block_is_split_into_statements(text: str, begins: list[int]) -> None:
    found = read(text)
    assert [each.begin for each in found if isinstance(each, Statement)] == begins
    assert len(found) == len(begins)


def test_a_statement_knows_its_parameters_and_columns() -> None:
    assert read(" INSERT INTO t VALUES ($a$b, $c) RETURNING $c, a AS x -- y\n") == [
        Statement(
            text=" INSERT INTO t VALUES ($a$b, $c) RETURNING $c, a AS x -- y\n",
            offset=0,
            begin=1,
            parameters=("a$b", "c"),
            columns=("$c", "x"),
            reads=frozenset({"t"}),
            writes=frozenset({"t"}),
            read_columns=frozenset({("t", "a")}),
            origins=(None, ("t", "a")),
        )
    ]


@pytest.mark.parametrize(
    ("text", "code", "position"),
    [
        ("SELECT nope FROM t", "E522", Position("lambda.sql", 1, 8, 4)),
        ("SELECT 1;\n  SELECT '😀ä', nope FROM t", "E522", Position("lambda.sql", 2, 16, 4)),  # SQLite counts bytes
        ("SELECT 1;\n  SELECT (1", "E522", Position("lambda.sql", 2, 3, 6)),  # where, SQLite does not say
        ("SELECT ?", "E523", Position("lambda.sql", 1, 8, 1)),
        ("SELECT 1;\nSELECT '\0'", "E524", Position("lambda.sql", 2, 9)),
        ("-- so\nbegin; SELECT 1", "E525", Position("lambda.sql", 2, 1, 5)),
        ("COMMIT", "E525", Position("lambda.sql", 1, 1, 6)),
        ("END TRANSACTION", "E525", Position("lambda.sql", 1, 1, 3)),
        ("ROLLBACK", "E525", Position("lambda.sql", 1, 1, 8)),
        ("ATTACH 'x.db' AS x", "E525", Position("lambda.sql", 1, 1, 6)),
        ("PRAGMA journal_mode = DELETE", "E525", Position("lambda.sql", 1, 1, 6)),
        ("VACUUM INTO 'x.db'", "E525", Position("lambda.sql", 1, 1, 6)),
        ("SAVEPOINT a", "E525", Position("lambda.sql", 1, 1, 9)),
        ("RELEASE a", "E525", Position("lambda.sql", 1, 1, 7)),
        ("ROLLBACK TO a", "E525", Position("lambda.sql", 1, 1, 8)),
    ],
)
def test_forbidden_statements_are_issues_at_their_positions(text: str, code: str, position: Position) -> None:
    issues = [each for each in read(text) if isinstance(each, Issue)]
    assert [(each.code, each.position) for each in issues] == [(code, position)]


def test_block_after_an_issue_is_still_checked() -> None:
    kinds = [each.code if isinstance(each, Issue) else each.text for each in read("SELECT x; COMMIT; SELECT 1;")]
    assert kinds == ["E522", "E525", " SELECT 1;"]
