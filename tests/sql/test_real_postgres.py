"""Numbers in single precision, held against a real PostgreSQL: casts, arithmetic, texts, columns, maintained views."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection

from derive.functions.types import single

SCRIPTS = {
    "values": (
        "SELECT 1.1::real, 16777217::real, '1e-45'::real, 3.4028235e38::real, 1e6::real, 123456::real, 1e-4::real, 1e-5::real",
        "SELECT 'NaN'::real, '-inf'::real, ' 1.5 '::real, 9007199791611905::real, '1.00000017881393432617187500001'::real",
        "SELECT '1e40'::real",
        "SELECT '1e-50'::real",
        "SELECT 'x'::real",
        "SELECT 1e40::float8::real",
        "SELECT 1e-50::float8::real",
        "SELECT 1e40::numeric::real",
        "SELECT 1.1::real::float8, 1.1::real::numeric, 1234567.8::real::numeric, 2.5::real::int, 3.5::real::bigint, 1.1::real::text",
        "SELECT 3e9::real::int",
        "SELECT 'NaN'::real::int",
        "SELECT float4(1.1), float8(1.1::real), 1.1::float(24), 1.1::float(25), real '1.25'",
        "SELECT to_char(0.5::float8, '9'), to_char(1.1::float8, '9.99999999999999999999'), to_char(12345678::real, '99999999')",
        "SELECT to_char(1.5::real, 'FM9.999'), to_char(-0.05::real, '0.9'), to_char(123456789012345678::float8, '999999999999999999.99')",
        "SELECT to_jsonb(1.1::real), to_jsonb(1e10::real), '1.1'::jsonb::real, to_char(1.1::real, '9.99999999'), 1.1::real || 'x'",
    ),
    "operators": (
        "SELECT a + b, a - b, a * b, a / b, -a, +a, abs(-a), @ -a, pg_typeof(a + b) FROM (VALUES (1.1::real, 0.3::real)) v (a, b)",
        "SELECT 1.1::real + 1, pg_typeof(1.1::real + 1), pg_typeof(1.1::real * 2.0), pg_typeof(1.1::real - 1.0::float8)",
        "SELECT 1.1::real = 1.1, 1.1::real = 1.1::float8, 1.1::real = '1.1', 1.5::real = 1.5, 16777216::real = 16777217",
        "SELECT 1.1::real < 1.1::float8, 1.1::real >= 1.1, 1.1::real IS DISTINCT FROM 1.1, 'NaN'::real > 'inf'::real",
        "SELECT 1.1::real IN (1.1, 2), 1.1::real IN (1.1), 16777217 IN (16777216::real, 2::real), 16777216 IN (16777217::real, 2), 1.1::real BETWEEN 1.1 AND 1.2, 'NaN'::real = 'NaN'::float8",
        "SELECT nullif(1.5::real, 1.5), nullif(1.1::real, 1.1), pg_typeof(nullif(1.1::real, 1.1::float8))",
        "SELECT nullif(1, 2.5), pg_typeof(nullif(1, 2.5)), pg_typeof(nullif(1::bigint, 1.5::real)), pg_typeof(nullif(1.5, 2))",
        "SELECT pg_typeof(nullif(date '2020-01-01', now())), pg_typeof(nullif(1::smallint, 2.5::float8)), pg_typeof(nullif(1::smallint, 2::bigint))",
        "SELECT nullif('a'::char(3), 'a'), nullif('b'::char(3), 'a'), nullif('a', 'b'), pg_typeof(nullif('1.0.0.0'::cidr, '1.0.0.1'::inet))",
        "SELECT greatest(1.1::real, 1), pg_typeof(greatest(1.1::real, 1)), pg_typeof(coalesce(1::real, 2::float8))",
        "SELECT pg_typeof(CASE WHEN true THEN 1 ELSE 1.1::real END), pg_typeof(CASE WHEN true THEN 1.5 ELSE 1.1::real END)",
        "SELECT sqrt(2::real), pg_typeof(sqrt(2::real)), round(2.5::real), floor(1.5::real), sign(-2::real), 2::real ^ 2",
        "SELECT 3e38::real + 3e38::real",
        "SELECT 3e38::real * 10::real",
        "SELECT 1e-38::real * 1e-38::real",
        "SELECT 1::real / 0::real",
        "SELECT 1.5::real % 1",
        "SELECT mod(1.5::real, 1)",
        "SELECT round(1.55::real, 1)",
        "SELECT ARRAY[1.1, 'NaN', NULL]::real[], (ARRAY[1.1::real])[1], 1.1::real = ANY ('{1.1,2}'::real[]), '{1.5}'::float8[]::real[]",
        "SELECT pg_typeof(ARRAY[1.1::real]), array_agg(x ORDER BY x), unnest(ARRAY[1.1::real]) FROM (VALUES (2.2::real), (1.1)) v (x) GROUP BY 1",
        "SELECT x FROM (VALUES (1.1::real)) v (x) UNION SELECT 1.1 UNION SELECT 1.1::real",
        "SELECT pg_typeof(x), x FROM (SELECT 1.1::real UNION SELECT 1.1::float8) v (x)",
    ),
    "columns": (
        "CREATE TABLE t (n int, a real, b real DEFAULT 1.1, c float8, d real[], PRIMARY KEY (n))",
        "INSERT INTO t VALUES (1, 1.1, DEFAULT, 1.1, '{1.1,NULL}'), (2, 'NaN', 16777217, 2, NULL), (3, NULL, -0.5, 3, '{}')",
        "INSERT INTO t (n, a) VALUES (4, 1e40)",
        "INSERT INTO t (n, a) VALUES (4, 1e300::float8)",
        "INSERT INTO t (n, a) SELECT n + 10, c FROM t RETURNING *",
        "TABLE t",
        "SELECT n FROM t WHERE a = 1.1",
        "SELECT n FROM t WHERE a = 1.1::real",
        "SELECT n FROM t WHERE a IN ('1.1', 3)",
        "SELECT n FROM t WHERE a < 1.1::float8 OR a > 1.2",
        "SELECT x.n, y.n FROM t x JOIN t y ON x.a = y.c",
        "SELECT sum(a), avg(a), min(a), max(b), count(DISTINCT b), pg_typeof(sum(a)), pg_typeof(avg(a)) FROM t WHERE a <> 'NaN'",
        "SELECT sum(DISTINCT b), stddev(b), pg_typeof(stddev(b)), percentile_cont(0.5) WITHIN GROUP (ORDER BY b) FROM t",
        "SELECT n, max(b) OVER (ORDER BY n), lag(a) OVER (ORDER BY n) FROM t",
        "SELECT sum(3e38::real) FROM t",
        "UPDATE t SET a = a + 1, c = a * 2 WHERE n < 10 RETURNING n, a, c",
        "DELETE FROM t WHERE b = 1.1::real RETURNING n",
        "SELECT data_type, numeric_precision, numeric_precision_radix, numeric_scale, udt_name FROM information_schema.columns WHERE table_name = 't'",
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0",
        "CREATE TABLE k (a real PRIMARY KEY)",
        "INSERT INTO k VALUES (1.1), ('NaN'), (3)",
        "INSERT INTO k VALUES (1.10000001)",
        "INSERT INTO k VALUES (1.1) ON CONFLICT (a) DO UPDATE SET a = k.a * 2 RETURNING a",
        "SELECT a FROM k WHERE a = 2.2::real",
        "ALTER TABLE k ALTER a TYPE float8",
        "TABLE k",
        "ALTER TABLE k ALTER a TYPE real",
        "TABLE k",
        "PREPARE p (real) AS SELECT $1, $1 = 1.1, pg_typeof($1)",
        "EXECUTE p (1.1)",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_real_equals_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_of_real_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "CREATE TABLE t (n int, a real, b float8)",
        "INSERT INTO t VALUES (1, 1.1, 1.1), (2, 16777217, 16777217), (3, NULL, 0.5)",
    )
    queries = (
        "SELECT n, a, a * 2::real AS twice, a + b AS both, a = b AS same, b::real AS c FROM t",
        "SELECT a, count(*), sum(a), avg(a), max(a) FROM t GROUP BY a",
        "SELECT sum(a), avg(a), min(b::real) FROM t",
        "SELECT DISTINCT b::real FROM t",
        "SELECT x.n, y.n AS m FROM t x JOIN t y ON x.a = y.b::real",
    )
    changes = (
        "INSERT INTO t VALUES (4, 1.2, 0.1), (5, 'Infinity', 16777216), (6, 0.25, 0.25)",
        "UPDATE t SET a = a / 4::real WHERE n IN (1, 4)",
        "UPDATE t SET b = a, a = b WHERE n <> 3",
        "DELETE FROM t WHERE a > 1e6 OR a = 'Infinity'",
        "DELETE FROM t WHERE b = 'Infinity' OR a = 0.25::real",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs


def test_texts_of_real_equal_postgresql(postgres: Connection) -> None:
    """Law: the text of every number equals PostgreSQL's, and reads back."""
    generator = random.Random(1)
    bits = [generator.getrandbits(32) for _ in range(3_000)] + [*range(1, 200), *range(0x4B000000, 0x4B000100)]
    bits += [exponent << 23 for exponent in range(255)]
    numbers = [struct.unpack(">f", struct.pack(">I", number))[0] for number in bits]
    finite = [number for number in numbers if number - number == 0]
    theirs = postgres.execute(
        "SELECT array_agg(x::real::text ORDER BY n) FROM unnest(%s::float8[]) WITH ORDINALITY u (x, n)", [finite]
    )
    assert [single.text_of(number) for number in finite] == theirs.fetchall()[0][0]
    assert [single.datum_of_text(single.text_of(number)) for number in finite] == finite
