"""Times with time zone, held against a real PostgreSQL: texts, casts, order, functions, columns, maintained views."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

SCRIPTS = {
    "values": (
        "SELECT '10:00:00.5+02'::timetz, time with time zone '23:59-03:30', '24:00 UTC'::timetz, 'allballs'::timetz, '1030'::timetz",
        "SELECT '2020-07-01 10:00 Europe/Berlin'::timetz, '10:00 PST'::timetz, '10:00 pm z'::timetz, '10:00+15:59:59'::timetz",
        "SELECT '10:00:00.55+02'::timetz(1), time(0) with time zone '23:59:59.9-01', '10:00'::timetz(9), timetz '10:00'",
        "SELECT '10:00 foo'::timetz",
        "SELECT '25:00'::timetz",
        "SELECT '10:00+17'::timetz",
        "SELECT 'x'::timetz",
        "SELECT '10:00'::timetz(-1)",
        "SELECT '10:00+02'::timetz::time, '10:00'::time::timetz, '2020-01-01 10:00+03'::timestamptz::timetz, '10:00+02'::timetz::text",
        "SELECT '10:00+02'::timetz::interval",
        "SELECT '10:00+02'::timetz = '09:00+01'::timetz, '10:00+02'::timetz < '09:00+01'::timetz, '10:00+02'::timetz > '08:30+00'::timetz",
        "SELECT '10:00+00'::timetz = '10:00'::time, greatest('10:00+02'::timetz, '09:30'), '10:00+02'::timetz IN ('10:00+02', '1:00')",
        "SELECT '10:00+02'::timetz + interval '15 h', interval '1 day 1 h' + '10:00+02'::timetz, '00:30-05'::timetz - interval '1 h'",
        "SELECT date '2020-01-01' + '10:00+02'::timetz, '01:00+05'::timetz + date '2020-01-01', 'infinity'::date + '10:00+02'::timetz",
        "SELECT extract(hour FROM '10:20:30.5-03:30'::timetz), extract(timezone FROM '10:20-03:30'::timetz), date_part('epoch', '10:20-03:30'::timetz)",
        "SELECT extract(timezone_hour FROM '1:00-03:30'::timetz), extract(timezone_minute FROM '1:00-03:30'::timetz), extract(timezone_minute FROM '1:00+05:45'::timetz)",
        "SELECT extract(year FROM '10:00'::timetz)",
        "SELECT '10:00+02'::timetz AT TIME ZONE 'UTC', '00:30+02'::timetz AT TIME ZONE INTERVAL '-03:00', timezone('+05', '10:00'::timetz)",
        "SELECT '10:00+02'::timetz AT TIME ZONE 'Nowhere/Else'",
        "SELECT '10:00+02'::timetz AT TIME ZONE INTERVAL '1 day'",
        "SELECT pg_typeof(current_time), current_time::time = now()::time, to_jsonb('10:00+02'::timetz), '{10:00+02,NULL}'::timetz[]",
        "SELECT min(x), max(x), count(DISTINCT x), array_agg(x ORDER BY x) FROM (VALUES ('10:00+02'::timetz), ('08:00+00'), ('09:00+02')) v (x)",
        "SELECT DISTINCT x FROM (VALUES ('10:00+02'::timetz), ('08:00+00'), ('10:00+02')) v (x) ORDER BY x",
        "SELECT '10:00'::timetz - '09:00'::timetz",
    ),
    "columns and sessions": (
        "CREATE TABLE t (n int PRIMARY KEY, a timetz, b timetz(0) DEFAULT '10:00:00.7+01', c time)",
        "INSERT INTO t VALUES (1, '10:00+02', DEFAULT, '01:02'), (2, '08:00', '09:00:00.4-05', '10:00'), (3, NULL, NULL, NULL)",
        "INSERT INTO t VALUES (4, '09:00:00.25', '24:00', '09:00') RETURNING *",
        "SELECT n FROM t WHERE a = '10:00+02'",
        "SELECT n FROM t WHERE a >= '08:00+00' ORDER BY a",
        "UPDATE t SET a = c, c = a, b = a + interval '0.6 s' WHERE n > 1 RETURNING *",
        "SELECT column_name, datetime_precision, data_type, udt_name FROM information_schema.columns WHERE table_name = 't'",
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0",
        "CREATE TABLE k (a timetz PRIMARY KEY)",
        "INSERT INTO k VALUES ('10:00+02'), ('08:00+00')",
        "INSERT INTO k VALUES ('10:00+02')",
        "SET TimeZone = '<+03>-03'",
        "SELECT '10:00'::timetz, '10:00'::time::timetz, '2020-01-01 10:00'::timestamptz::timetz, x::timetz FROM (VALUES ('1:00')) v (x)",
        "SELECT a, b FROM t WHERE n = 1",
        "INSERT INTO k VALUES ('12:00') RETURNING a",
        "SELECT a AT TIME ZONE 'UTC' FROM k",
        "PREPARE p (timetz) AS SELECT $1",
        "EXECUTE p ('10:00')",
        "ALTER TABLE t ALTER a TYPE time",
        "TABLE t",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_times_with_zone_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    postgres.execute("SET TimeZone = 'UTC'")
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    postgres.execute("SET TimeZone = 'UTC'")
    assert ours == theirs


def test_maintained_views_of_times_with_zone_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "SET TimeZone = 'UTC'",
        "CREATE TABLE t (n int, a timetz, b time)",
        "INSERT INTO t VALUES (1, '10:00+02', '10:00'), (2, '08:00+00', '08:00'), (3, NULL, '00:00')",
    )
    queries = (
        "SELECT n, a, a + interval '3 h' AS later, b::timetz AS c, a = b AS same, a AT TIME ZONE INTERVAL '01:00' AS z FROM t",
        "SELECT a, count(*), max(b) FROM t GROUP BY a",
        "SELECT min(a), max(a), count(DISTINCT a) FROM t",
        "SELECT x.n, y.n AS m FROM t x JOIN t y ON x.a = y.b::timetz",
    )
    changes = (
        "INSERT INTO t VALUES (4, '08:00+00', '23:00'), (5, '24:00-05', '24:00')",
        "UPDATE t SET a = b WHERE n IN (1, 3)",
        "DELETE FROM t WHERE a < '09:00+00'",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs
