"""ROWS FROM, TABLESAMPLE, OVERLAPS, and percentiles of intervals, held against a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import in_ours, maintained, outcomes
from psycopg import Connection
from sql_world import SqlWorld

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, a int[], b text[], j jsonb, d date, e date, iv interval, x time)",
    """INSERT INTO t VALUES (1, 2, '{1,2,3}', '{x}', '{"k": 1, "l": null}', '2020-01-01', '2020-02-01', '1 day', '10:00')""",
    """INSERT INTO t VALUES (2, 0, '{}', '{y,z}', '{}', '2020-03-01', '2020-01-15', '3 h', '12:00'), (3, NULL, NULL, NULL, NULL, '2020-01-01', NULL, '1 mon', NULL), (4, 1, '{7}', '{}', '[]', NULL, NULL, NULL, '23:00')""",
)
SCRIPTS = {
    "rows from": (
        *TABLES,
        "SELECT * FROM ROWS FROM (generate_series(1, 3), unnest(ARRAY['a', 'b']))",
        "SELECT * FROM ROWS FROM (generate_series(1, 3), jsonb_each('{\"k\":1}'), lower('X')) WITH ORDINALITY AS t (a, b)",
        "SELECT id, r.* FROM t, ROWS FROM (unnest(a), unnest(b), generate_series(1, n)) WITH ORDINALITY r",
        "SELECT id, p, q FROM t LEFT JOIN ROWS FROM (unnest(a, b), generate_series(5, 5)) r (p, q) ON true",
        "SELECT id, x FROM t LEFT JOIN LATERAL ROWS FROM (unnest(a)) AS u (x) ON x > n",
        "SELECT * FROM ROWS FROM (regexp_matches('ab', '(.)', 'g'), string_to_table('x,y,z', ',')) AS r",
        "SELECT * FROM ROWS FROM (nothing(1))",
        "SELECT * FROM ROWS FROM (generate_series(1, 2)) r (a, b)",
        "SELECT rows FROM (VALUES (1)) s (rows)",
    ),
    "overlaps": (
        *TABLES,
        "SELECT u.id, v.id, (u.d, u.e) OVERLAPS (v.d, v.e), (u.e, u.d) OVERLAPS (v.d, v.e) FROM t u, t v",
        "SELECT id, (d, interval '20 days') OVERLAPS (date '2020-01-10', e), (d, iv) OVERLAPS (d, iv) FROM t",
        "SELECT id, (x, time '11:00') OVERLAPS (time '10:30', NULL::time), (x, interval '2 h') OVERLAPS ('00:30', time '11:00') FROM t",
        "SELECT (x, interval '2 h') OVERLAPS ('00:30', '11:00') FROM t",
        "SELECT (timestamp '2020-01-01', timestamp '2020-01-02') OVERLAPS (timestamp '2020-01-02', timestamp '2020-01-03')",
        "SELECT (DATE '2001-02-16', INTERVAL '100 days') OVERLAPS ('2001-10-30', interval '1 day'), NOT (NULL::date, NULL) OVERLAPS ('2001-10-30', '2002-10-30')",
        "SELECT id FROM t WHERE (d, e) OVERLAPS (date '2020-01-20', date '2020-01-25') AND id > 0",
        "SELECT (d, e) OVERLAPS (date '2020-01-20', date '2020-01-25')::int + 1, NOT (d, e) OVERLAPS (d, e) FROM t",
        "SELECT (1, 2) OVERLAPS (3, 4)",
        "SELECT (NULL, NULL) OVERLAPS (NULL, NULL)",
        "SELECT ('2024-01-01', '2024-01-05') OVERLAPS ('2024-01-01', '2024-02-01')",
        "SELECT (NULL, NULL) OVERLAPS (d, '2024-02-01'), (d, NULL) OVERLAPS (NULL, NULL) FROM t",
        "SELECT (d, e, d) OVERLAPS (d, e) FROM t",
        "SELECT (d, e) OVERLAPS (d, e, d) FROM t",
        "SELECT d OVERLAPS e FROM t",
    ),
    "percentiles": (
        *TABLES,
        "SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY iv), percentile_cont(ARRAY[0, 0.5, 1, NULL]) WITHIN GROUP (ORDER BY iv DESC) FROM t",
        "SELECT id % 2, percentile_cont(0.4) WITHIN GROUP (ORDER BY iv), percentile_disc(0.4) WITHIN GROUP (ORDER BY iv) FROM t GROUP BY 1",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY iv) FILTER (WHERE id > 9) FROM t",
        "SELECT percentile_cont(1.5) WITHIN GROUP (ORDER BY iv) FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY b) FROM t",
    ),
    "samples": (
        *TABLES,
        "CREATE VIEW v AS SELECT id FROM t",
        "SELECT count(*) FROM t TABLESAMPLE BERNOULLI (100)",
        "SELECT count(*) FROM t AS u TABLESAMPLE SYSTEM (100.0) REPEATABLE (7) WHERE u.id > 1",
        "SELECT count(*) FROM t TABLESAMPLE bernoulli (0) REPEATABLE (7.5)",
        "SELECT u.id FROM t u TABLESAMPLE SYSTEM (100) JOIN t TABLESAMPLE SYSTEM (100) USING (id)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (101)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (-1) REPEATABLE (1)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (NULL)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (NULL)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (1, 2)",
        "SELECT id FROM t TABLESAMPLE nothing (1)",
        "SELECT id FROM v TABLESAMPLE BERNOULLI (1)",
        "WITH c AS (SELECT 1) SELECT * FROM c TABLESAMPLE BERNOULLI (1)",
        "SELECT id FROM t TABLESAMPLE BERNOULLI ('a')",
        "SELECT id FROM t TABLESAMPLE BERNOULLI",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_from_items_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_from_items_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    queries = (
        "SELECT id, r.* FROM t, ROWS FROM (unnest(a), unnest(b), generate_series(1, n)) WITH ORDINALITY r (p, q, s, o)",
        "SELECT u.id AS u, v.id AS v, (u.d, u.e) OVERLAPS (v.d, v.e) AS o FROM t u, t v WHERE u.id < v.id",
        "SELECT n, percentile_cont(0.4) WITHIN GROUP (ORDER BY iv) AS p FROM t GROUP BY n",
        "SELECT id FROM t TABLESAMPLE BERNOULLI (100) REPEATABLE (3)",
    )
    changes = (
        "INSERT INTO t VALUES (5, 3, '{4,5}', '{u,v,w}', NULL, '2020-01-10', '2020-06-01', '50 h', '10:00')",
        "UPDATE t SET a = a || 9, n = coalesce(n, 0) + 1, e = d + 40, iv = iv * 2 WHERE id < 4",
        "DELETE FROM t WHERE id IN (1, 4)",
    )
    ours, theirs = maintained(TABLES, queries, changes, postgres, tmp_path)
    assert ours == theirs


def test_samples_are_shares_of_the_rows(tmp_path: Path) -> None:
    """A sample that is repeatable depends on the seed; another one cannot be maintained."""
    texts = (
        "CREATE TABLE t (n int)",
        "INSERT INTO t SELECT generate_series(1, 2000)",
        "SELECT count(*) FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (1)",
        "SELECT count(*) FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (2)",
        "SELECT count(*) FROM t TABLESAMPLE BERNOULLI (30)",
        "CREATE MATERIALIZED VIEW s AS SELECT n FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (1)",
        "SELECT count(*) FROM s",
        "CREATE MATERIALIZED VIEW o AS SELECT n FROM t TABLESAMPLE BERNOULLI (30)",
    )
    results = SqlWorld(tmp_path).within(lambda own: in_ours(own, texts))
    first, second, drawn, _, kept, refused = (rows[0][0] if rows else tag for tag, rows in results[2:])
    assert (first, second, kept, refused) == ("581", "561", "581", "0A000")
    assert 450 < int(drawn or 0) < 750


def test_other_constructs_are_refused_in_words(tmp_path: Path) -> None:
    texts = (
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 3) CYCLE n SET x USING p SELECT * FROM c",
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c) SEARCH DEPTH FIRST BY n SET o SELECT * FROM c",
        "SELECT array_agg(ARRAY[1, 2])",
        "SELECT ARRAY[[1, 2], [3, 4]]",
    )
    results = SqlWorld(tmp_path).within(lambda own: in_ours(own, texts))
    assert [tag for tag, _ in results] == ["0A000"] * 4
