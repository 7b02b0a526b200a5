"""Equal intervals with several data, and `character(n)`, in queries and in maintained views, as in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from postgres_scripts import maintained, outcomes
from psycopg import Connection

TABLE = (
    "CREATE TABLE t (i interval, n int)",
    "INSERT INTO t VALUES ('24 hours', 1), ('1 day', 2), ('30 days', 3), ('1 mon', 4), (NULL, 5), (NULL, 6)",
)
# A group shows one of its equal values, and which one is not specified, so these queries show the value in seconds.
QUERIES = (
    "SELECT extract(epoch FROM i)::int AS seconds, count(*), sum(n) FROM t GROUP BY i",
    "SELECT count(*) FROM (SELECT DISTINCT i FROM t) x",
    "SELECT count(*) FROM (SELECT DISTINCT i, n > 2 FROM t) x",
    "SELECT count(DISTINCT i), max(i) = '1 mon', sum(DISTINCT i) = '31 days' FROM t",
    "SELECT count(*) FROM (SELECT i FROM t UNION SELECT i + '0' FROM t WHERE n > 2) x",
    "SELECT count(*), min(n) FROM t GROUP BY GROUPING SETS ((i, n > 3), (i), ())",
    "SELECT count(*) FROM (SELECT i FROM t INTERSECT SELECT i * 30 FROM t) x",
    "SELECT count(*) FROM (SELECT i FROM t INTERSECT ALL SELECT i * 30 FROM t) x",
    "SELECT extract(epoch FROM i)::int AS seconds FROM (SELECT i FROM t EXCEPT SELECT i * 30 FROM t) x",
    "SELECT extract(epoch FROM i)::int AS seconds FROM (SELECT i FROM t EXCEPT ALL SELECT i FROM t WHERE n % 2 = 0) x",
    "SELECT DISTINCT ON (i) n FROM t ORDER BY i, n",
    "SELECT n, rank() OVER (ORDER BY i) AS a, dense_rank() OVER (ORDER BY i DESC) AS b FROM t",
    "SELECT n, sum(n) OVER (PARTITION BY i) AS a, row_number() OVER (PARTITION BY i ORDER BY n) AS b FROM t",
    "SELECT n FROM t ORDER BY i DESC, n LIMIT 3",
    "SELECT a.n, b.n AS m FROM t a JOIN t b ON a.i = b.i",
    "SELECT a.n, b.n AS m FROM t a FULL JOIN t b ON a.i = b.i AND b.n > 2",
    "SELECT a.n, b.n AS m FROM t a JOIN t b USING (i)",
    "SELECT n FROM t WHERE i = '1 day'",
    "SELECT n FROM t WHERE i IN ('1 day', '1 mon')",
    "SELECT n FROM t WHERE i BETWEEN '1 day' AND '720 hours'",
    "SELECT n FROM t WHERE i IN (SELECT i FROM t WHERE n = 1)",
    "SELECT n FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE b.i = a.i AND b.n > a.n)",
    "SELECT n, (SELECT count(*) FROM t b WHERE b.i = a.i) AS c FROM t a",
    "SELECT a.n, x.c FROM t a, LATERAL (SELECT a.i::text AS c, count(*) FROM t b WHERE b.i = a.i) x",
    "SELECT nullif(i, '1 day') IS NULL AS a, CASE i WHEN '24 hours' THEN 1 END AS b FROM t",
)
CHANGES = (
    "INSERT INTO t VALUES ('1440 min', 7), ('2 days', 8), ('48 hours', 9), (NULL, 10)",
    "UPDATE t SET i = '24:00' WHERE n IN (3, 8)",
    "DELETE FROM t WHERE i = '1 day' AND n < 3",
    "DELETE FROM t WHERE i IN ('24 hours')",
)
SCRIPT = (
    *TABLE,
    *QUERIES,
    "CREATE INDEX ON t (i)",
    "SELECT n FROM t WHERE i = '24 hours'",
    "SELECT n FROM t WHERE i IN ('1 day', '3 days')",
    "UPDATE t SET n = n + 10 WHERE i IN ('1 day') RETURNING n",
    "CREATE TABLE k (i interval PRIMARY KEY, n int)",
    "INSERT INTO k VALUES ('24 hours', 1)",
    "INSERT INTO k VALUES ('1 day', 1)",
    "SELECT n FROM k WHERE i IN ('1 day', '2 days')",
    "INSERT INTO k VALUES ('1 day', 2), ('2 days', 2) ON CONFLICT (i) DO UPDATE SET n = excluded.n",
    "DELETE FROM t WHERE i = ANY (SELECT i FROM k) RETURNING n",
    "WITH RECURSIVE r AS (SELECT interval '1 day' AS i UNION ALL SELECT i + '1 day' FROM r WHERE i < '3 days') TABLE r",
    "SELECT (interval '24 hours', 1) IN (SELECT interval '1 day', 1), interval '24 hours' NOT IN ('1 day', NULL)",
    "SELECT array_agg(n ORDER BY i, n) FROM (VALUES (interval '24 hours', 1), ('1 day', 0)) v (i, n)",
)

CHARACTERS = (
    "CREATE TABLE c (c char(5), v varchar(5), n int, t text)",
    (
        "INSERT INTO c VALUES ('ab', 'ab', 1, 'ab'), ('ab   ', 'ab ', 2, 'ab '), ('', '', 3, ''), ('ab  "
        "', 'ab  ', 4, 'b'), (NULL, NULL, 5, NULL)"
    ),
)
CHARACTER_QUERIES = (
    "SELECT n FROM c WHERE c = 'ab    '",
    "SELECT n FROM c WHERE 'ab    ' = c",
    "SELECT n FROM c WHERE c <> 'ab    '",
    "SELECT n FROM c WHERE c = 'ab'",
    "SELECT n FROM c WHERE c = 'ab'::text",
    "SELECT n FROM c WHERE c = 'ab   '::text",
    "SELECT n FROM c WHERE c IN ('ab ', 'x')",
    "SELECT n FROM c WHERE c IN ('ab ')",
    "SELECT n FROM c WHERE c NOT IN ('ab ', 'x')",
    "SELECT n FROM c WHERE c = v",
    "SELECT n FROM c WHERE v = c",
    "SELECT n FROM c WHERE c = t",
    "SELECT n FROM c WHERE v = t",
    "SELECT n FROM c WHERE c::text = v",
    "SELECT n FROM c WHERE c LIKE 'ab'",
    "SELECT n FROM c WHERE c LIKE 'ab   '",
    "SELECT n FROM c WHERE c LIKE 'ab%'",
    "SELECT n FROM c WHERE c::text LIKE 'ab'",
    "SELECT n FROM c WHERE c NOT LIKE 'ab'",
    "SELECT n FROM c WHERE c > 'a  ' AND c < 'ab  z'",
    "SELECT n FROM c WHERE c BETWEEN 'ab  ' AND 'ab '",
    "SELECT n FROM c WHERE c = ANY ('{ab,x}')",
    "SELECT n FROM c WHERE c IN (SELECT 'ab    '::char(6))",
    "SELECT n FROM c WHERE c IN (SELECT v FROM c WHERE n = 2)",
    "SELECT n FROM c WHERE v IN (SELECT c FROM c WHERE n = 2)",
    "SELECT n FROM c WHERE c NOT IN (SELECT v FROM c WHERE n = 2)",
    "SELECT n FROM c WHERE c IN (SELECT t FROM c WHERE n = 2)",
    "SELECT n FROM c WHERE c = 'ab '::char(3)",
    "SELECT n FROM c WHERE c IS DISTINCT FROM 'ab '",
    "SELECT n FROM c WHERE (c, n) = ('ab ', 1)",
    "SELECT n FROM c WHERE (c, n) IN (('ab ', 1), ('', 3))",
    "SELECT a.n, b.n AS m FROM c a JOIN c b ON a.c = b.v",
    "SELECT n, CASE c WHEN 'ab  ' THEN 1 ELSE 2 END AS a, nullif(c, 'ab ') AS b FROM c",
    "SELECT c, count(*) FROM c GROUP BY c",
    "SELECT n FROM c WHERE coalesce(c, t) = 'ab     '",
    "SELECT n FROM c WHERE coalesce(t, c) = 'ab     '",
    "SELECT n, CASE WHEN n < 3 THEN t ELSE c END = 'ab   ' AS a, CASE WHEN n < 3 THEN c ELSE t END = 'ab   ' AS b FROM c",
    "SELECT length(x) AS n, count(*) FROM (SELECT c AS x FROM c UNION SELECT t FROM c) y GROUP BY length(x)",
    "SELECT length(x) AS n, count(*) FROM (SELECT t AS x FROM c UNION SELECT c FROM c) y GROUP BY length(x)",
    "SELECT count(*) FROM (SELECT c AS x FROM c UNION ALL SELECT v FROM c) y WHERE x = 'ab  '",
    "SELECT greatest(c, 'aa   ', t) = 'ab     ' AS a, least(c, 'zz  ') = 'ab ' AS b FROM c",
)
CHARACTER_CHANGES = (
    "INSERT INTO c VALUES ('ab', 'z', 6, 'ab '), ('z', 'ab   ', 7, 'z')",
    "UPDATE c SET c = v, v = c WHERE n IN (2, 7)",
    "DELETE FROM c WHERE c = 'ab    ' AND n < 3",
    "DELETE FROM c WHERE c IN ('ab  ', 'z  ')",
)
CHARACTER_SCRIPT = (
    *CHARACTERS,
    *CHARACTER_QUERIES,
    "SELECT n, length(c), octet_length(c), c || '|', '|' || c || '|' FROM c",
    "SELECT n FROM c WHERE c = ANY (ARRAY['ab   ', 'x'])",
    "SELECT n FROM c WHERE c = (SELECT 'ab    ')",
    (
        "SELECT 'a '::char(2) = 'a'::char(1), 'a '::char(2) = 'a'::text, 'a '::char(2)::text = 'a ', "
        "'a'::char(5) = 'a   '"
    ),
    "SELECT DISTINCT c FROM c",
    "SELECT count(*) FROM c GROUP BY c",
    "SELECT n, CASE c WHEN 'ab  ' THEN 1 ELSE 2 END, nullif(c, 'ab ') FROM c",
    (
        "SELECT concat(c, '|'), upper(c) || '|', c::varchar || '|', c::text || '|', quote_literal(c), "
        "md5(c), substr(c, 1, 4) || '|' , replace(c, ' ', '_'), left(c, 4) || '|', rpad(c, 6, '*'), "
        "to_json(c), position(' ' in c), format('%s|', c) FROM c"
    ),
    "SELECT string_agg(c, ',') FROM c WHERE n < 3",
    "SELECT max(c) || '|', min(c) FROM c",
    "SELECT array_agg(c ORDER BY n), jsonb_agg(c ORDER BY n) FROM c",
    "SELECT c ~ '^ab$', c ~ '^ab   $', c SIMILAR TO 'ab', c ILIKE 'AB___' FROM c WHERE n = 1",
    "SELECT row_to_json(c) FROM c WHERE n = 1",
    "SELECT jsonb_build_object('c', c) FROM c WHERE n = 1",
    "SELECT a.n, b.n FROM c a JOIN c b ON a.c = b.v",
    (
        "SELECT pg_typeof(coalesce(c, t)), pg_typeof(coalesce(t, c)), pg_typeof(coalesce('x', c)), pg_typeof(greatest(c, v)),"
        " pg_typeof(CASE WHEN n > 1 THEN t ELSE c END), pg_typeof(coalesce(c, NULL)) FROM c WHERE n = 1"
    ),
    "SELECT pg_typeof(x) FROM (SELECT c AS x FROM c UNION ALL SELECT t FROM c) y LIMIT 1",
    "SELECT pg_typeof(x) FROM (SELECT 'q' AS x UNION ALL SELECT c FROM c) y LIMIT 1",
    "SELECT pg_typeof(x) FROM (VALUES ('a'::char(3)), ('a  '), ('a'::text)) y (x) WHERE x = 'a      '",
    "SELECT x || '|' FROM (SELECT 'a'::char(3) AS x UNION SELECT 'a '::char(2) UNION SELECT 'a   '::text) y",
    "SELECT coalesce(c, NULL), coalesce(NULL, c) FROM c WHERE n = 1",
    "SELECT c FROM c WHERE n = 1 UNION ALL SELECT NULL",
    "CREATE TABLE mixed AS SELECT coalesce(c, t) AS x FROM c",
    "INSERT INTO mixed VALUES ('much longer than five  ')",
    "SELECT length(x), x = 'much longer than five' FROM mixed",
    "CREATE VIEW cv AS SELECT n FROM c WHERE c = 'ab    '",
    "TABLE cv",
    "PREPARE q AS SELECT n FROM c WHERE c = $1",
    "EXECUTE q ('ab    ')",
    "EXECUTE q (NULL)",
    "PREPARE r AS SELECT n FROM c WHERE c IN ($1, $2)",
    "EXECUTE r ('ab    ', 'z')",
    "PREPARE s AS UPDATE c SET t = $2 WHERE c = $1 RETURNING n",
    "EXECUTE s ('ab    ', 'z')",
    "UPDATE c SET v = c WHERE n = 1 RETURNING v || '|'",
    "UPDATE c SET n = 9 WHERE c = 'ab     ' AND n = 1 RETURNING n",
    "CREATE TABLE k (c char(4) PRIMARY KEY, n int)",
    "INSERT INTO k VALUES ('a', 1)",
    "INSERT INTO k VALUES ('a  ', 1)",
    "SELECT n FROM k WHERE c = 'a     '",
    "PREPARE kk AS SELECT n FROM k WHERE c = $1",
    "EXECUTE kk ('a  ')",
    "INSERT INTO k VALUES ('a ', 2) ON CONFLICT (c) DO UPDATE SET n = 2",
    "TABLE k",
    "DELETE FROM c WHERE c = 'ab    ' RETURNING n",
)


def test_queries_of_intervals_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPT, postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_intervals_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(TABLE, QUERIES, CHANGES, postgres, tmp_path)
    assert ours == theirs


def test_group_shows_its_least_datum_in_any_order_of_rows(postgres: Connection, tmp_path: Path) -> None:
    texts = [
        f"SELECT i FROM (VALUES (interval '{one}'), ('{other}')) v (i) GROUP BY i"
        for one, other in (("1 day", "24 hours"), ("24 hours", "1 day"))
    ]
    (_, (_, first)), (_, (_, second)) = outcomes(texts, postgres, tmp_path)[0]
    assert first == second


def test_queries_of_characters_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(CHARACTER_SCRIPT, postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_characters_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(CHARACTERS, CHARACTER_QUERIES, CHARACTER_CHANGES, postgres, tmp_path)
    assert ours == theirs


ARRAYS_OF_INTERVALS = (
    "CREATE TABLE t (id int PRIMARY KEY, a interval[], b interval)",
    "INSERT INTO t VALUES (1, '{1 day,24:00:00}', '1 day'), (2, ARRAY[interval '24:00', '1 day'], '24:00'), (3, '{}', NULL), (4, NULL, '1 mon'), (5, '{NULL,\"1 mon -1 days +04:05:06.789\"}', '30 days'), (6, ARRAY['1 year'::interval], '-1 day')",
    "TABLE t",
    "SELECT id, a[1], a[2:], cardinality(a), a || b, b || a, array_append(a, '1 hour'), a::text, pg_typeof(a) FROM t",
    "SELECT x.id, y.id, x.a = y.a, x.a <> y.a, x.a < y.a, x.a >= y.a, x.a IS DISTINCT FROM y.a FROM t x, t y",
    "SELECT id FROM t WHERE a = '{1 day,1 day}'",
    "SELECT id FROM t WHERE a @> ARRAY[interval '24:00']",
    "SELECT id FROM t WHERE a && '{24:00,1 hour}'",
    "SELECT id, interval '24:00' = ANY (a), interval '1 day' > ALL (a), b = ANY (a), b <> ALL (a), b < ANY (a) FROM t",
    "SELECT id, array_position(a, '24:00'), array_positions(a, '1 day'), array_remove(a, '24:00'), array_replace(a, '1 day', '2 days') FROM t",
    "SELECT id, array_sort(a), array_reverse(a), array_to_string(a, ';', '-'), array_length(a, 1), array_dims(a) FROM t WHERE id <> 2",
    "SELECT count(DISTINCT a), count(a) FROM t",
    "SELECT count(*) FROM t GROUP BY a",
    "SELECT count(*) FROM (SELECT DISTINCT a FROM t) s",
    "SELECT count(*) FROM (SELECT a FROM t UNION SELECT '{24:00,24:00}') s",
    "SELECT id FROM t ORDER BY a, id",
    "SELECT id FROM t ORDER BY a DESC NULLS LAST, id",
    "SELECT array_agg(b ORDER BY id), array_agg(b ORDER BY b, id) FROM t",
    "SELECT id, unnest(a) FROM t",
    "SELECT t.id, x, o FROM t, unnest(a) WITH ORDINALITY u(x, o)",
    "SELECT to_jsonb(a), array_to_json(a)::jsonb FROM t",
    "SELECT a::text[], ARRAY['1 day']::interval[], '{1 day}'::text::interval[], ARRAY[b, interval '1 hour'] FROM t",
    "SELECT max(a) = '{1 year}', min(a) FROM t",
    "SELECT x.id, y.id FROM t x JOIN t y ON x.a = y.a",
    "SELECT x.id, y.id FROM t x JOIN t y USING (a) WHERE x.id < y.id",
    "SELECT id FROM t WHERE a IN ('{24:00,24:00}', '{}')",
    "SELECT id FROM t WHERE a IN (SELECT a FROM t WHERE id = 2)",
    "SELECT id, row_number() OVER (PARTITION BY a ORDER BY id), rank() OVER (ORDER BY a) FROM t",
    "SELECT a FROM t EXCEPT SELECT '{24:00,24:00}'",
    "SELECT interval '1 day' = ANY ('{24:00}'), ARRAY(SELECT b FROM t ORDER BY id)",
    "SELECT '{x}'::interval[]",
    "UPDATE t SET a = a || interval '1 hour' WHERE id = 3 RETURNING a",
    "DELETE FROM t WHERE a = '{1 day, 1 day}' RETURNING id",
    "INSERT INTO t (id, a) SELECT id + 10, a FROM t RETURNING id, a",
    "CREATE TABLE k (a interval[] PRIMARY KEY)",
    "INSERT INTO k VALUES ('{1 day}'), ('{2 days}')",
    "INSERT INTO k VALUES ('{24:00}')",
    "INSERT INTO k VALUES ('{48:00}') ON CONFLICT (a) DO NOTHING",
    "SELECT a FROM k WHERE a = '{24:00}'",
    "SELECT data_type, udt_name FROM information_schema.columns WHERE table_name = 'k'",
    "SELECT format_type(atttypid, atttypmod), attndims FROM pg_attribute WHERE attrelid = 'k'::regclass AND attnum > 0",
    "SELECT array_fill(interval '1 day', ARRAY[2]), width_bucket(interval '24:00', ARRAY[interval '1 day', '2 days'])",
    "PREPARE p (interval[]) AS SELECT $1, $1[1] + interval '1 hour'",
    "EXECUTE p ('{1 day,NULL}')",
    "INSERT INTO t (id, b) SELECT * FROM unnest('{31,32}'::int[], '{1 day,2 days}'::interval[]) RETURNING *",
)
ARRAY_QUERIES = (
    "SELECT id, a, a[1] AS b, cardinality(a) AS c, b = ANY (a) AS d, a || b AS e FROM t",
    "SELECT a::text[] IS NULL AS b, count(*) AS n FROM t GROUP BY a",
    "SELECT count(DISTINCT a) AS n FROM t",
    "SELECT x.id, y.id AS other FROM t x JOIN t y ON x.a = y.a",
    "SELECT id, x FROM t, unnest(a) x",
    "SELECT array_agg(b ORDER BY id) AS b FROM t",
    "SELECT id FROM t WHERE a IN (SELECT a FROM t WHERE id < 3)",
    "SELECT id, rank() OVER (ORDER BY a) AS r FROM t",
)
ARRAY_CHANGES = (
    "INSERT INTO t VALUES (7, '{24:00,24:00}', '1 day'), (8, '{1 mon}', '720:00'), (9, '{30 days}', NULL)",
    "UPDATE t SET a = ARRAY[b, NULL] WHERE id IN (1, 4)",
    "DELETE FROM t WHERE a = '{1 day,24:00}'",
    "UPDATE t SET b = '24:00' WHERE b = '1 day'",
)


def test_arrays_of_intervals_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(ARRAYS_OF_INTERVALS, postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_arrays_of_intervals_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(ARRAYS_OF_INTERVALS[:2], ARRAY_QUERIES, ARRAY_CHANGES, postgres, tmp_path)
    assert ours == theirs
