"""CREATE FUNCTION in SQL, held against a real PostgreSQL: scripts, and maintained views that call functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

SCRIPTS = {
    "calls": (
        "CREATE FUNCTION add1(x int) RETURNS int LANGUAGE SQL AS 'SELECT x + 1'",
        "SELECT add1(2), add1(NULL), add1('3'), public.add1(4), pg_typeof(add1(1))",
        "SELECT add1(1.5)",
        "SELECT add1(1, 2)",
        "SELECT pg_catalog.add1(1)",
        "CREATE FUNCTION add1(x int) RETURNS int LANGUAGE SQL AS 'SELECT x + 2'",
        "CREATE FUNCTION add1(x text) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$ SELECT $1 || '1'; $$",
        "SELECT add1('3'::text), add1(2), add1(2::bigint)",
        "CREATE FUNCTION both(a int, b int, c text) RETURNS text LANGUAGE SQL RETURN a || c || both.b",
        "SELECT both(1, 2, 'x'), both(add1(1), add1(2), add1('y'::text))",
        "CREATE FUNCTION nine() RETURNS bigint LANGUAGE SQL AS 'SELECT 9'",
        "SELECT nine() + 1, (SELECT nine()) FROM (VALUES (1), (2)) t(x)",
        "SELECT * FROM nine()",
        "CREATE FUNCTION kind(double precision, timestamp with time zone) RETURNS numeric LANGUAGE SQL AS 'SELECT $1'",
        "SELECT kind(1.5, now())",
        "CREATE FUNCTION strictly(a int, b int) RETURNS int STRICT LANGUAGE SQL AS 'SELECT coalesce(a, b, 7)'",
        (
            "CREATE FUNCTION loosely(a int, b int) RETURNS int LANGUAGE SQL CALLED ON NULL INPUT"
            " AS 'SELECT coalesce(a, b, 7)'"
        ),
        "SELECT strictly(1, NULL), strictly(NULL, 1), strictly(1, 2), loosely(NULL, 2), loosely(NULL, NULL)",
        "SELECT add1(a), count(*) FROM (VALUES (1), (1), (2)) t(a) GROUP BY add1(a) HAVING add1(count(*)::int) > 2",
        "SELECT sum(add1(a)), add1(sum(a)::int) FROM (VALUES (1), (2)) t(a) WHERE add1(a) > 1",
    ),
    "bodies": (
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t VALUES (1, 'x'), (1, 'y'), (2, 'z')",
        "CREATE FUNCTION number(a int) RETURNS bigint STABLE LANGUAGE SQL AS 'SELECT count(*) FROM t WHERE t.a = $1'",
        "CREATE FUNCTION own(n int) RETURNS text LANGUAGE SQL AS 'SELECT b FROM t WHERE a = n ORDER BY b DESC'",
        "SELECT a, number(a), own(a) FROM t",
        "SELECT x, number(x), own(x) FROM generate_series(0, 3) x",
        "CREATE FUNCTION later(n int) RETURNS text LANGUAGE SQL AS 'SELECT b FROM t ORDER BY b OFFSET n LIMIT 5'",
        "SELECT later(0), later(1), later(3)",
        "CREATE FUNCTION twice(n int) RETURNS bigint LANGUAGE SQL AS 'SELECT number(n) + number($1)'",
        "SELECT twice(1), twice(a) FROM t",
        "UPDATE t SET b = own(1) WHERE number(a) = 1 RETURNING *",
        "DELETE FROM t WHERE twice(a) = 2",
        "INSERT INTO t SELECT twice(a)::int, b FROM t RETURNING a",
        "SELECT number(4), own(4)",
        (
            "CREATE FUNCTION ranked(n int) RETURNS bigint LANGUAGE SQL AS"
            " 'WITH r AS (SELECT b, row_number() OVER (ORDER BY b) AS k FROM t) SELECT k FROM r WHERE k > n ORDER BY k'"
        ),
        "SELECT ranked(0), ranked(2), ranked(9)",
    ),
    "refusals": (
        "CREATE FUNCTION f(x int) RETURNS int AS 'SELECT 1'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL",
        "CREATE FUNCTION f(x int, x int) RETURNS int LANGUAGE SQL AS 'SELECT 1'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT $2'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT y'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT x, x'",
        "CREATE FUNCTION f(x int) RETURNS date LANGUAGE SQL AS 'SELECT x'",
        "CREATE FUNCTION f(x nothing) RETURNS int LANGUAGE SQL AS 'SELECT 1'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELEC 1'",
        "CREATE FUNCTION nothing.f(x int) RETURNS int LANGUAGE SQL AS 'SELECT 1'",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT x'",
        "CREATE OR REPLACE FUNCTION f(x int) RETURNS text LANGUAGE SQL AS 'SELECT x::text'",
        "CREATE FUNCTION f(x bigint) RETURNS int LANGUAGE SQL AS 'SELECT 8'",
        "DROP FUNCTION f",
        "DROP FUNCTION f(text)",
        "DROP FUNCTION IF EXISTS f(text), nothing",
        "DROP FUNCTION f(bigint), f(int)",
        "SELECT f(1)",
        "DROP FUNCTION f",
    ),
    "definitions": (
        "CREATE SCHEMA s",
        "CREATE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT x'",
        "CREATE OR REPLACE FUNCTION f(x int) RETURNS int LANGUAGE SQL AS 'SELECT x * 10'",
        "CREATE FUNCTION s.f(x int) RETURNS int LANGUAGE SQL AS 'SELECT x * 100'",
        "SELECT f(1), s.f(1)",
        "SET search_path = s, public",
        "SELECT f(1), public.f(1)",
        "SET search_path = public",
        "CREATE VIEW v AS SELECT f(x) AS y FROM generate_series(1, 2) x",
        "SELECT * FROM v",
        "DROP FUNCTION f(int)",
        "DROP FUNCTION f(int) CASCADE",
        "SELECT * FROM v",
        "BEGIN",
        "CREATE FUNCTION g(x int) RETURNS int LANGUAGE SQL AS 'SELECT s.f(x) + 1'",
        "CREATE VIEW w AS SELECT g(2) AS y",
        "SELECT g(3), y FROM w",
        "ROLLBACK",
        "SELECT g(3)",
        "BEGIN",
        "CREATE FUNCTION g(x int) RETURNS int LANGUAGE SQL AS 'SELECT s.f(x) + 1'",
        "CREATE VIEW w AS SELECT g(2) AS y",
        "COMMIT",
        "SELECT g(3), y FROM w",
        (
            "SELECT n.nspname, p.proname, pg_get_function_result(p.oid), pg_get_function_arguments(p.oid), p.prokind,"
            " p.provolatile, p.proisstrict, p.pronargs, p.prorettype::regtype, l.lanname FROM pg_proc p"
            " JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang"
            " WHERE p.proname IN ('f', 'g') AND n.nspname <> 'pg_catalog'"
        ),
        (
            "SELECT 'g'::regproc::oid = p.oid, 'g(int)'::regprocedure = p.oid, p.oid::regproc, to_regproc('nothing')"
            " FROM pg_proc p WHERE p.proname = 'g'"
        ),
        "DROP SCHEMA s",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_functions_in_sql_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_with_functions_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "CREATE TABLE t (a int, b int)",
        "CREATE TABLE names (id int, name text)",
        "CREATE FUNCTION add(x int, y int) RETURNS int IMMUTABLE LANGUAGE SQL AS 'SELECT coalesce(x, 0) + $2'",
        (
            "CREATE FUNCTION name_of(id int) RETURNS text STABLE LANGUAGE SQL"
            " AS 'SELECT max(name) FROM names n WHERE n.id = $1'"
        ),
        "CREATE FUNCTION total(x int) RETURNS bigint LANGUAGE SQL AS 'SELECT sum(b) FROM t WHERE a = add(x, 0)'",
        "INSERT INTO t VALUES (1, 2), (NULL, 3), (2, 0)",
        "INSERT INTO names VALUES (1, 'one')",
    )
    queries = (
        "SELECT a, add(a, b) AS n FROM t WHERE add(a, 1) < 10",
        "SELECT add(a, 1) AS k, count(*) FROM t GROUP BY add(a, 1)",
        "SELECT a, name_of(a) AS name, total(a) AS total FROM t",
    )
    changes = (
        "INSERT INTO t VALUES (1, 7), (9, 1), (3, 3)",
        "INSERT INTO names VALUES (1, 'uno'), (2, 'two')",
        "UPDATE t SET a = 2 WHERE b = 7",
        "DELETE FROM names WHERE name = 'uno'",
        "DELETE FROM t WHERE a IS NULL",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs


def test_functions_outlast_the_server_and_bind_names(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)")
        await client("CREATE FUNCTION most(x int) RETURNS int LANGUAGE SQL AS 'SELECT max(a) + x FROM t'")
        await client("CREATE MATERIALIZED VIEW v AS SELECT a, most(a) AS m FROM t")
        assert sorted(await client("TABLE v")) == [("1", "3"), ("2", "4")]
        await client("ALTER TABLE t RENAME TO u")

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (a int); INSERT INTO u VALUES (5)")
        assert sorted(await client("TABLE v")) == [("1", "6"), ("2", "7"), ("5", "10")]
        assert await client("SELECT most(0)") == [("5",)]
        assert await client.fails("DROP TABLE u") == "2BP01"
        replacement = "CREATE OR REPLACE FUNCTION most(x int) RETURNS int LANGUAGE SQL AS 'SELECT x'"
        assert await client.fails(replacement) == "2BP01"
        assert await client.fails("CREATE TABLE w (a int CHECK (most(a) > 0))") == "0A000"
        assert await client.fails("CREATE FUNCTION g(x int) RETURNS int LANGUAGE SQL AS 'SELECT g(x)'") == "42883"
        assert await client.fails(replacement.replace("SELECT x", "SELECT most(x)")) == "0A000"
        assert await client.fails("SELECT most((random() * 10)::int)") == "0A000"
        await client.script("DROP MATERIALIZED VIEW v", replacement)
        assert await client("SELECT most(3)") == [("3",)]
        ((text,),) = await client("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'most'")
        assert text == (
            "CREATE OR REPLACE FUNCTION public.most(x integer)\n RETURNS integer\n LANGUAGE sql\n"
            "AS $function$SELECT x$function$\n"
        )

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)
