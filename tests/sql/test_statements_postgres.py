"""Statements and their syntax, held against a real PostgreSQL: the same tags, rows and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

_NAMES = """between bigint bit boolean char character coalesce date dec decimal double exists extract float greatest
    grouping inout int integer interval json least national nchar none normalize nullif numeric out overlay position
    precision real row setof smallint substring time timestamp treat trim values varchar xml year zone""".split()  # noqa: SIM905 (a list would be a page)

_LEVEL = "SET TRANSACTION ISOLATION LEVEL"

SCRIPTS: dict[str, tuple[str, ...]] = {
    "isolation levels": (
        "CREATE TABLE t (a int)",
        *(
            statement
            for before, after in (
                ("SELECT 1", f"{_LEVEL} SERIALIZABLE"),
                ("SELECT a FROM t", f"{_LEVEL} READ COMMITTED"),
                ("INSERT INTO t VALUES (1)", f"{_LEVEL} REPEATABLE READ"),
                ("CREATE TABLE u (a int)", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
                ("SET LOCAL work_mem = '4MB'", f"{_LEVEL} SERIALIZABLE"),
                ("SAVEPOINT a", f"{_LEVEL} SERIALIZABLE"),
                ("BEGIN READ ONLY", "INSERT INTO t VALUES (1)"),
            )
            for statement in ("BEGIN", before, after, "ROLLBACK")
        ),
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "SELECT 1",
        f"{_LEVEL} SERIALIZABLE",
        f"{_LEVEL} READ COMMITTED",
        "ROLLBACK",
        "BEGIN READ ONLY",
        "SELECT 1",
        "SET TRANSACTION READ WRITE",
        "ROLLBACK",
    ),
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
        "SELECT FROM t",
        "SELECT FROM t WHERE false",
        "SELECT FROM t ORDER BY a LIMIT 2",
        "SELECT",
        "SELECT INTO empty",
        "TABLE empty",
        "SELECT INTO empty_rows FROM t",
        "TABLE empty_rows",
        "ALTER TABLE empty_rows ADD COLUMN a int",
        "TABLE empty_rows",
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
    "rows by keys after a change of a type": (
        "CREATE TABLE t (k int PRIMARY KEY, a int)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "ALTER TABLE t ALTER a TYPE numeric USING a + 0.5",
        "SELECT a FROM t WHERE k = 2",
        "SELECT k FROM t WHERE a = 1.5",
        "ALTER TABLE t ALTER a TYPE timestamp USING timestamp '2020-01-01' + k * interval '1 day'",
        "SELECT a FROM t WHERE k >= 2",
        "SELECT k FROM t WHERE a = '2020-01-02'",
    ),
    "set of several columns": (
        "CREATE TABLE t (k int PRIMARY KEY, a int, b text)",
        "CREATE TABLE u (k int, x bigint, y text)",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')",
        "INSERT INTO u VALUES (1, 10, 'x'), (2, 20, 'y'), (2, 21, 'z')",
        "UPDATE t SET (a, b) = (SELECT 7, 'seven') WHERE k = 3 RETURNING *",
        "UPDATE t SET (a, b) = (SELECT x, y FROM u WHERE u.k = t.k) WHERE k <> 2 RETURNING *",
        "UPDATE t SET (a, b) = (SELECT x, y FROM u WHERE u.k = t.k)",
        "UPDATE t SET (b, a) = (SELECT y, x FROM u WHERE u.k = t.k ORDER BY x DESC LIMIT 1), k = k + 10 RETURNING *",
        "UPDATE t SET (a, b) = ROW(k, b || '!') RETURNING *",
        "UPDATE t SET (a, b) = (k + 1, DEFAULT) RETURNING *",
        "UPDATE t SET (a) = (SELECT 5)",
        "UPDATE t SET (a, b) = (SELECT 1)",
        "UPDATE t SET (a, b) = (SELECT 1, 'x', 3)",
        "UPDATE t SET (a, b) = ROW(1)",
        "UPDATE t SET (a, b) = 1",
        "UPDATE t SET (a, a) = (SELECT 1, 2)",
        "UPDATE t SET (a, nothing) = (SELECT 1, 2)",
        "UPDATE t SET (a, b) = (SELECT 'x', 1)",
        "INSERT INTO t VALUES (11, 0, '') ON CONFLICT (k) DO UPDATE SET (a, b) = (SELECT excluded.a + 1, t.b || 'c')",
        "TABLE t",
        "UPDATE t SET (a, b) = (VALUES (3, 'three'))",
        "TABLE t",
    ),
    "with writes": (
        "CREATE TABLE t (k int PRIMARY KEY, a int)",
        "CREATE TABLE log (id int GENERATED ALWAYS AS IDENTITY, k int, note text DEFAULT 'n')",
        "CREATE TABLE o (k int, a numeric(6,2))",
        "WITH d AS (INSERT INTO t VALUES (1, 10), (2, 20) RETURNING k, a) SELECT * FROM d",
        "WITH d AS (INSERT INTO t VALUES (3, 30) RETURNING *) SELECT d.a, (SELECT count(*) FROM t) FROM d",
        "WITH d AS (UPDATE t SET a = a + 1 RETURNING k, a) SELECT d.k, d.a, t.a FROM d JOIN t USING (k)",
        "WITH d AS (DELETE FROM t WHERE k = 1 RETURNING *) INSERT INTO o SELECT * FROM d",
        ("WITH d AS (DELETE FROM t WHERE k = 2 RETURNING *), i AS (INSERT INTO o SELECT k, a FROM d RETURNING a)"
        " INSERT INTO log (k, note) SELECT d.k, i.a::text FROM d, i RETURNING *"),
        "TABLE t",
        "TABLE o",
        "TABLE log",
        "WITH d AS (INSERT INTO o VALUES (5, 5)) SELECT 1",
        "WITH d AS (INSERT INTO o VALUES (6, 6)) SELECT * FROM d",
        "WITH d AS (INSERT INTO o VALUES (6, 6)) INSERT INTO log (k) SELECT k FROM d",
        ("WITH q AS (SELECT 7 AS n), d(x) AS (INSERT INTO o SELECT n, n FROM q RETURNING k, a), r AS (SELECT x, a FROM d)"
        " SELECT * FROM r, q"),
        "WITH d AS (INSERT INTO o VALUES (8, 8) RETURNING k), d AS (SELECT 1) SELECT * FROM d",
        "SELECT * FROM (WITH d AS (DELETE FROM o RETURNING *) SELECT * FROM d) x",
        "CREATE VIEW v AS WITH d AS (DELETE FROM o RETURNING *) SELECT * FROM d",
        "WITH d AS (INSERT INTO t VALUES (3, 3) RETURNING *), e AS (INSERT INTO o VALUES (9, 9)) SELECT * FROM d",
        "WITH d AS (INSERT INTO t VALUES (3, 3) ON CONFLICT (k) DO UPDATE SET a = excluded.a RETURNING *) SELECT * FROM d",
        "WITH d AS (UPDATE nothing SET a = 1 RETURNING *) SELECT * FROM d",
        "WITH d AS (DELETE FROM o WHERE k = 7 RETURNING a) UPDATE t SET a = (SELECT a FROM d) RETURNING *",
        "WITH d AS (UPDATE t SET a = a * 2 RETURNING a) DELETE FROM o USING d WHERE o.k = 5 RETURNING o.*, d.a",
        "PREPARE with_writes AS WITH d AS (INSERT INTO o VALUES ($1, $2) RETURNING *) SELECT a, $3 + 1 FROM d WHERE k < $4",
        "EXECUTE with_writes (12, 1.5, 1, 100)",
        "BEGIN",
        "INSERT INTO o VALUES (20, 20)",
        ("WITH d AS (DELETE FROM o WHERE k >= 12 RETURNING k), e AS (INSERT INTO log (k) SELECT k FROM d) SELECT count(*)"
        " FROM d, o"),
        "SELECT count(*) FROM o",
        "ROLLBACK",
        "TABLE o",
        "TABLE t",
        "SELECT k, note FROM log",
        "WITH d AS (SELECT 1 AS k) SELECT * FROM d",
    ),
    "with writes of other relations": (
        "CREATE TEMP TABLE tt (a int)",
        "CREATE TABLE u (a int)",
        "INSERT INTO tt VALUES (1),(2)",
        "WITH d AS (DELETE FROM tt WHERE a = 1 RETURNING a) INSERT INTO u SELECT a FROM d RETURNING a",
        "CREATE VIEW v AS SELECT a + 1 AS b FROM u",
        (
            "WITH d AS (INSERT INTO tt SELECT b FROM v RETURNING a) SELECT d.a, v.b, (SELECT count(*) FROM"
            " pg_class WHERE relname = 'u') FROM d, v"
        ),
        "TABLE tt",
        (
            "WITH d AS (INSERT INTO u SELECT g FROM generate_series(1, 5000) g RETURNING a) SELECT count(*),"
            " sum(a) FROM d"
        ),
        "WITH d AS (DELETE FROM u RETURNING a) SELECT count(*), sum(a), (SELECT count(*) FROM u) FROM d",
        (
            "WITH d AS (UPDATE tt SET a = 1 RETURNING 'x'::text AS t, a::numeric(5,2) AS n, NULL::jsonb AS j)"
            " SELECT * FROM d"
        ),
        "WITH d AS (INSERT INTO u VALUES (random()::int * 0 + 4) RETURNING a) SELECT * FROM d",
        "WITH d AS (INSERT INTO u VALUES (5) RETURNING a) SELECT a FROM d WHERE a IN (SELECT a FROM u)",
        (
            "WITH d AS (INSERT INTO u VALUES (6) RETURNING a), e AS (SELECT a FROM d UNION ALL SELECT a FROM u)"
            " SELECT * FROM e ORDER BY a FETCH FIRST 1 ROW WITH TIES"
        ),
        "WITH d AS (INSERT INTO u DEFAULT VALUES RETURNING *) SELECT * FROM d",
        "WITH d AS (INSERT INTO d VALUES (1) RETURNING *) SELECT * FROM d",
        "WITH u AS (INSERT INTO u VALUES (9) RETURNING *) SELECT count(*) FROM u",
    ),
    "rows": (
        "CREATE TABLE t (a int, b int, c text)",
        "INSERT INTO t VALUES (1,2,'x'), (1,NULL,'y'), (NULL,3,'z'), (2,1,'x'), (NULL,NULL,NULL), (1,2,'w')",
        "SELECT a, b, c, row_number() OVER (ORDER BY (a, b), c) FROM t",
        "SELECT a, b, c, row_number() OVER (ORDER BY (a, b) DESC, c) FROM t",
        "SELECT a, b, c, row_number() OVER (ORDER BY ROW(a, b) NULLS FIRST, c) FROM t",
        "SELECT c, rank() OVER (PARTITION BY (a, b) ORDER BY c) FROM t",
        "SELECT array_agg(c ORDER BY (a, b) DESC, c) FROM t",
        "SELECT a FROM t ORDER BY (b, a) LIMIT 2",
        "SELECT -a AS a FROM t ORDER BY (a, b) LIMIT 1",
        "SELECT a, b FROM t ORDER BY (2, 1), a, b LIMIT 2",
        "SELECT a FROM t UNION SELECT b FROM t ORDER BY (a, 1)",
        "SELECT a, count(*) FROM t GROUP BY a ORDER BY (count(*), a) DESC LIMIT 1",
        "SELECT * FROM t WHERE (a, b) = (SELECT 1, 2)",
        "SELECT c, (a, b) < (SELECT 1, 3), (a, b) >= (SELECT 1, 2 WHERE false) FROM t",
        "SELECT * FROM t WHERE (a, b) = (SELECT x.a, x.b FROM t x WHERE x.c = t.c AND x.c <> 'x')",
        "SELECT * FROM t WHERE (a, b) = (SELECT a, b FROM t)",
        "SELECT (1, 2) = (SELECT 1)",
        "SELECT (1, 2) = (SELECT 1, 2, 3)",
        "SELECT (1, 'a') = (SELECT 1, 2)",
        "SELECT (1, 2) IS NULL, ROW(NULL, NULL) IS NULL, ROW(1, NULL) IS NULL, ROW(1, NULL) IS NOT NULL",
        "SELECT (1, 2) BETWEEN (0, 0) AND (2, 2), (1, 2) NOT BETWEEN (0, 0) AND (1, 1), (1, NULL) < (2, NULL)",
        "SELECT * FROM t WHERE (a, b) NOT IN ((1, 2), (2, 1))",
    ),
    "ties": (
        "CREATE TABLE t (a int, b int)",
        "INSERT INTO t SELECT k / 3, k FROM generate_series(1, 12) s(k)",
        *(
            f"SELECT a{more} FROM t ORDER BY a {direction} {offset} FETCH FIRST {count} ROWS WITH TIES"
            for more in ("", ", a + 1")
            for direction in ("", "DESC NULLS LAST")
            for offset in ("", "OFFSET 3", "OFFSET 2 ROWS")
            for count in ("", "0", "1", "4", "100", "(1 + 1)", "NULL")
        ),
        "SELECT a FROM t FETCH FIRST 2 ROWS WITH TIES",
        "SELECT a FROM t ORDER BY a FETCH FIRST -1 ROWS WITH TIES",
        "SELECT a FROM t ORDER BY a FETCH FIRST 'x' ROWS WITH TIES",
        "SELECT DISTINCT a % 2 FROM t ORDER BY 1 FETCH NEXT ROW WITH TIES",
        "SELECT count(*) FROM (SELECT b FROM t ORDER BY a OFFSET 1 FETCH FIRST 3 ROWS WITH TIES) x",
        "SELECT a FROM t UNION ALL SELECT a FROM t ORDER BY a FETCH FIRST 3 ROWS WITH TIES",
        "SELECT a, count(*) FROM t GROUP BY a ORDER BY count(*) DESC FETCH FIRST 1 ROWS WITH TIES",
        "PREPARE p AS SELECT a FROM t ORDER BY a OFFSET $2 FETCH FIRST $1 ROWS WITH TIES",
        "EXECUTE p (1, 1)",
        "EXECUTE p (4, 0)",
        "EXECUTE p (NULL, NULL)",
    ),
    "frames": (
        "CREATE TABLE m (k int, n numeric, f float, d date, at timestamp, h time, i interval, t text)",
        "INSERT INTO m VALUES (1, 1, 1, '2020-01-01', '2020-01-01', '10:00', '1 day', 'x')",
        "SELECT sum(k) OVER (ORDER BY t RANGE 1 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY d RANGE 1 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k RANGE 1.5 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k RANGE -1 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k RANGE BETWEEN CURRENT ROW AND -1 FOLLOWING) FROM m",
        "SELECT sum(k) OVER (ORDER BY d RANGE '-1 day' PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k ROWS -1 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k GROUPS BETWEEN 1 PRECEDING AND -1 FOLLOWING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k ROWS NULL PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k RANGE NULL PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k ROWS 1.5 PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k ROWS 'x' PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k ROWS k PRECEDING) FROM m",
        "SELECT sum(k) OVER (ORDER BY k, d RANGE 1 PRECEDING) FROM m",
        "SELECT sum(k) OVER (GROUPS 1 PRECEDING) FROM m",
        "SELECT nth_value(k, 0) OVER (ORDER BY k GROUPS 1 PRECEDING) FROM m",
        "SELECT nth_value(k, NULL) OVER (ORDER BY k GROUPS 1 PRECEDING) FROM m",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_statements_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []


_MEASURES = ("CREATE TABLE m (k int, p text, x int, d date, at timestamp, h time)",)
_FRAMES = (
    *("RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING", "RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING", "RANGE 3 PRECEDING"),
    *("GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW", "GROUPS BETWEEN 1 FOLLOWING AND 2 FOLLOWING", "GROUPS 2 PRECEDING"),
    *("RANGE UNBOUNDED PRECEDING", "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "RANGE CURRENT ROW"),
    *("RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING"),
)
_WINDOWS = (
    *(
        f"SELECT k, sum(k) OVER w, count(*) OVER w, min(p) OVER w FROM m WINDOW w AS (ORDER BY x {frame} {excluded})"
        for frame in _FRAMES
        for excluded in ("", "EXCLUDE CURRENT ROW", "EXCLUDE GROUP", "EXCLUDE TIES", "EXCLUDE NO OTHERS")
    ),
    *(
        f"SELECT k, first_value(k) OVER w, last_value(k) OVER w, nth_value(k, 2) OVER w FROM m"
        f" WINDOW w AS (PARTITION BY p ORDER BY k {direction} {frame})"
        for direction in ("", "DESC")
        for frame in _FRAMES
    ),
    *(
        f"SELECT k, first_value(x) OVER w, last_value(x) OVER w, max(k) OVER w FROM m"
        f" WINDOW w AS (PARTITION BY p ORDER BY x {frame} EXCLUDE {excluded})"
        for frame in _FRAMES
        for excluded in ("CURRENT ROW", "GROUP", "TIES")
    ),
    *(
        f"SELECT k, first_value(k) OVER w, last_value(k) OVER w, sum(x) OVER w FROM m WINDOW w AS (ORDER BY k ROWS"
        f" BETWEEN {begin} AND {end} EXCLUDE CURRENT ROW)"
        for begin, end in (("1 PRECEDING", "1 FOLLOWING"), ("UNBOUNDED PRECEDING", "UNBOUNDED FOLLOWING"))
    ),
    *(
        f"SELECT k, count(*) OVER (ORDER BY {key} RANGE BETWEEN {begin} AND {end}) FROM m"
        for key in ("d", "at", "d DESC", "at DESC NULLS LAST")
        for begin, end in (
            ("'1 day' PRECEDING", "INTERVAL '36 hours' FOLLOWING"),
            ("INTERVAL '36 hours' PRECEDING", "'12 hours' PRECEDING"),
            ("interval '12 hours' FOLLOWING", "UNBOUNDED FOLLOWING"),
        )
    ),
    "SELECT k, count(*) OVER (ORDER BY h RANGE BETWEEN '1 hour' PRECEDING AND '90 minutes' FOLLOWING) FROM m",
    "SELECT k, sum(x) OVER (ORDER BY k ROWS BETWEEN 2 PRECEDING AND 1::bigint FOLLOWING) FROM m",
    "SELECT k, sum(x) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE GROUP) FROM m",
    "SELECT k, sum(x) OVER (ORDER BY x ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE TIES) FROM m",
)
_CHANGES = (
    (
        "INSERT INTO m SELECT k, chr(97 + k % 3), k / 2, date '2020-01-01' + k / 3, timestamp '2020-01-01'"
        " + k * interval '9 hours', time '10:00' + k * interval '40 minutes' FROM generate_series(1, 9) s(k)"
    ),
    "INSERT INTO m (k, p) VALUES (20, 'a'), (21, 'b')",
    "UPDATE m SET x = 4, d = d + 1 WHERE k IN (2, 5)",
    "DELETE FROM m WHERE k % 4 = 1",
)
_SAMPLE = (
    "SELECT k, rank() OVER (PARTITION BY (p, x) ORDER BY (d, k) DESC) FROM m",
    "SELECT k FROM m WHERE (k, x) >= (SELECT max(k) - 3, 1 FROM m) ORDER BY (p, k) LIMIT 2",
    *_WINDOWS[::7],
    "SELECT x, p FROM m ORDER BY x FETCH FIRST 3 ROWS WITH TIES",
    "SELECT x FROM m ORDER BY x DESC OFFSET 2 FETCH FIRST 2 ROWS WITH TIES",
)


def test_window_frames_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes((*_MEASURES, *_CHANGES, *_WINDOWS), postgres, tmp_path)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []


def test_maintained_window_frames_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(_MEASURES, _SAMPLE, _CHANGES, postgres, tmp_path)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
