"""Materialized views whose definition changes, because columns below them are renamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import Client, SqlWorld

from derive.contents.rows import last_rows, table_at
from derive.sql.coordinator import Coordinator
from derive.storage.table_types import Table

START = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text, z int DEFAULT 9); INSERT INTO t VALUES (1, 10, 'x'), (2, 20, NULL), (3, 5, 'x')",
    "CREATE VIEW v AS SELECT b, a FROM t WHERE a > 5",
    "CREATE MATERIALIZED VIEW m AS SELECT a, b FROM t; CREATE MATERIALIZED VIEW n AS SELECT b, sum(a) AS s FROM t GROUP BY b",
    "CREATE MATERIALIZED VIEW o AS SELECT count(*) AS c, sum(a) AS s FROM v; CREATE INDEX ON v (b)",
    "CREATE MATERIALIZED VIEW p AS SELECT m.a, n.s FROM m JOIN n USING (b)",
)
CHANGES = {
    "column renamed": "ALTER TABLE t RENAME b TO c",
    "columns swapped": "BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME z TO a; ALTER TABLE t RENAME x TO z; COMMIT",
    "name used again": "ALTER TABLE t RENAME b TO c; ALTER TABLE t RENAME a TO b",
    "column added": "ALTER TABLE t ADD d int DEFAULT 7",
}
ROWS = {
    "m": "SELECT a, b FROM t AS t (id, a, b, y)",
    "n": "SELECT b, sum(a) FROM t AS t (id, a, b, y) GROUP BY b",
    "o": "SELECT count(*), sum(a) FROM v",
    "p": "SELECT a, s FROM (SELECT a, b FROM t AS t (id, a, b, y)) m JOIN"
    " (SELECT b, sum(a) AS s FROM t AS t (id, a, b, y) GROUP BY b) n USING (b)",
}
"""Rows of the views after each change, from the table: the positions of its columns stay."""


def view_table(coordinator: Coordinator, name: str) -> Table:
    return next(table for table in coordinator.store.tables.all() if table.name == f"sql/public/{name}")


async def check(coordinator: Coordinator, client: Client) -> None:
    """Check the answers, and the rows of the views in Storage."""
    present = coordinator.timeline.latest
    for name, text in ROWS.items():
        expected = sorted(await client(text), key=str)
        assert sorted(await client(f"TABLE {name}"), key=str) == expected, name
        while view_table(coordinator, name).upper <= present:
            await coordinator.watcher.next.wait()
        stored = [row for rows in last_rows(coordinator.store, view_table(coordinator, name)) for row in rows]
        shown = [tuple(None if datum is None else str(datum) for datum in row) for row in stored]
        assert sorted(shown, key=str) == expected, name


@pytest.mark.parametrize("name", CHANGES)
async def test_stored_rows_follow_the_definition(name: str, tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    async with world.served() as (coordinator, client):
        await client.script(*START)
        await check(coordinator, client)
        await client.script(CHANGES[name])
        await client("INSERT INTO t VALUES (4, 40, 'y')")
        await check(coordinator, client)
        await client("ALTER TABLE t RENAME b TO again" if name == "column added" else "ALTER TABLE t ADD e int")
    async with world.served() as (coordinator, client):  # perhaps before the new rows were written
        await client("INSERT INTO t VALUES (5, 50, 'y')")
        await check(coordinator, client)


async def test_readers_leave_dataflows_of_earlier_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqlWorld(tmp_path).served() as (coordinator, client):
        await client.script(*START)
        await check(coordinator, client)
        monkeypatch.setattr(coordinator.maintenance, "work", lambda: False)  # a thread that is late
        await client.script(CHANGES["name used again"])
        await client("INSERT INTO t VALUES (4, 40, 'y')")
        for name, text in ROWS.items():
            assert sorted(await client(f"TABLE {name}"), key=str) == sorted(await client(text), key=str)
        assert await client("SELECT a FROM v WHERE b = 'y'") == [("40",)]


async def test_stored_history_has_rows_that_were_written_before_the_change(tmp_path: Path) -> None:
    """At each time, the stored rows are those of the definition of that time over the rows of that time."""
    async with SqlWorld(tmp_path).served() as (coordinator, client):
        await client.script(*START)
        await check(coordinator, client)
        for number, change in enumerate(CHANGES["name used again"].split("; "), start=11):
            begin, rows = view_table(coordinator, "m").since, len(await client("TABLE t"))
            await client(f"INSERT INTO t VALUES ({number}, {number}, 'z')")
            inserted = coordinator.timeline.latest
            await client(change)
            await check(coordinator, client)
            table = view_table(coordinator, "m")
            assert table.since == begin
            for time in (inserted - 1, inserted, coordinator.timeline.latest):
                stored = [row for batch in table_at(coordinator.store, table, time) for row in batch]
                assert len(stored) == rows + (time >= inserted)


async def test_dataflows_begin_when_their_columns_do(coordinator: Coordinator, client: Client) -> None:
    """The dataflow of an index finds values by the present names, which earlier rows do not have."""
    await client.script("CREATE TABLE t (k int, a int, b int); CREATE INDEX i ON t (a)")
    await client("INSERT INTO t VALUES (0, 1, 2)")
    before = coordinator.timeline.latest
    await client.script("ALTER TABLE t RENAME a TO c; INSERT INTO t VALUES (0, 3, 4)")
    assert await client("SELECT b FROM t WHERE c = 3") == [("4",)]
    item = coordinator.objects.find(None, "t")
    assert item is not None
    assert before < item.known_from < coordinator.timeline.latest
    assert await client.fails(f"SELECT b FROM t AS OF {item.known_from - 1}") == "22023"
    assert await client(f"SELECT c, b FROM t AS OF {item.known_from}") == [("1", "2")]
    index = coordinator.objects.find(None, "i")
    assert index is not None
    while coordinator.maintained.frontiers_of([index.id]) is None:
        await coordinator.watcher.next.wait()
    assert coordinator.computing.controller.frontiers(index.id)[0] >= item.known_from
