"""Window frames of distances and exclusions, held against a real PostgreSQL, one-off and maintained."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, g int, n numeric, f float8, r real, d date, ts timestamp, iv interval)",
    "INSERT INTO t VALUES (1, 1, 1, 0.1, 1, '2020-01-31', '2020-01-31 10:00', '1 day'), (2, 1, 1.5, 0.3, 1.5, '2020-02-29', '2020-02-29 09:00', '25 h')",
    "INSERT INTO t VALUES (3, 1, 2.5, 0.2, 2.5, '2020-03-30', '2020-03-31 10:00', '2 days'), (4, 1, 2.5, 'NaN', 9, NULL, NULL, NULL)",
    "INSERT INTO t VALUES (5, 2, NULL, NULL, NULL, '2020-03-31', '2020-04-01', '1 mon'), (6, 2, 'NaN', '-Infinity', 'Infinity', '2020-04-29', '2021-01-01', '30 days')",
    "INSERT INTO t VALUES (7, 2, -0.75, 'Infinity', -1, '2020-03-31', '2020-04-01', '-1 h'), (8, 2, 1000000000000.001, 0.3, 1.5, '2020-04-30', '2020-05-01', '0')",
)
_FRAMES = (
    "ORDER BY n RANGE BETWEEN 1.0 PRECEDING AND 0.5 FOLLOWING",
    "PARTITION BY g ORDER BY n DESC RANGE BETWEEN 0.5 PRECEDING AND CURRENT ROW",
    "ORDER BY n DESC NULLS LAST RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW",
    "ORDER BY n NULLS FIRST RANGE BETWEEN 0.25 FOLLOWING AND UNBOUNDED FOLLOWING",
    "ORDER BY n RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING",
    "ORDER BY f RANGE BETWEEN 0.1 PRECEDING AND 0.1 FOLLOWING EXCLUDE TIES",
    "ORDER BY f DESC RANGE BETWEEN 0.2 PRECEDING AND 0 FOLLOWING EXCLUDE GROUP",
    "PARTITION BY g ORDER BY r RANGE 0.5 PRECEDING",
    "ORDER BY d RANGE BETWEEN interval '1 month' PRECEDING AND CURRENT ROW",
    "ORDER BY d RANGE BETWEEN '1 month' PRECEDING AND '1 day' FOLLOWING",
    "ORDER BY ts DESC NULLS LAST RANGE BETWEEN '36:00' PRECEDING AND '1 month' FOLLOWING",
    "ORDER BY ts DESC RANGE BETWEEN interval '1 mon 1 day' PRECEDING AND interval '1 year' FOLLOWING",
    "ORDER BY iv RANGE BETWEEN interval '1 h' PRECEDING AND interval '1 day' FOLLOWING",
)
"""Frames whose rows do not depend on the order of ties."""
_VALUES = "id, count(*) OVER w AS c, sum(id) OVER w AS s, min(n) OVER w AS m"
SCRIPTS = {
    "distances": (*TABLES, *(f"SELECT {_VALUES} FROM t WINDOW w AS ({frame})" for frame in _FRAMES)),
    "choices": (
        *TABLES,
        "SELECT id, first_value(n) OVER w, last_value(n) OVER w, nth_value(n, 2) OVER w FROM t WINDOW w AS (ORDER BY n RANGE BETWEEN 1.0 PRECEDING AND 0.5 FOLLOWING)",
        "SELECT id, array_agg(n) OVER w, max(n) OVER w, count(n) FILTER (WHERE id > 2) OVER w FROM t WINDOW w AS (PARTITION BY g ORDER BY n RANGE BETWEEN 1.0 PRECEDING AND 0.5 FOLLOWING)",
        "SELECT id, sum(id) OVER (ORDER BY n RANGE 1.5 PRECEDING), rank() OVER (ORDER BY n), sum(id) OVER (ORDER BY f RANGE 0.5 PRECEDING), sum(id) OVER (ORDER BY id ROWS 1 PRECEDING) FROM t",
        "SELECT id, first_value(c) OVER w, last_value(c::varchar(2)) OVER w FROM (SELECT id, n, 'x'::char(3) AS c FROM t) s WINDOW w AS (ORDER BY n RANGE 0.5 PRECEDING)",
        "SELECT g, count(*), sum(count(*)) OVER (ORDER BY min(n) RANGE BETWEEN 2.5 PRECEDING AND 2.5 FOLLOWING) FROM t GROUP BY g",
        "SELECT id FROM (SELECT id, count(*) OVER (ORDER BY n RANGE 1.0 PRECEDING) AS c FROM t) s WHERE c > 1",
        "SELECT id, (SELECT max(c) FROM (SELECT count(*) OVER (ORDER BY u.n RANGE 1.0 PRECEDING) AS c FROM t u WHERE u.g = t.g) s) FROM t",
    ),
    "rows without peers": (
        *TABLES,
        "SELECT g, sum(id) OVER w, count(*) OVER w, array_agg(id) OVER w, first_value(id) OVER w FROM t WINDOW w AS (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE GROUP)",
        "SELECT g, sum(id) OVER w, count(*) OVER w, last_value(id) OVER w, nth_value(id, 2) OVER w FROM t WINDOW w AS (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE TIES)",
        # The sums of equal values do not depend on the order of ties.
        "SELECT g, sum(g) OVER w, count(*) OVER w FROM t WINDOW w AS (ORDER BY g ROWS BETWEEN 2 PRECEDING AND 4 FOLLOWING EXCLUDE TIES)",
        "SELECT g, sum(g) OVER (ORDER BY g ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE GROUP) FROM t",
    ),
    "errors": (
        *TABLES,
        "SELECT sum(id) OVER (ORDER BY n RANGE BETWEEN -1.5 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY n RANGE BETWEEN 'NaN' PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY n RANGE BETWEEN NULL PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY g RANGE BETWEEN 1.5 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY f RANGE BETWEEN interval '1 day' PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY d RANGE BETWEEN 1.5 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY d RANGE BETWEEN interval '-1 month' PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY n, id RANGE BETWEEN 1.5 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT sum(id) OVER (ORDER BY id::text RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_frames_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_frames_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    queries = (
        *(f"SELECT {_VALUES} FROM t WINDOW w AS ({_FRAMES[index]})" for index in (0, 1, 2, 6, 8, 10)),
        "SELECT g, id, sum(id) OVER w AS s, first_value(id) OVER w AS f FROM t WINDOW w AS (PARTITION BY g ORDER BY id ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING EXCLUDE GROUP)",
        "SELECT id, last_value(n) OVER w AS l, nth_value(id, 2) OVER (ORDER BY n, id ROWS 2 PRECEDING EXCLUDE TIES) AS h FROM t WINDOW w AS (PARTITION BY g ORDER BY n RANGE 1 PRECEDING)",
    )
    changes = (
        "INSERT INTO t VALUES (9, 1, 2, 0.25, 2, '2020-04-30', '2020-02-28', '47 h'), (10, 3, 2, 0.3, 2, NULL, NULL, '1 day')",
        "UPDATE t SET n = n + 0.75, f = f / 2, d = d + 30, iv = iv + interval '1 h', g = 2 WHERE id IN (2, 3, 5)",
        "DELETE FROM t WHERE id IN (1, 4, 7)",
    )
    ours, theirs = maintained(TABLES, queries, changes, postgres, tmp_path)
    assert ours == theirs
