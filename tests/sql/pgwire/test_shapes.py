"""Statements with constants in their text: the plan of their shape gives the answer of their own plan.

A comment keeps the server from the use of a shape, so each statement is its own oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sql_server import served

Connection = psycopg.Connection[Any]

TYPES = {
    "smallint": ["7", "-7", "70000", "'7'", "1.5"],
    "integer": ["7", "2147483648", "'x'", "7.0"],
    "bigint": ["7", "-9223372036854775808", "9223372036854775808"],
    "numeric(6,2)": ["7", "1.005", "'1.50'", "123456.7"],
    "double precision": ["7", "0.1", "'Infinity'", "'-0'"],
    "real": ["7", "'0.1'"],
    "text": ["'a'", "''", "'it''s'", "'ä'", "7"],
    "varchar(3)": ["'abc'", "'abc  '", "'abcd'"],
    "char(5)": ["'ab'", "'ab   '", "'abcdefg'"],
    "boolean": ["'t'", "'yes'", "'x'", "1"],
    "date": ["'2020-02-29'", "'2020-02-30'", "'2020-02-29 12:00'"],
    "timestamp": ["'2020-02-29 12:00'", "'2020-02-29T12:00:00.1234567'"],
    "timestamptz": ["'2020-02-29 12:00+02'", "'2020-02-29'"],
    "interval": ["'1 day'", "'24 hours'", "'x'"],
    "bytea": [r"'\x00ff'", r"'\001'", "'a'"],
    "jsonb": ["'1.0'", "'[1, 2]'", "'{'"],
    "uuid": ["'61626364-6566-6768-696a-6b6c6d6e6f70'", "'x'"],
    "integer[]": ["'{1,2}'", "'{1,'"],
}
FORMS = [
    "SELECT x, x = {0} FROM {1} WHERE x = {0} ORDER BY n",
    "SELECT n FROM {1} WHERE x >= {0} AND n < 3 OR n = 2 ORDER BY n",
    "SELECT x > {0}, count(*) FROM {1} GROUP BY x > {0} ORDER BY 1",
    "SELECT CASE WHEN x <> {0} THEN 'other' ELSE 'same' END FROM {1} ORDER BY n",
    "INSERT INTO {1} VALUES (100, {0}) RETURNING x",
    "INSERT INTO {1} (x, n) VALUES ({0}, 101), ({0}, 102)",
    "UPDATE {1} SET x = {0} WHERE n = 1 RETURNING n, x",
    "DELETE FROM {1} WHERE x = {0} RETURNING n",
]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        served(tmp_path_factory.mktemp("shapes")) as port,
        psycopg.connect(f"host=127.0.0.1 port={port} user=flow dbname=flow", autocommit=True) as opened,
    ):
        yield opened


def answer(connection: Connection, text: str) -> Any:
    """Return the columns, rows and tag of a statement, or its error with the place in the text."""
    try:
        cursor = connection.execute(text, prepare=False)
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_hint, error.diag.statement_position
    columns = [(column.name, column.type_code, column._fmod) for column in cursor.description or ()]
    return columns, cursor.fetchall() if cursor.description else None, cursor.statusmessage


def rows(connection: Connection, table: str) -> list[Any]:
    return connection.execute(f"SELECT n, x::text FROM {table} ORDER BY n, 2").fetchall()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", TYPES)
def test_constants_have_the_answer_of_their_own_plan(connection: Connection, kind: str) -> None:
    """The plan of each constant answers the constants after it, and again the first one."""
    names = [f"s{number}_{list(TYPES).index(kind)}" for number in range(2)]
    first, *others = TYPES[kind]
    for name in names:
        connection.execute(f"CREATE TABLE {name} (n integer, x {kind})")
        connection.execute(f"INSERT INTO {name} VALUES (1, {first}), (2, NULL)")
    for form in FORMS:
        is_write = not form.startswith("SELECT")
        for constant in [first, *others, first]:
            answers = []
            for name, comment in zip(names, ["", " /* its own plan */"], strict=True):
                found = answer(connection, form.format(constant, name) + comment)
                answers.append(repr(found).replace(name, "t"))
            assert answers[0] == answers[1], form.format(constant, kind)
            if is_write:
                assert rows(connection, names[0]) == rows(connection, names[1])
                for name in names:
                    connection.execute(f"TRUNCATE {name}")
                    connection.execute(f"INSERT INTO {name} VALUES (1, {first}), (2, NULL)")


def test_shape_is_planned_again_after_a_definition(connection: Connection) -> None:
    connection.execute("CREATE TABLE changing (a integer)")
    connection.execute("INSERT INTO changing VALUES (1)")
    assert connection.execute("SELECT * FROM changing WHERE a = 1").fetchall() == [(1,)]
    connection.execute("ALTER TABLE changing ADD COLUMN b text")
    assert connection.execute("SELECT * FROM changing WHERE a = 1").fetchall() == [(1, None)]


def test_shape_in_a_failed_transaction_is_refused(connection: Connection) -> None:
    connection.execute("BEGIN")
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT 1 FROM nowhere WHERE a = 1")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        connection.execute("SELECT 1 WHERE 1 = 1")
    connection.execute("ROLLBACK")


def test_several_statements_and_one_with_a_semicolon_run(connection: Connection) -> None:
    connection.execute("CREATE TABLE several (a integer)")
    connection.execute("INSERT INTO several VALUES (1); UPDATE several SET a = 2 WHERE a = 1")
    connection.execute("UPDATE several SET a = 3 WHERE a = 2;")
    assert connection.execute("SELECT a FROM several WHERE a = 3;").fetchall() == [(3,)]
