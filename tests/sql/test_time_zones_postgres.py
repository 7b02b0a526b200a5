"""SET TimeZone, held against a real PostgreSQL: texts, casts, fields and arithmetic of a session in another zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_scripts import outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

TABLE = (
    "CREATE TABLE t (n int, z timestamptz, l timestamp, d date, a timestamptz[])",
    (
        "INSERT INTO t VALUES (1, '2024-07-01 12:00+00', '2024-07-01 12:00', '2024-07-01', '{2024-01-01 00:00+00}'),"
        " (2, '2024-10-27 00:30+00', '2024-10-27 02:30', '2024-03-31', NULL), (3, 'infinity', NULL, NULL, NULL),"
        " (4, '0044-03-15 12:00+00 BC', '1890-01-01 00:00:00.5', NULL, NULL)"
    ),
)
QUERIES = (
    "SELECT n, z, z::text, z::timestamp, z::date, z::time FROM t",
    "SELECT n, l::timestamptz, d::timestamptz, a FROM t",
    "SELECT n FROM t WHERE z = '2024-10-27 02:30'",
    "SELECT n FROM t WHERE z < l",
    "SELECT n FROM t WHERE z::date = d OR z > d",
    "SELECT n, date_trunc('day', z), date_trunc('month', z), date_trunc('hour', z, 'UTC') FROM t",
    "SELECT n, extract(hour FROM z), extract(epoch FROM z)::bigint, date_part('day', z), extract(isodow FROM z) FROM t WHERE n < 3",
    "SELECT n, z + '1 day', z - interval '1 month', interval '36 hours' + z, z - '2024-01-01' FROM t WHERE n < 3",
    "SELECT n, to_char(z, 'YYYY-MM-DD HH24:MI'), to_timestamp('2024-02-03 04', 'YYYY-MM-DD HH24') FROM t WHERE n < 3",
    "SELECT n, z AT TIME ZONE 'Asia/Tokyo', l AT TIME ZONE 'UTC' FROM t",
    "SELECT age(z, '2024-01-01'), make_timestamptz(2024, 7, 1, 3, 4, 5), to_timestamp(0) FROM t WHERE n = 1",
    "SELECT z::date AS day, count(*), max(z) FROM t GROUP BY z::date",
    "SELECT concat(z, '|'), format('%s', z), 'x' || z, coalesce(z, l), greatest(z, d) FROM t WHERE n < 3",
    "SELECT '2024-07-01 12:00'::timestamptz, '2024-07-01 12:00 +05'::timestamptz, timestamptz '1890-06-01'",
    "SELECT n, l::text::timestamptz FROM t WHERE n < 3",
    "SELECT now() = now()::text::timestamptz, current_date = now()::date, localtimestamp = now()::timestamp",
    "SELECT * FROM generate_series('2024-10-26 12:00'::timestamptz, '2024-10-29', '1 day')",
    "SELECT * FROM generate_series('2024-03-01'::date, '2024-05-01', '1 mon')",
    "SELECT * FROM generate_series('2024-03-30 00:00'::timestamptz, '2024-04-01', '1 day', 'Europe/Berlin')",
)
ZONES = ("America/New_York", "europe/berlin", "Asia/Kolkata", "-3.5", "+02", "+01:00", "utc", "NZ")
SCRIPT = (
    *TABLE,
    "SET TimeZone = 'Nowhere/At_All'",
    "SET TIME ZONE 'Europe/Berlin'",
    "INSERT INTO t VALUES (5, '2024-07-01 12:00', '2024-07-01 12:00', '2024-07-01', '{2024-07-01 12:00+00}') RETURNING z, a",
    "UPDATE t SET z = l WHERE n = 1 RETURNING z",
    "UPDATE t SET z = z + '1 mon' WHERE n = 1 RETURNING z",
    "DELETE FROM t WHERE z = '2024-07-01 12:00'",
    "BEGIN",
    "SET LOCAL TimeZone = 'Asia/Tokyo'",
    "SELECT z FROM t WHERE n = 1",
    "COMMIT",
    "SELECT z FROM t WHERE n = 1",
    "PREPARE p (timestamptz) AS SELECT n, $1 FROM t WHERE z = $1",
    "EXECUTE p ('2024-08-01 12:00')",
    "SELECT n FROM t WHERE z = ANY ('{2024-07-01 12:00, 2024-08-01 14:00}') OR a = '{2024-07-01 14:00}'",
    "CREATE TABLE d (n int, z timestamptz DEFAULT '2024-07-01 12:00', a timestamptz[] DEFAULT '{2024-07-01 12:00}')",
    "CREATE DOMAIN since AS timestamptz DEFAULT '2024-07-01 12:00'",
    "CREATE TABLE e (n int, s since)",
    "SET TIME ZONE -7",
    "INSERT INTO d (n) VALUES (1)",
    "INSERT INTO e (n) VALUES (1)",
    "INSERT INTO d VALUES (2, '2024-07-01 12:00', '{2024-07-01 12:00, NULL}')",
    "ALTER TABLE d ALTER z SET DEFAULT '2024-07-01 12:00'",
    "SET TIME ZONE 'Asia/Tokyo'",
    "INSERT INTO d (n) VALUES (3)",
    "TABLE d",
    "TABLE e",
    "SET TIME ZONE -7",
    "EXECUTE p ('2024-08-01 03:00')",
    "SHOW TimeZone",
    "SET TimeZone = 'utc'",
    "SELECT z FROM t WHERE n = 1",
)


@pytest.fixture
def zoned(postgres: Connection) -> Iterator[Connection]:
    yield postgres
    postgres.execute("SET TimeZone = 'UTC'")


@pytest.mark.parametrize("zone", ZONES)
def test_queries_in_time_zones_equal_postgresql(zone: str, zoned: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes((*TABLE, f"SET TimeZone = '{zone}'", *QUERIES), zoned, tmp_path)
    assert ours == theirs


def test_statements_in_time_zones_equal_postgresql(zoned: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPT, zoned, tmp_path)
    assert ours == theirs


def test_views_compute_in_utc_in_every_session(tmp_path: Path) -> None:
    async def sessions(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one("SET TimeZone = 'Asia/Tokyo'")
        await one("CREATE TABLE t (z timestamptz)")
        definition = "SELECT z, z::date AS d, z = '2024-07-01 20:00' AS same FROM t"
        await one.script(f"CREATE VIEW v AS {definition}", f"CREATE MATERIALIZED VIEW m AS {definition}")
        await one("CREATE FUNCTION day(z timestamptz) RETURNS date LANGUAGE SQL AS 'SELECT z::date'")
        await one("INSERT INTO t VALUES ('2024-07-02 05:00')")
        row = ("2024-07-01", "t")
        for relation in ("v", "m"):
            assert await one(f"TABLE {relation}") == [("2024-07-02 05:00:00+09", *row)]
            assert await other(f"TABLE {relation}") == [("2024-07-01 20:00:00+00", *row)]
        assert await one("SELECT day(z), z::date FROM t") == [("2024-07-01", "2024-07-02")]
        assert await one.fails("SELECT extract(timezone FROM z) FROM t") == "0A000"
        assert await one.fails("SELECT to_char(z, 'HH24 TZ') FROM t") == "0A000"

    SqlWorld(tmp_path).within(sessions)


def test_defaults_in_time_zones_equal_postgresql(zoned: Connection, tmp_path: Path) -> None:
    """Law: constants belong to the session that defines a default, and other steps to the session that inserts."""
    script = (
        "SET TimeZone = 'Asia/Tokyo'",
        """CREATE TABLE z (n int, a timestamptz DEFAULT '2020-01-01 00:00'::timestamptz + interval '1 h',
            b text DEFAULT 'at ' || '2020-01-01'::timestamptz, c date DEFAULT ('2020-01-01 20:00+00'::timestamptz)::date,
            d timestamptz DEFAULT greatest('2020-01-01 00:00', timestamptz '2019-01-01'), e timestamptz DEFAULT '2020-01-01'::date,
            f timetz DEFAULT '10:00', g timestamptz(0) DEFAULT coalesce('2020-06-01 00:00:00.6', now()),
            h timestamptz DEFAULT '2020-06-01'::text::timestamptz)""",
        "INSERT INTO z (n) VALUES (1) RETURNING *",
        "SET TimeZone = 'UTC'",
        "INSERT INTO z (n) VALUES (2) RETURNING *",
        "ALTER TABLE z ALTER e SET DEFAULT E'2021-01-01'::timestamptz - interval '1 d', ALTER c SET DEFAULT NULL",
        "ALTER TABLE z ADD i timestamptz DEFAULT ('2020-03-01'::timestamptz + interval '1 d')",
        "SET TimeZone = 'America/New_York'",
        "INSERT INTO z (n) VALUES (3) RETURNING *",
        "TABLE z",
    )
    ours, theirs = outcomes(script, zoned, tmp_path)
    assert ours == theirs
