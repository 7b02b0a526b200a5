"""Sources: collections by another name, files that grow, and counters."""

from __future__ import annotations

from collections import Counter as Multiset

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sql_world import Client, SqlWorld, ingest

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.sources.definitions import Counter, CounterPosition, micros_of


async def until(client: Client, query: str, expected: list[tuple[str | None, ...]]) -> None:
    while await client(query) != expected:
        await client.session.execute(await client.session.prepare("SELECT 1", ()), ())


async def test_source_gives_a_collection_another_name(coordinator: Coordinator, client: Client) -> None:
    ingest(coordinator, [(1, "ann", 10.0)])
    await client('CREATE SOURCE orders FROM COLLECTION "shop/orders"')
    assert await client("SELECT customer FROM orders") == [("ann",)]
    assert await client.fails('CREATE SOURCE other FROM COLLECTION "shop/order"') == "42P01"


async def test_source_follows_a_growing_file(world: SqlWorld) -> None:
    path = world.folder / "people.csv"
    path.write_text("id,name\n1,Ann\n2,B")

    async with world.served() as (_, client):
        await client(f"CREATE SOURCE people FROM FILE '{path}' FORMAT CSV")
        await until(client, "SELECT * FROM people", [("1", "Ann")])
        with path.open("a") as file:
            file.write("en\n3,Cas\n")
        await until(client, "SELECT name FROM people ORDER BY id", [("Ann",), ("Ben",), ("Cas",)])
        assert await client.fails("INSERT INTO people VALUES ('4', 'Dan')") == "42809"
    with path.open("a") as file:
        file.write("4,Dan\n")

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator)
        await until(client, "SELECT count(*) FROM people", [("4",)])  # each line once
        await client("ALTER SOURCE people RENAME TO persons")
        assert await client("SELECT count(*) FROM persons") == [("4",)]
        await client("DROP SOURCE persons")
        assert coordinator.store.tables.all() == []


READS = {
    "SELECT count(*) FROM s": [("20000",)],
    "SELECT count(*) FROM v": [("20000",)],
    "SELECT n FROM m": [("20000",)],
    "SELECT count(*) FROM i WHERE id = '7'": [("1",)],
    "SELECT count(*) FROM copied": [("20000",)],
    "SELECT count(*) FROM s a JOIN t ON true": [("20000",)],
    "SELECT count(*) FROM u": [("20000",)],
    "SELECT count(*) FROM w WHERE a = 20000": [("1",)],
}
FIRST = {
    "SELECT count(*) FROM v": ["CREATE VIEW v AS SELECT id FROM s"],
    "SELECT n FROM m": ["CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM s"],
    "SELECT count(*) FROM i WHERE id = '7'": ["CREATE VIEW i AS SELECT id FROM s", "CREATE INDEX ON i (id)"],
    "SELECT count(*) FROM copied": ["CREATE TABLE copied AS SELECT * FROM s"],
    "SELECT count(*) FROM s a JOIN t ON true": ["CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)"],
    "SELECT count(*) FROM u": ["CREATE TABLE u (a text)", "INSERT INTO u SELECT id FROM s"],
    "SELECT count(*) FROM w WHERE a = 20000": [
        *("CREATE TABLE w (a bigint)", "INSERT INTO w VALUES (1)", "UPDATE w SET a = (SELECT count(*) FROM s)")
    ],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolation", ["strict serializable", "serializable"])
@pytest.mark.parametrize("read", READS)
async def test_first_read_has_all_lines_at_creation(
    world: SqlWorld, read: str, isolation: str, coordinator: Coordinator
) -> None:
    """Two megabytes are read in several pieces, whatever reads them first; the last line has no end yet."""
    path = world.folder / "people.csv"
    path.write_text("id,name\n" + "".join(f"{number},{'x' * 100}\n" for number in range(20_000)) + "20000,half")
    client = Client(coordinator, transaction_isolation=isolation)
    await client(f"CREATE SOURCE s FROM FILE '{path}' FORMAT CSV")
    await client.script(*FIRST.get(read, ()))
    assert await client(read) == READS[read]


async def test_restarted_server_waits_for_the_initial_lines(world: SqlWorld) -> None:
    path = world.folder / "numbers"
    path.write_text("".join(f"{number}\n" for number in range(100_000)))
    async with world.served() as (coordinator, client):
        await client(f"CREATE SOURCE s FROM FILE '{path}' FORMAT JSON")
        assert coordinator.objects.items[min(coordinator.objects.items)].origin["size"] == path.stat().st_size
    async with world.served() as (coordinator, client):
        coordinator.own()
        assert await client("SELECT count(*) FROM s") == [("100000",)]


async def test_reads_of_failing_sources_report_the_error(world: SqlWorld, client: Client) -> None:
    await client("CREATE SOURCE none (a text) FROM FILE '/no/such/file' FORMAT CSV")
    assert await client.fails("SELECT * FROM none") == "58P01"
    broken = world.folder / "broken"
    broken.write_text("1\nnope\n")
    await client(f"CREATE SOURCE broken FROM FILE '{broken}' FORMAT JSON")
    assert await client.fails("SELECT * FROM broken") == "22P02"
    await client("DROP SOURCE broken")


async def test_counter_source_adds_rows(client: Client) -> None:
    await client("CREATE SOURCE c FROM LOAD GENERATOR COUNTER (TICK INTERVAL '1ms', MAX CARDINALITY 3)")
    await until(client, "SELECT count(*) FROM c", [("3",)])


def test_counter_intervals_are_parsed() -> None:
    assert [micros_of(text) for text in ("1s", "500 milliseconds", "1 day 00:00:01")] == [
        1_000_000,
        500_000,
        86_401_000_000,
    ]
    with pytest.raises(SqlError):
        micros_of("1 month")


@given(st.integers(1, 50), st.none() | st.integers(1, 5), st.lists(st.integers(0, 400)))
def test_counter_source_has_the_same_rows_for_any_polling_times(
    interval: int, most: int | None, times: list[int]
) -> None:
    counter, position = Counter(interval, most), CounterPosition(0, 1_000)
    rows: Multiset[int] = Multiset()
    for now in sorted(times):
        changes, position = counter.poll(position, now + 1_000)
        for (number,), diff in changes:
            assert isinstance(number, int)
            rows[number] += diff
        count = now // interval
        first = 1 if most is None else max(1, count - most + 1)
        assert +rows == Multiset(range(first, count + 1))
        assert position.added == count
        assert counter.due(position, now + 1_000) == 1_000 + (count + 1) * interval


def test_counter_source_adds_missed_rows_in_parts() -> None:
    counter, position = Counter(1), CounterPosition(0, 0)
    changes, position = counter.poll(position, 25_000)
    assert len(changes) == position.added == 10_000
    assert counter.poll(counter.poll(position, 25_000)[1], 25_000)[1] == CounterPosition(25_000, 0)
