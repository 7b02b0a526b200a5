"""Statements and their syntax, held against a real PostgreSQL: the same tags, rows and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_scripts import outcomes
from postgres_server import server
from psycopg import Connection

_NAMES = """between bigint bit boolean char character coalesce date dec decimal double exists extract float greatest
    grouping inout int integer interval json least national nchar none normalize nullif numeric out overlay position
    precision real row setof smallint substring time timestamp treat trim values varchar xml year zone""".split()  # noqa: SIM905 (a list would be a page)

SCRIPTS: dict[str, tuple[str, ...]] = {
    "names": (
        *(f"SELECT {name} FROM (SELECT 1 AS {name}) t" for name in _NAMES),
        *(f"SELECT t.{name} + 1, {name} * 2 FROM (SELECT 1 AS {name}) t WHERE {name} > 0" for name in _NAMES),
        *(f"SELECT count(*) FROM (SELECT 1 AS {name}) t GROUP BY {name} ORDER BY {name}" for name in _NAMES),
        "CREATE TABLE t (time int, timestamp int, interval int, real int, int int, date int, char int)",
        "INSERT INTO t (time, timestamp, interval, real, int, date, char) VALUES (1, 2, 3, 4, 5, 6, 7)",
        "UPDATE t SET time = timestamp, real = t.int + interval RETURNING time, real, date, char",
        "SELECT time, timestamp FROM t WHERE interval IN (3) AND int BETWEEN 1 AND 9 ORDER BY real, date DESC",
        "DELETE FROM t WHERE time = 2 AND char IS NOT NULL RETURNING interval::text, date || ''",
        "SELECT time '10:00', date '2020-01-02', timestamp '2020-01-02', interval '1 day', real '1.5', int '3'",
        "SELECT timestamp with time zone '2020-01-01 00:00+00', double precision '1.5', char '1'",
        "SELECT numeric '1.5', bigint '7', boolean 't', character varying '1', float '1.5', dec '2'",
        "SELECT interval(3)",
        "SELECT time(3)",
        "SELECT float(3)",
        "SELECT double precision",
        "SELECT double precision FROM (SELECT 1 AS double) t",
    ),
    "Unicode": (
        r"SELECT U&'d\0061t\+000061', U&'d!0061' UESCAPE '!', U&'\\', u&'a' 'b'",
        r"""SELECT 1 AS U&"d\0061t", 2 AS U&"d*0061t\" UESCAPE '*' """,
        r"SELECT U&'\D83D\DE00', U&'it''s'",
        r"SELECT U&'\D83D'",
        r"SELECT U&'\006'",
        r"SELECT U&'\0000'",
        r"SELECT U&'\+110000'",
        r"SELECT U&'a' UESCAPE '+'",
        r"SELECT U&'a' UESCAPE 'ab'",
        r"SELECT U&'a' UESCAPE x",
        r'SELECT U&""',
        r"SELECT uescape FROM (SELECT 1 AS uescape) t",
        r"SELECT U&'a' uescape",
        r"SELECT U&'x' || U&'!0041' UESCAPE '!'",
    ),
    "intervals": (
        *(
            f"SELECT INTERVAL '{text}' {fields}"
            for text in ("1", "-1.7", "1-2", "-1-2", "1 2", "1 2:03", "1:30", "1:30.25", "2 days 03:04:05.678901", "x")
            for fields in (
                *("", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "YEAR TO MONTH", "DAY TO HOUR"),
                *("DAY TO MINUTE", "DAY TO SECOND", "HOUR TO MINUTE", "HOUR TO SECOND", "MINUTE TO SECOND"),
                *("SECOND(2)", "DAY TO SECOND(0)"),
            )
        ),
        "SELECT CAST('1-2' AS interval year to month), '3'::interval day",
        "SELECT INTERVAL '1' MONTH TO DAY",
        "SELECT INTERVAL '1' YEAR TO DAY",
        "SELECT INTERVAL '1' year + INTERVAL '2' month",
    ),
    "maintenance": (
        "CREATE TABLE t (a int, b text)",
        "CREATE VIEW v AS SELECT a FROM t",
        "VACUUM",
        "ANALYZE",
        "ANALYSE t",
        "VACUUM t",
        "VACUUM FULL FREEZE VERBOSE ANALYZE t (a), t",
        "VACUUM (VERBOSE, ANALYZE, PARALLEL 2, TRUNCATE false) t",
        "ANALYZE VERBOSE t (a, b)",
        "ANALYZE (VERBOSE) t",
        "ANALYZE t (nothing)",
        "ANALYZE nothing",
        "VACUUM nothing",
        "VACUUM (nothing)",
        "ANALYZE (FULL)",
        "BEGIN",
        "ANALYZE t",
        "VACUUM t",
        "ROLLBACK",
        "SELECT vacuum, analyze_ FROM (SELECT 1 AS vacuum, 2 AS analyze_) x",
    ),
    "select into": (
        "SELECT a, a + 1 AS b INTO t FROM generate_series(1, 3) s(a)",
        "SELECT * INTO TABLE u FROM t WHERE a > 1 ORDER BY a LIMIT 1",
        "WITH x AS (SELECT a FROM t) SELECT a INTO UNLOGGED w FROM x UNION ALL SELECT b FROM t",
        "TABLE t",
        "TABLE u",
        "TABLE w",
        "SELECT a INTO t FROM t",
        "SELECT a FROM t UNION SELECT b INTO z FROM t",
        "SELECT * FROM (SELECT a INTO z FROM t) x",
        "SELECT (SELECT a INTO z FROM t)",
        "INSERT INTO t SELECT a INTO z FROM t",
        "CREATE TABLE y AS SELECT a INTO z FROM t",
        "SELECT INTO empty",
        "SELECT 1 AS a INTO z",
        "SELECT a * 2 AS a INTO TEMP z FROM t",
        "SELECT a FROM z",
        "DROP TABLE z",
        "BEGIN",
        "SELECT a INTO z2 FROM t",
        "ROLLBACK",
        "TABLE z2",
        "TABLE z",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        connection.autocommit = True
        yield connection


@pytest.mark.parametrize("name", SCRIPTS)
def test_statements_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
