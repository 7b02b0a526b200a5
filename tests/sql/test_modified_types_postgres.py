"""Types with a precision, held against a real PostgreSQL: casts, writes, catalogs, and maintained views."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

SCRIPTS = {
    "arrays of varchar": (
        "CREATE TABLE t (a varchar(3)[] DEFAULT '{}', b text[], c varchar(2)[] NOT NULL)",
        "INSERT INTO t VALUES ('{abc,NULL,d}', '{abcdefg}', ARRAY['x','yy'])",
        "INSERT INTO t VALUES ('{abcd}', NULL, '{}')",
        "INSERT INTO t VALUES (ARRAY['abc   '], NULL, '{}')",
        "INSERT INTO t (c) VALUES (ARRAY['yyy'])",
        "INSERT INTO t (c) SELECT ARRAY['yyy']::varchar(2)[]",
        "UPDATE t SET a = a || 'x'::varchar",
        "UPDATE t SET a = a || 'wxyz'::varchar",
        "TABLE t",
        "SELECT '{abc,de}'::varchar(2)[], ARRAY['abc', NULL]::varchar(1)[], 'x'::varchar(2)[]",
        "SELECT '{abc,de}'::varchar(2)[], ARRAY['abc', NULL]::varchar(1)[], ARRAY[]::varchar(3)[]",
        "SELECT a[1], a[2:3], pg_typeof(a), array_length(a, 1), a @> ARRAY['abc']::varchar(3)[], a && '{d}' FROM t",
        "SELECT * FROM t WHERE a @> ARRAY['abc']::varchar(3)[]",
        "SELECT unnest(a), 'd' = ANY (a) FROM t",
        "SELECT attname, format_type(atttypid, atttypmod), atttypid FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0",
        "SELECT column_name, data_type, udt_name, character_maximum_length FROM information_schema.columns WHERE table_name = 't'",
        "ALTER TABLE t ALTER COLUMN a TYPE varchar(2)[]",
        "ALTER TABLE t ALTER COLUMN a TYPE varchar(2)[] USING '{ab}'",
        "SELECT a FROM t UNION ALL SELECT c FROM t",
        "CREATE TABLE u AS SELECT a, c FROM t",
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'u'::regclass AND attnum > 0",
        "INSERT INTO u (a) VALUES ('{abc}')",
    ),
    "arrays of numeric": (
        "CREATE TABLE t (a numeric(4,1)[] DEFAULT '{0.25}', b numeric[], c numeric(3)[], d numeric(5,2) ARRAY)",
        "INSERT INTO t VALUES ('{1.25,NULL,3}', '{1.25,2}', '{2.5,-3.5}', ARRAY[1.005, 2]) RETURNING *",
        "INSERT INTO t (c) VALUES ('{}') RETURNING *",
        "INSERT INTO t (a) VALUES ('{1,1000}')",
        "INSERT INTO t (a) VALUES (ARRAY[1, 999.95])",
        "INSERT INTO t (a) VALUES ('{infinity}')",
        "INSERT INTO t (a) VALUES ('{x}')",
        "INSERT INTO t (a) SELECT ARRAY['NaN', 7.77]::numeric[] RETURNING a",
        "INSERT INTO t (a, d) SELECT b, b FROM t WHERE b IS NOT NULL RETURNING a, d",
        "UPDATE t SET a = d WHERE d IS NOT NULL RETURNING a, d",
        "UPDATE t SET a = a || 12345.6",
        "TABLE t",
        "SELECT a[1], a[2:3], a::text, pg_typeof(a), cardinality(a), 2.0 = ANY (a), a @> '{2}' FROM t",
        "SELECT x FROM t, unnest(a) x",
        "SELECT unnest(d) FROM t",
        "SELECT max(a), count(DISTINCT a) FROM t",
        "SELECT '{1.25,2}'::numeric(4,1)[], ARRAY[1.25, NULL]::numeric(4,2)[], '{12345}'::numeric(5,0)[]",
        "SELECT '{12345}'::numeric(4,1)[]",
        "SELECT ARRAY[1,2]::numeric(4,2)[], NULL::numeric(3,1)[], '{}'::numeric(3,1)[], '{1.25}'::numeric(4,-1)[]",
        "SELECT '{1}'::numeric(0)[]",
        "SELECT attname, format_type(atttypid, atttypmod), atttypid FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0",
        "SELECT column_name, data_type, udt_name, numeric_precision FROM information_schema.columns WHERE table_name = 't'",
        "PREPARE pn AS SELECT $1::numeric(4,1)[]",
        "EXECUTE pn ('{1.25,3}')",
        "ALTER TABLE t ALTER COLUMN d TYPE numeric(5,1)[]",
        "SELECT a FROM t UNION SELECT d FROM t",
        "CREATE TABLE u AS SELECT a, c FROM t",
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'u'::regclass AND attnum > 0",
        "INSERT INTO u (a) VALUES ('{1.25}') RETURNING a",
        "CREATE DOMAIN prices AS numeric(5,2)[]",
        "SELECT '{1.005}'::prices",
    ),
    "precisions of times": (
        "SELECT '2020-01-01 00:00:00.123456'::timestamp(3), '2020-01-01 00:00:00.5'::timestamp(0)",
        "SELECT '1990-01-01 00:00:00.0005'::timestamp(3), '1969-12-31 23:59:59.9995+00'::timestamptz(3)",
        "SELECT '2020-01-01 00:00:00.1234565'::timestamp(6), '2020-01-01'::timestamp(9), 'infinity'::timestamptz(2)",
        "SELECT '12:30:59.9999'::time(2), time(1) '01:02:03.25', '23:59:59.9'::time(0)",
        "SELECT CAST(NULL AS timestamp(3)), '2020-01-01 10:00:00.55+00'::timestamp(1) with time zone",
        "SELECT now()::timestamp(0) = date_trunc('second', now()::timestamp(0)), '2020-01-01'::date::timestamp(3)",
        "SELECT '2020-01-01'::timestamp(-1)",
        "CREATE TABLE t (a timestamp(3), b timestamptz(0) DEFAULT '2020-01-01 00:00:00.7+00', c time(1), d timestamp)",
        "INSERT INTO t VALUES ('2020-01-01 00:00:00.1235', DEFAULT, '10:00:00.25', '2020-01-01 00:00:00.1235') RETURNING *",
        "INSERT INTO t (a) SELECT d FROM t RETURNING a, b",
        "UPDATE t SET a = d + interval '0.0004 s', c = c + interval '0.06 s' WHERE c IS NOT NULL RETURNING a, c, d",
        "SELECT count(*) FROM t WHERE a = '2020-01-01 00:00:00.124'",
        "SELECT max(a), min(c), count(DISTINCT a) FROM t",
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0",
        "SELECT column_name, datetime_precision, data_type FROM information_schema.columns WHERE table_name = 't'",
        "ALTER TABLE t ALTER d TYPE timestamp(0), ADD e timestamp(2) DEFAULT '2020-01-01 00:00:00.555'",
        "TABLE t",
        "CREATE TABLE u AS SELECT a, b, d FROM t",
        "INSERT INTO u VALUES ('2020-01-01 00:00:00.98765', '2020-01-01 00:00:00.5+00', '2020-01-01 00:00:00.5')",
        "TABLE u",
        "SELECT pg_typeof(a), pg_typeof(c) FROM t LIMIT 1",
        "CREATE TABLE k (a timestamp(0) PRIMARY KEY)",
        "INSERT INTO k VALUES ('2020-01-01 00:00:00.6'), ('2020-01-01 00:00:02')",
        "INSERT INTO k VALUES ('2020-01-01 00:00:01.3')",
        "PREPARE pt AS INSERT INTO k VALUES ($1) RETURNING a",
        "EXECUTE pt ('2020-01-01 00:00:05.7')",
    ),
    "results of aggregates": (
        "CREATE TABLE t (k int, c char(4), v varchar(3), n numeric(6,2))",
        "INSERT INTO t VALUES (1, 'ab', 'x', 1.50), (2, 'b', 'yy', 2.5), (3, NULL, NULL, 10)",
        "SELECT max(c), max(c)::text, max(c)::text || '|', max(c) || '|', length(max(c)), max(c)::char(2), max(c) = 'b', max(c) LIKE 'b' FROM t",
        "SELECT max(c)::text, coalesce(max(c), 'zz')::text || '|', replace(max(c), ' ', '_'), concat(max(c), '|'), pg_typeof(max(c))::text FROM t GROUP BY k",
        "SELECT lag(c) OVER w::text || '|', first_value(c) OVER w::text, (lag(n) OVER w)::text FROM t WINDOW w AS (ORDER BY k)",
        "SELECT max(n)::text, sum(n)::text, sum(n)::numeric(6,1), min(n + 1)::text, (sum(n) * 2)::text FROM t",
        "SELECT (SELECT max(c)::text FROM t), (SELECT max(o.c)::text || '|'), string_agg(max(c)::text, ',') OVER (ORDER BY k) FROM t o GROUP BY k",
        "SELECT mod(5.50, 2), 5.50 % 2.0, mod(n, 0.250), n % 1, trunc(n), trunc(2.50, 1), trunc(n, 3), floor(n), ceil(n), ceiling(n + 0.001) FROM t",
        "CREATE TABLE s AS SELECT max(c)::text AS c, n % 1 AS n FROM t GROUP BY n",
        "SELECT c || '|', n FROM s",
    ),
    "series": (
        "SELECT * FROM generate_series('2020-01-31'::timestamp, '2020-04-30', '1 mon')",
        "SELECT t::date FROM generate_series(timestamp '2020-01-03', '2020-01-01', '-1 day') t",
        "SELECT generate_series('2020-01-01 00:00'::timestamp, '2020-01-01 01:00', '25 min')",
        "SELECT count(*) FROM generate_series('2020-01-02'::timestamp, '2020-01-01', '1 day')",
        "SELECT * FROM generate_series('2020-01-02'::timestamp, '2020-01-01', '0 day')",
        "SELECT * FROM generate_series('2020-01-02'::timestamp, NULL, '1 day')",
        "SELECT x::float8 FROM generate_series(1.0, 2.0, 0.25) x",
        "SELECT x::float8, n FROM generate_series(3, 1.5, -0.5) WITH ORDINALITY s (x, n)",
        "SELECT x::float8 FROM generate_series(0.5, 3) x",
        "SELECT * FROM generate_series(1.0, 2.0, 0.0)",
        "SELECT * FROM generate_series(1.0, 'NaN'::numeric)",
        "SELECT a, t FROM (VALUES (1), (2)) v (a), generate_series('2020-01-01'::timestamp, '2020-01-02', a * interval '12 h') t",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_modified_types_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_modified_types_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "CREATE TABLE t (n int, a timestamp(3), b timestamp, p numeric(4,1)[], c char(4), m numeric(6,2))",
        "INSERT INTO t VALUES (1, '2020-01-01 00:00:00.1235', '2020-01-01 00:00:00.1235', '{1.25,NULL}', 'ab', 1.50)",
    )
    queries = (
        "SELECT n, a, b::timestamp(1) AS b, a = b AS same FROM t",
        "SELECT b::timestamp(0) AS second, count(*), max(a) AS a FROM t GROUP BY b::timestamp(0)",
        "SELECT n, p, p[1], p::numeric(6,2)[] AS q FROM t",
        "SELECT x, count(*) FROM t, unnest(p) x GROUP BY x",
        "SELECT p, count(*) FROM t GROUP BY p",
        "SELECT max(c)::text || '|' AS c, mod(sum(m), 2) AS m, floor(max(m)) AS f, sum(m)::text AS s FROM t",
    )
    changes = (
        (
            "INSERT INTO t VALUES (2, '2020-01-01 00:00:00.5555', '2020-01-01 00:00:00.9', '{1.3,NULL}', 'b', 3),"
            " (3, NULL, '2020-01-01 00:00:01', ARRAY[2, 3.14], NULL, 2.25)"
        ),
        "UPDATE t SET a = b, p = p || 1.25 WHERE n < 3",
        "DELETE FROM t WHERE a = '2020-01-01 00:00:00.9'",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs
