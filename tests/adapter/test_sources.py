"""Sources: collections by another name, files that grow, and counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import Client, SqlWorld, ingest

from derive.adapter.coordinator import Coordinator
from derive.adapter.intervals import micros_of
from derive.errors import SqlError


@pytest.fixture
def world(tmp_path: Path) -> SqlWorld:
    return SqlWorld(tmp_path)


async def until(client: Client, query: str, expected: list[tuple[str | None, ...]]) -> None:
    while await client(query) != expected:
        await client.session.execute(await client.session.prepare("SELECT 1", ()), ())


def test_collections_by_another_name(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        ingest(coordinator, [(1, "ann", 10.0)])
        await client('CREATE SOURCE orders FROM COLLECTION "shop/orders"')
        assert await client("SELECT customer FROM orders") == [("ann",)]
        assert await client.fails('CREATE SOURCE other FROM COLLECTION "shop/order"') == "42P01"

    world.within(work)


def test_files_that_grow(world: SqlWorld) -> None:
    path = world.folder / "people.csv"
    path.write_text("id,name\n1,Ann\n2,B")

    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client(f"CREATE SOURCE people FROM FILE '{path}' FORMAT CSV")
        await until(client, "SELECT * FROM people", [("1", "Ann")])
        with path.open("a") as file:
            file.write("en\n3,Cas\n")
        await until(client, "SELECT name FROM people ORDER BY id", [("Ann",), ("Ben",), ("Cas",)])
        assert await client.fails("INSERT INTO people VALUES ('4', 'Dan')") == "42809"

    world.within(first)
    with path.open("a") as file:
        file.write("4,Dan\n")

    async def second(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        await until(client, "SELECT count(*) FROM people", [("4",)])  # each line once
        await client("ALTER SOURCE people RENAME TO persons")
        assert await client("SELECT count(*) FROM persons") == [("4",)]
        await client("DROP SOURCE persons")
        assert coordinator.store.tables.all() == []

    world.within(second)


def test_counters(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE SOURCE c FROM LOAD GENERATOR COUNTER (TICK INTERVAL '1ms', MAX CARDINALITY 3)")
        await until(client, "SELECT count(*) FROM c", [("3",)])

    world.within(work)


def test_spans_of_time() -> None:
    assert [micros_of(text) for text in ("1s", "500 milliseconds", "1 day 00:00:01")] == [
        1_000_000,
        500_000,
        86_401_000_000,
    ]
    with pytest.raises(SqlError):
        micros_of("1 month")
