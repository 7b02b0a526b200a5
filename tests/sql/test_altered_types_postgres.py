"""Reads of a table in segments after a change of a column's type, held against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from unittest.mock import patch

import pytest
from postgres_scripts import Outcome, in_postgres
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator
from derive.storage import tables
from derive.storage.compaction import compact

ROWS = 40

CHANGES = {
    "int to text": ("w int", "i % 8", "ALTER w TYPE text", "'2'", "'3'"),
    "text to int": ("w text", "(i % 8)::text", "ALTER w TYPE int USING w::int", "2", "3"),
    "int to bigint": ("w int", "i % 8", "ALTER w TYPE bigint", "2", "3"),
    "int to numeric": ("w int", "i % 8", "ALTER w TYPE numeric", "2", "3"),
    "double precision to bigint": (
        "w double precision",
        "CASE i % 8 WHEN 2 THEN 1e16 WHEN 3 THEN '-0'::float8 ELSE i END",
        "ALTER w TYPE bigint",
        "10000000000000000",
        "0",
    ),
    "text to boolean": ("w text", "CASE i % 8 WHEN 2 THEN 't' END", "ALTER w TYPE bool USING w::bool", "true", "false"),
    "text to timestamp with time zone": (
        "w text",
        "'2024-01-0' || i % 8 + 1",
        "ALTER w TYPE timestamptz USING w::timestamptz",
        "'2024-01-03'",
        "'2024-01-04'",
    ),
    "int to timestamp with time zone": (
        "w int",
        "i % 8",
        "ALTER w TYPE timestamptz USING timestamptz '2024-01-01 00:00:00+00' + w * interval '1 day'",
        "'2024-01-03 00:00:00+00'",
        "'2024-01-04 00:00:00+00'",
    ),
    "key from int to text": ("w int", "i % 8", "ALTER id TYPE text", "2", "3"),
    "added column": ("v int", "i", "ADD w int", "2", "3"),
}
"""By name: the definition of a column, its values, an alteration, and two values of the altered column `w`."""

EVERYWHERE = "rows and changes in segments"
PLACES = {
    EVERYWHERE: ("insert", "alter", "write"),
    "rows in segments": ("insert",),
    "changes in segments": ("alter",),
    "one segment": ("flush",),
    "compacted segments": ("insert", "alter", "flush", "compact"),
    "no segments": (),
}
"""By name: the steps that write segments."""


def statements(change: str) -> list[tuple[str, str]]:
    """The statements of a script, each with the name of its step."""
    column, values, alteration, first, other = CHANGES[change]
    queries = [
        f"SELECT id FROM t WHERE w = {first} ORDER BY 1",
        f"SELECT count(*) FROM t WHERE w IN ({first}, {other})",
        f"SELECT count(*) FROM t WHERE w > {first}",
        f"SELECT count(*) FROM t WHERE w <= {other} AND id = '2'",
        "SELECT * FROM t WHERE id = '10'",
        "SELECT count(*) FROM t WHERE id >= '3'",
    ]
    return [
        ("create", f"CREATE TABLE t (id int PRIMARY KEY, {column})"),
        ("insert", f"INSERT INTO t SELECT i, {values} FROM generate_series(1, {ROWS}) i"),
        ("alter", f"ALTER TABLE t {alteration}"),
        *(("flush", query) for query in queries),
        ("write", f"UPDATE t SET w = {other} WHERE w = {first} AND id > '2'"),
        ("write", f"DELETE FROM t WHERE w = {other} AND id < '20'"),
        ("write", f"UPDATE t SET w = {first} WHERE id = '5'"),
        ("write", "DELETE FROM t WHERE id = '6'"),
        *(("compact", query) for query in queries),
    ]


async def in_ours(coordinator: Coordinator, script: list[tuple[str, str]], written: Collection[str]) -> list[Outcome]:
    """Run a script, in which some steps write segments."""
    client, store = Client(coordinator), coordinator.store
    outcomes: list[Outcome] = []
    for step, text in script:
        if step == "flush" and step in written:
            store.tables.flush()
        if step == "compact" and step in written:
            (table,) = store.tables.all()
            compact(store, table.spec, grace=0)
        with patch.object(tables, "MANY_ROWS", 1 if step in written else tables.MANY_ROWS):
            rows, tag = await client.run(text)
        outcomes.append((tag, rows))
    return outcomes


@pytest.mark.parametrize(
    ("change", "place"),
    [
        pytest.param(change, place, marks=() if change == "int to text" or place == EVERYWHERE else pytest.mark.torture)
        for change in CHANGES
        for place in PLACES
    ],
)
def test_conditions_find_rows_after_a_change_of_a_type(
    change: str, place: str, postgres: Connection, tmp_path: Path
) -> None:
    script = statements(change)
    expected = in_postgres(postgres, [text for _, text in script])

    async def run(coordinator: Coordinator) -> None:
        assert await in_ours(coordinator, script, PLACES[place]) == expected
        client, condition = Client(coordinator), f"WHERE w = {CHANGES[change][3]}"
        await client(f"CREATE MATERIALIZED VIEW m AS SELECT id FROM t {condition}")
        await client(f"INSERT INTO t (id, w) VALUES (100, {CHANGES[change][3]}), (101, {CHANGES[change][4]})")
        rows = await client(f"SELECT id FROM t {condition} ORDER BY id")
        assert ("100",) in rows
        assert await client("SELECT id FROM m ORDER BY id") == rows

    SqlWorld(tmp_path).within(run)


def test_times_before_a_change_of_a_type_cannot_be_read(tmp_path: Path) -> None:
    async def run(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (id int PRIMARY KEY, w int); INSERT INTO t VALUES (1, 1), (2, 2)")
        coordinator.store.tables.flush()
        (table,) = coordinator.store.tables.all()
        await client("ALTER TABLE t ALTER w TYPE text")
        assert await client("SELECT id FROM t WHERE w = '2'") == [("2",)]
        assert await client.fails(f"SELECT id FROM t WHERE w = '2' AS OF {table.upper - 1}") == "22023"

    SqlWorld(tmp_path).within(run)
