"""Foreign keys, held against a real PostgreSQL: writes, deletions with their effects, and definitions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from postgres_scripts import maintained, outcomes
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator

TABLES = (
    "CREATE TABLE p (id int PRIMARY KEY, x int UNIQUE, y text)",
    "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, x bigint REFERENCES p (x) ON DELETE SET NULL)",
    "INSERT INTO p VALUES (1, 10, 'a'), (2, 20, 'b'), (3, NULL, 'c')",
)
SCRIPTS = {
    "deferred": (
        "CREATE TABLE p (a int PRIMARY KEY, up int CONSTRAINT p_up REFERENCES p DEFERRABLE)",
        "CREATE TABLE c (x int CONSTRAINT c_x REFERENCES p DEFERRABLE INITIALLY DEFERRED, y int REFERENCES p)",
        "INSERT INTO c VALUES (1, NULL)",
        "BEGIN",
        "INSERT INTO c VALUES (1, NULL), (2, NULL)",
        "INSERT INTO p VALUES (1, NULL)",
        "UPDATE c SET x = 1 WHERE x = 2",
        "COMMIT",
        "TABLE c",
        "BEGIN",
        "INSERT INTO c VALUES (3, NULL)",
        "COMMIT",
        "ROLLBACK",
        "TABLE c",
        "BEGIN",
        "DELETE FROM p WHERE a = 1",
        "INSERT INTO p VALUES (1, 1)",
        "COMMIT",
        "BEGIN",
        "DELETE FROM p WHERE a = 1",
        "COMMIT",
        "TABLE p",
        "BEGIN",
        "UPDATE p SET a = 5 WHERE a = 1",
        "ROLLBACK",
        "UPDATE p SET up = NULL",
        "BEGIN",
        "UPDATE p SET a = 5 WHERE a = 1",
        "COMMIT",
        "BEGIN",
        "UPDATE p SET a = 5 WHERE a = 1",
        "UPDATE c SET x = 5",
        "COMMIT",
        "TABLE c",
        "BEGIN",
        "INSERT INTO p VALUES (7, 8)",
        "ROLLBACK",
        "BEGIN",
        "SET CONSTRAINTS ALL DEFERRED",
        "INSERT INTO p VALUES (7, 8)",
        "INSERT INTO c VALUES (7, 8)",
        "ROLLBACK",
        "BEGIN",
        "SET CONSTRAINTS p_up DEFERRED",
        "INSERT INTO p VALUES (7, 8), (8, 9)",
        "INSERT INTO p VALUES (9, 7)",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "INSERT INTO p VALUES (10, 11)",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO c VALUES (77, NULL)",
        "SAVEPOINT s",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "ROLLBACK TO s",
        "DELETE FROM c WHERE x = 77",
        "SET CONSTRAINTS c_x IMMEDIATE",
        "SAVEPOINT t",
        "INSERT INTO c VALUES (78, NULL)",
        "ROLLBACK TO t",
        "COMMIT",
        "TABLE c",
        "BEGIN",
        "SET CONSTRAINTS nothing DEFERRED",
        "ROLLBACK",
        "BEGIN",
        "SET CONSTRAINTS c_y_fkey DEFERRED",
        "ROLLBACK",
        "SET CONSTRAINTS p_pkey DEFERRED",
        "SET CONSTRAINTS ALL DEFERRED",
        "CREATE TABLE e (x int REFERENCES p NOT DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE e (x int REFERENCES p INITIALLY DEFERRED NOT DEFERRABLE)",
        "SELECT conname, condeferrable, condeferred, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'",
        "SELECT constraint_name, is_deferrable, initially_deferred FROM information_schema.table_constraints WHERE constraint_type = 'FOREIGN KEY'",
    ),
    "effects": (
        "CREATE TABLE p (a int PRIMARY KEY, b text UNIQUE)",
        "INSERT INTO p SELECT i, i::text FROM generate_series(0, 9) AS i",
        "CREATE TABLE u (x int PRIMARY KEY REFERENCES p ON UPDATE CASCADE ON DELETE CASCADE)",
        "CREATE TABLE n (x int REFERENCES p ON UPDATE SET NULL ON DELETE SET NULL, y text, CHECK (x IS NOT NULL OR y = 'free'))",
        "CREATE TABLE d (x int DEFAULT 0 REFERENCES p ON UPDATE SET DEFAULT ON DELETE SET DEFAULT, twice int GENERATED ALWAYS AS (x * 2) STORED)",
        "CREATE TABLE uu (x int REFERENCES u ON UPDATE CASCADE)",
        "CREATE TABLE r (x int REFERENCES p ON UPDATE RESTRICT)",
        "INSERT INTO u VALUES (1), (2)",
        "INSERT INTO uu VALUES (1), (1)",
        "INSERT INTO n VALUES (3, 'free'), (4, 'bound')",
        "INSERT INTO d VALUES (5), (6), (7)",
        "INSERT INTO r VALUES (9)",
        "UPDATE p SET a = a + 100 WHERE a IN (1, 3, 5)",
        "TABLE u",
        "TABLE uu",
        "TABLE n",
        "TABLE d",
        "UPDATE p SET a = 104 WHERE a = 4",
        "DELETE FROM p WHERE a = 4",
        "UPDATE p SET a = 109 WHERE a = 9",
        "DELETE FROM p WHERE a = 6",
        "TABLE d",
        "DELETE FROM p WHERE a = 2",
        "TABLE u",
        "DELETE FROM p WHERE a = 101",
        "TABLE uu",
        "DELETE FROM p WHERE a = 0",
        "UPDATE d SET x = 7",
        "DELETE FROM p WHERE a = 0",
        "DELETE FROM p WHERE a = 7",
        "BEGIN",
        "UPDATE p SET a = 200 WHERE a = 101",
        "TABLE uu",
        "UPDATE p SET a = 201 WHERE a = 200",
        "TABLE uu",
        "COMMIT",
        "TABLE u",
        "SELECT conname, confupdtype, confdeltype, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'",
        "SELECT constraint_name, update_rule, delete_rule FROM information_schema.referential_constraints",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TABLE k (a int, b int, PRIMARY KEY (a, b))",
        "CREATE TABLE m (a positive DEFAULT 1, b int NOT NULL, FOREIGN KEY (a, b) REFERENCES k ON UPDATE CASCADE ON DELETE SET NULL)",
        "INSERT INTO k VALUES (1, 2), (3, 4)",
        "INSERT INTO m VALUES (1, 2), (3, 4)",
        "UPDATE k SET a = -a",
        "UPDATE k SET a = a + 10, b = b + 10",
        "TABLE m",
        "DELETE FROM k WHERE a = 11",
    ),
    "cycles": (
        "CREATE TABLE t (a int PRIMARY KEY, up int REFERENCES t ON UPDATE CASCADE ON DELETE CASCADE)",
        "INSERT INTO t VALUES (1, NULL), (2, 1), (3, 2), (4, 4)",
        "UPDATE t SET a = a + 10",
        "TABLE t",
        "UPDATE t SET a = 20 WHERE a = 11",
        "TABLE t",
        "DELETE FROM t WHERE a = 20",
        "TABLE t",
        "CREATE TABLE a (x int PRIMARY KEY)",
        "CREATE TABLE b (x int PRIMARY KEY)",
        "ALTER TABLE a ADD CONSTRAINT ab FOREIGN KEY (x) REFERENCES b ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE b ADD CONSTRAINT ba FOREIGN KEY (x) REFERENCES a ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
        "BEGIN",
        "INSERT INTO a VALUES (1), (2)",
        "INSERT INTO b VALUES (1), (2)",
        "COMMIT",
        "DELETE FROM a WHERE x = 1",
        "TABLE b",
    ),
    "writes": (
        *TABLES,
        "INSERT INTO c VALUES (1, 1, 10), (2, NULL, NULL)",
        "INSERT INTO c VALUES (3, 9, NULL)",
        "INSERT INTO c VALUES (3, 1, 11)",
        "INSERT INTO c VALUES (8, 1, 10), (9, 99, 10)",
        "INSERT INTO c SELECT 3, max(id), max(x) FROM p",
        "UPDATE c SET p = 7 WHERE id = 1",
        "UPDATE c SET p = 2 WHERE id = 1 RETURNING p",
        "INSERT INTO c VALUES (1, 8, NULL) ON CONFLICT (id) DO UPDATE SET p = excluded.p",
        "INSERT INTO c VALUES (1, 8, NULL) ON CONFLICT DO NOTHING",
        "DELETE FROM p WHERE id = 2",
        "DELETE FROM p WHERE id = 1",
        "TABLE c",
        "UPDATE p SET id = 5 WHERE id = 2",
        "UPDATE p SET x = 21 WHERE id = 2",
        "UPDATE p SET y = 'z', id = id WHERE id = 2 RETURNING *",
        "UPDATE p SET id = id + 1",
        "DELETE FROM c",
        "UPDATE p SET id = id + 1",
        "TRUNCATE p",
        "TRUNCATE p, c",
        "TABLE p",
        "INSERT INTO p VALUES (1), (2)",
        "INSERT INTO c VALUES (1, 1)",
        "CREATE TABLE d (id int GENERATED ALWAYS AS IDENTITY, c int REFERENCES c)",
        "INSERT INTO d (c) VALUES (1), (1)",
        "TRUNCATE c RESTRICT",
        "BEGIN",
        "TRUNCATE p CASCADE",
        "TABLE d",
        "ROLLBACK",
        "TABLE d",
        "TRUNCATE p RESTART IDENTITY CASCADE",
        "INSERT INTO d (c) VALUES (NULL)",
        "TABLE p",
        "TABLE c",
        "TABLE d",
    ),
    "transactions": (
        *TABLES,
        "BEGIN",
        "INSERT INTO p VALUES (4, 40, 'd')",
        "INSERT INTO c VALUES (1, 4, 40)",
        "DELETE FROM p WHERE id = 4",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO p VALUES (4, 40, 'd')",
        "INSERT INTO c VALUES (1, 4, 40), (2, 1, 10)",
        "DELETE FROM c WHERE id = 1",
        "DELETE FROM p WHERE id = 4",
        "INSERT INTO c VALUES (3, 4, NULL)",
        "COMMIT",
        "BEGIN",
        "DELETE FROM p WHERE id = 3",
        "SAVEPOINT s",
        "INSERT INTO c VALUES (3, 3, NULL)",
        "ROLLBACK TO s",
        "INSERT INTO c VALUES (3, 2, NULL)",
        "COMMIT",
        "TABLE c",
        "WITH d AS (DELETE FROM c WHERE p = 2 RETURNING p) SELECT * FROM d",
        "TABLE p",
    ),
    "effects of deletions": (
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a ON DELETE CASCADE)",
        "CREATE TABLE d (id int, b int REFERENCES b ON DELETE CASCADE, a int DEFAULT 7 REFERENCES a ON DELETE SET NULL)",
        "CREATE TABLE r (id int, a int REFERENCES a (id) ON DELETE RESTRICT ON UPDATE NO ACTION)",
        "CREATE TABLE n (a int NOT NULL REFERENCES a ON DELETE SET NULL)",
        "INSERT INTO a VALUES (1), (2), (3), (4)",
        "INSERT INTO b VALUES (10, 1), (20, 2), (30, 3)",
        "INSERT INTO d VALUES (1, 10, 2), (2, 20, 1), (3, 20, 2), (4, NULL, 3)",
        "INSERT INTO r VALUES (1, 3)",
        "INSERT INTO n VALUES (4)",
        "DELETE FROM a WHERE id = 1",
        "TABLE b",
        "TABLE d",
        "DELETE FROM a WHERE id = 3",
        "DELETE FROM a WHERE id = 4",
        "DELETE FROM r",
        "DELETE FROM a WHERE id > 1 AND id < 4",
        "TABLE b",
        "TABLE d",
        "TABLE a",
    ),
    "tables that refer to themselves": (
        "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t (id) ON DELETE CASCADE, name text)",
        "INSERT INTO t VALUES (2, 1, 'b'), (1, NULL, 'a'), (3, 2, 'c'), (4, 4, 'd')",
        "INSERT INTO t VALUES (5, 6, 'e')",
        "UPDATE t SET id = 40, up = 40 WHERE id = 4",
        "DELETE FROM t WHERE id = 2 RETURNING id",
        "TABLE t",
        "DELETE FROM t WHERE id = 40",
        "DELETE FROM t",
        "CREATE TABLE k (a int, b text, c int, d text, PRIMARY KEY (a, b), FOREIGN KEY (c, d) REFERENCES k)",
        "INSERT INTO k VALUES (1, 'x', NULL, NULL), (2, 'y', 1, 'x'), (3, 'z', 1, NULL)",
        "INSERT INTO k VALUES (4, 'x', 2, 'x')",
        "DELETE FROM k WHERE a = 1",
        "DELETE FROM k WHERE a < 3",
        "TABLE k",
    ),
    "definitions and rows in one transaction": (
        *TABLES,
        "BEGIN",
        "ALTER TABLE p DROP CONSTRAINT p_x_key CASCADE",
        "INSERT INTO c VALUES (1, 1, 10)",
        "ALTER TABLE p ADD COLUMN z int DEFAULT 3",
        "INSERT INTO c VALUES (2, 2, 77)",
        "COMMIT",
        "BEGIN",
        "INSERT INTO c VALUES (3, 3)",
        "ALTER TABLE p RENAME COLUMN id TO key",
        "INSERT INTO c VALUES (4, 1)",
        "COMMIT",
        "INSERT INTO c VALUES (5, 9)",
        "TABLE c",
        "ALTER TABLE c ADD FOREIGN KEY (x) REFERENCES c",
        "CREATE TABLE d (a int)",
        "ALTER TABLE c ADD FOREIGN KEY (x) REFERENCES d",
    ),
    "repeated keys beside missing keys": (
        *TABLES,
        "INSERT INTO c VALUES (1, 9), (1, NULL)",
        "INSERT INTO c VALUES (1, 1), (2, 1)",
        "INSERT INTO c VALUES (1, 9)",
        "UPDATE c SET id = 1, p = 9",
        "INSERT INTO c SELECT 7, i FROM generate_series(100, 400) i",
        "INSERT INTO c VALUES (3, 9)",
    ),
    "definitions": (
        "CREATE TABLE p (id int PRIMARY KEY, x int, y int UNIQUE)",
        "CREATE VIEW v AS SELECT id FROM p",
        "CREATE TEMP TABLE tt (a int REFERENCES p)",
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (id int PRIMARY KEY, up int REFERENCES s.t, p int REFERENCES public.p ON DELETE CASCADE)",
        "INSERT INTO s.t VALUES (1, 2, NULL)",
        "INSERT INTO s.t VALUES (1, 1, NULL)",
        "DROP SCHEMA s CASCADE",
        "CREATE TABLE c (a int REFERENCES nothing)",
        "CREATE TABLE c (a int REFERENCES v)",
        "CREATE TABLE c (a int REFERENCES p (nothing))",
        "CREATE TABLE c (a int REFERENCES p (x))",
        "CREATE TABLE c (a int REFERENCES p (id, y))",
        "CREATE TABLE c (a int, FOREIGN KEY (b) REFERENCES p)",
        "CREATE TABLE c (a date REFERENCES p)",
        "CREATE TABLE c (a int CONSTRAINT own REFERENCES p ON DELETE CASCADE, b int, FOREIGN KEY (b) REFERENCES p (y))",
        (
            "SELECT conname, contype, conkey, confrelid::regclass, confkey, confdeltype, confupdtype, confmatchtype,"
            " conindid::regclass,"
            " pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'c'::regclass"
        ),
        (
            "SELECT constraint_name, column_name, ordinal_position, position_in_unique_constraint"
            " FROM information_schema.key_column_usage WHERE table_name = 'c'"
        ),
        (
            "SELECT constraint_name, unique_constraint_name, match_option, update_rule, delete_rule"
            " FROM information_schema.referential_constraints"
        ),
        (
            "SELECT constraint_name, table_name, column_name FROM information_schema.constraint_column_usage"
            " WHERE constraint_name IN ('own', 'c_b_fkey')"
        ),
        "SELECT constraint_name, constraint_type FROM information_schema.table_constraints WHERE table_name = 'c'",
        "INSERT INTO p VALUES (1, 1, 1)",
        "INSERT INTO c VALUES (2, NULL)",
        "INSERT INTO c VALUES (1, 1)",
        "DROP TABLE p",
        "ALTER TABLE p DROP CONSTRAINT p_y_key",
        "ALTER TABLE c DROP CONSTRAINT c_b_fkey",
        "INSERT INTO c VALUES (1, 9)",
        "ALTER TABLE c ADD FOREIGN KEY (b) REFERENCES p (y)",
        "DELETE FROM c WHERE b = 9",
        "ALTER TABLE c ADD FOREIGN KEY (b) REFERENCES p (y)",
        "INSERT INTO c VALUES (1, 9)",
        "ALTER TABLE c ALTER b TYPE text",
        "ALTER TABLE c ALTER b TYPE bigint",
        "ALTER TABLE c RENAME b TO z",
        "INSERT INTO c VALUES (1, 9)",
        "ALTER TABLE p RENAME TO q",
        "INSERT INTO c VALUES (5, 1)",
        "DROP VIEW v",
        "DROP TABLE q CASCADE",
        "INSERT INTO c VALUES (5, 1)",
        "BEGIN",
        "CREATE TABLE e (id int PRIMARY KEY)",
        "CREATE TABLE f (e int REFERENCES e)",
        "INSERT INTO e VALUES (1)",
        "INSERT INTO f VALUES (1)",
        "COMMIT",
        "INSERT INTO f VALUES (2)",
        "DROP TABLE e, f",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_foreign_keys_equal_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_views_follow_the_effects_of_deletions(postgres: Connection, tmp_path: Path) -> None:
    definitions = (
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE)",
        "CREATE TABLE d (n int, c int REFERENCES c ON DELETE SET NULL)",
        "INSERT INTO p VALUES (1), (2)",
    )
    queries = ("SELECT p, count(*) FROM c GROUP BY p", "SELECT d.n, c.p FROM d LEFT JOIN c ON c.id = d.c")
    changes = (
        "INSERT INTO c VALUES (10, 1), (11, 1), (20, 2)",
        "INSERT INTO d VALUES (1, 10), (2, 20), (3, NULL), (4, 99)",
        "INSERT INTO d VALUES (1, 10), (2, 20), (3, NULL)",
        "UPDATE c SET p = 2 WHERE id = 11",
        "DELETE FROM p WHERE id = 1",
        "DELETE FROM p",
    )
    ours, theirs = maintained(definitions, queries, changes, postgres, tmp_path)
    assert ours == theirs


def test_concurrent_transactions_leave_no_foreign_key_without_its_row(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        one, other = Client(coordinator), Client(coordinator)
        await one.script("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p)")
        await one("INSERT INTO p VALUES (1), (2), (3)")
        await one.script("BEGIN; INSERT INTO c VALUES (1)")
        await other("DELETE FROM p WHERE id = 1")
        assert await one.fails("COMMIT") == "40001"
        await one.script("BEGIN; DELETE FROM p WHERE id = 2")
        await other("INSERT INTO c VALUES (2)")
        assert await one.fails("COMMIT") == "40001"
        await one.script("CREATE TABLE e (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
        await one.script("BEGIN; INSERT INTO e VALUES (3)")
        await other("DELETE FROM p WHERE id = 3")
        assert await one.fails("COMMIT") == "23503"
        await other("INSERT INTO p VALUES (3)")
        await one.script("BEGIN; DELETE FROM p WHERE id = 3")
        await other("INSERT INTO e VALUES (3)")
        assert await one.fails("COMMIT") == "40001"
        await one.script("BEGIN; SELECT * FROM p")
        await other("INSERT INTO p VALUES (7)")
        assert await one.fails("INSERT INTO c VALUES (7)") == "40001"
        await one("ROLLBACK")
        await one("INSERT INTO c VALUES (7)")

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client.fails("INSERT INTO c VALUES (1)") == "23503"
        assert await client.fails("DELETE FROM p WHERE id = 2") == "23503"
        assert sorted(await client("TABLE c")) == [("2",), ("7",)]

    SqlWorld(tmp_path).within(first)
    SqlWorld(tmp_path).within(second)


async def _work(client: Client, random: Random) -> int:
    """Write parents and children at random, in blocks and without; return the number of statements that succeed."""
    count = 0
    for _ in range(12):
        is_block = random.random() < 0.5
        with suppress(SqlError):
            if is_block:
                await client("BEGIN")
            for _ in range(random.randrange(1, 3)):
                number = random.randrange(5)
                await client(
                    random.choice(
                        [
                            f"INSERT INTO p VALUES ({number}) ON CONFLICT DO NOTHING",
                            f"INSERT INTO c VALUES ({number})",
                            f"INSERT INTO d VALUES ({number})",
                            f"DELETE FROM p WHERE id = {number}",
                            f"UPDATE c SET p = {number} WHERE p = {random.randrange(5)}",
                            f"DELETE FROM c WHERE p = {number}",
                        ]
                    )
                )
                count += 1
            if is_block:
                await client("COMMIT")
        if is_block:
            await client("ROLLBACK")
    return count


@pytest.mark.parametrize("seed", range(2))
def test_sessions_at_once_leave_no_foreign_key_without_its_row(seed: int, tmp_path: Path) -> None:
    """Law: after any transactions of several sessions, each foreign key is NULL or has its row."""

    async def sessions(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (0), (1), (2)")
        deferral = "DEFERRABLE INITIALLY DEFERRED" if seed % 2 else ""
        await client(f"CREATE TABLE c (p int REFERENCES p {deferral})")
        await client("CREATE TABLE d (p int REFERENCES p ON DELETE CASCADE)")
        work = [_work(Client(coordinator), Random(4 * seed + number)) for number in range(4)]
        assert min(await asyncio.gather(*work)) > 0
        for child in ("c", "d"):
            assert await client(f"SELECT p FROM {child} WHERE p NOT IN (SELECT id FROM p)") == []

    SqlWorld(tmp_path).within(sessions)
