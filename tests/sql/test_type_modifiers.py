"""Columns of `numeric(p,s)`, `varchar(n)` and `char(n)`: what they store, refuse and show, as PostgreSQL does."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import Client, SqlWorld

from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.copy_format import CopyIn
from derive.sql.parser.statement import CopyFormat


@pytest.fixture
def world(tmp_path: Path) -> SqlWorld:
    return SqlWorld(tmp_path)


def test_tables_and_views(world: SqlWorld) -> None:
    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (n numeric(6,2), v varchar(3), c char(4), i smallint, r real)")
        assert await client("INSERT INTO t VALUES (1.005, 'ab  ', 'x ', 1, 0.5) RETURNING *") == [
            ("1.01", "ab ", "x   ", "1", "0.5")
        ]
        assert await client.fails("INSERT INTO t (n) VALUES (9999.999)") == "22003"
        assert await client.fails("INSERT INTO t (v) VALUES ('abcd')") == "22001"
        assert await client.fails("INSERT INTO t (c) VALUES ('abcde')") == "22001"
        assert await client.fails("UPDATE t SET n = 10000") == "22003"
        assert await client.fails("INSERT INTO t (v) SELECT c || 'yzq' FROM t") == "22001"
        await client("INSERT INTO t SELECT n + 0.001, v, c, i, r FROM t")
        await client("INSERT INTO t (n, c) VALUES (2.5, 'x')")
        await client(
            "CREATE MATERIALIZED VIEW m AS SELECT c, sum(n) AS s, max(n) AS x, n * 1.5 AS y FROM t GROUP BY c, n"
        )
        await client("CREATE TABLE copied AS SELECT n, c FROM t WHERE n = 2.5")

    async def second(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("INSERT INTO copied VALUES (3.14159, 'y')")
        assert await client("SELECT * FROM copied ORDER BY n") == [("2.50", "x   "), ("3.14", "y   ")]
        assert await client("SELECT * FROM m ORDER BY s") == [
            ("x   ", "2.02", "1.01", "1.515"),
            ("x   ", "2.50", "2.50", "3.750"),
        ]
        # 1.01 and 1.010 are one group, whatever they are shown as.
        assert await client("SELECT n, count(*) FROM t GROUP BY n ORDER BY 1") == [("1.01", "2"), ("2.50", "1")]
        assert await client("SELECT c = 'x', length(c), n::text, c::text || '.' FROM t WHERE n = 2.5") == [
            ("t", "1", "2.50", "x.")
        ]

    world.within(first)
    world.within(second)


@pytest.mark.parametrize(
    ("modifier", "text", "sqlstate"),
    [
        (TypeModifier(ModifiedType.NUMERIC, 3, 1), "100", "22003"),
        (TypeModifier(ModifiedType.VARCHAR, 2), "abc", "22001"),
        (TypeModifier(ModifiedType.BPCHAR, 2), "abc", "22001"),
    ],
)
def test_copied_values_fit_or_are_refused(modifier: TypeModifier, text: str, sqlstate: str) -> None:
    kind = Type.NUMERIC if modifier.name is ModifiedType.NUMERIC else Type.TEXT
    copy = CopyIn(CopyFormat(), "t", [("a", kind)], modifiers=[modifier])

    with pytest.raises(SqlError) as caught:
        copy.feed(f"{text}\n".encode())
    assert caught.value.sqlstate == sqlstate
