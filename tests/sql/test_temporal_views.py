"""Temporal filters: views whose rows come and go with the time of the read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator

TABLES = (
    "CREATE TABLE e (id int, at timestamptz, until timestamptz)",
    "CREATE TABLE k (id int, name text)",
    "INSERT INTO k SELECT i, chr(97 + i % 3) FROM generate_series(0, 9) i",
)
VIEWS = {
    "valid": "SELECT id, at FROM e WHERE at <= now() AND now() < until",
    "recent": "SELECT id FROM e WHERE at > current_timestamp - INTERVAL '9 ms' AND id > 2",
    "named": "SELECT name, count(*) AS n, max(e.id) FROM e JOIN k USING (id) WHERE until > mz_now() GROUP BY name",
    "above": "SELECT r.id, n FROM recent r JOIN valid v USING (id) JOIN named ON n > 1",
    "windows": "SELECT date_bin('7 ms', at, '2020-01-01') AS begin, count(*) FROM e"
    " WHERE date_bin('7 ms', at, '2020-01-01') + INTERVAL '14 ms' > now() AND now() - at >= '0' GROUP BY 1",
    "elsewhere": "SELECT id FROM k WHERE id IN (SELECT id FROM e WHERE now() BETWEEN at AND until)",
}
WRITES = (
    "INSERT INTO e SELECT {0} % 10, now() + {1} * INTERVAL '1 us', now() + {2} * INTERVAL '1 us' FROM k WHERE id < {0} % 4",
    "INSERT INTO e VALUES ({0} % 10, now() - {1} * INTERVAL '1 us', now() + {2} * INTERVAL '2 us'), ({0}, NULL, NULL)",
    "UPDATE e SET until = until + {1} * INTERVAL '1 us', at = at - {2} * INTERVAL '1 us' WHERE id % 4 = {0} % 4",
    "DELETE FROM e WHERE id = {0} % 10",
)


async def write(client: Client, random: Random, count: int) -> None:
    """Random writes, whose rows come and go within milliseconds."""
    for _ in range(count):
        numbers = [random.randrange(100), random.randrange(20_000), random.randrange(40_000)]
        await client(random.choice(WRITES).format(*numbers))


async def present(client: Client) -> int:
    """The time of a new read."""
    return int(float((await client("SELECT extract(epoch FROM mz_now()) * 1000000 FROM k LIMIT 1"))[0][0] or ""))


async def check(client: Client, names: Sequence[str], begin: int, random: Random) -> set[tuple[str, int]]:
    """Compare subscriptions to views with queries at the times of changes; return the numbers of rows."""
    end = await present(client)
    sizes = set()
    for name in names:
        updates = await client(f"SUBSCRIBE {name} AS OF {begin} UP TO {end}")
        changed = {int(row[0] or "") for row in updates}
        times = {at + by for at in random.sample(sorted(changed), min(5, len(changed))) for by in (-1, 0)}
        for time in [*(time for time in times if time >= begin), random.randrange(begin, end)]:
            counts: Counter[tuple[str | None, ...]] = Counter()
            for at, diff, *row in updates:
                counts[tuple(row)] += int(diff or "") if int(at or "") <= time else 0
            assert +counts == Counter(await client(f"{VIEWS[name]} AS OF {time}")), (name, time)
            assert +counts == Counter(await client(f"SELECT * FROM {name} AS OF {time}")), (name, time)
            sizes.add((name, counts.total()))
    return sizes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
async def test_temporal_views_equal_queries_at_each_time(client: Client, seed: int) -> None:
    """Materialized views, indexed views and views have the same rows as their queries at every time."""
    random = Random(seed)
    await client.script(*TABLES)
    await write(client, random, 3)
    for name, query in VIEWS.items():
        kind = "VIEW" if name in {"recent", "windows"} else "MATERIALIZED VIEW"
        await client(f"CREATE {kind} {name} AS {query}")
    await client("CREATE INDEX ON recent (id)")
    begin = await present(client)
    await write(client, random, 25)
    sizes = await check(client, list(VIEWS), begin, random)
    assert len(sizes) > len(VIEWS)


async def test_stored_rows_come_and_go_while_no_server_runs(world: SqlWorld) -> None:
    """After a restart, the stored rows of a materialized view change at the times when no server has run."""
    async with world.served() as (_, client):
        await client.script(*TABLES, f"CREATE MATERIALIZED VIEW valid AS {VIEWS['valid']}")
        span = "now() + i * INTERVAL '9 ms', now() + i * i * INTERVAL '7 ms'"
        await client(f"INSERT INTO e SELECT i, {span} FROM generate_series(0, 9) i")
        stamps = await client("SELECT extract(epoch FROM unnest(array[at, until])) * 1000000 FROM e")
        changes = [int(float(stamp or "")) for (stamp,) in stamps]
    async with world.served() as (_, client), world.served() as (_, reader):
        await client("INSERT INTO e VALUES (10, now() - INTERVAL '1 ms', now() + INTERVAL '2 ms')")
        for time in [*(at + by for at in changes for by in (-1, 0)), await present(client)]:
            rows = await client(f"{VIEWS['valid']} AS OF {time}")
            assert Counter(await reader(f"SELECT * FROM valid AS OF {time}")) == Counter(rows), time


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("SELECT now() AS t FROM e", "now()"),
        ("SELECT id FROM e WHERE at < now() OR id = 1", "now()"),
        ("SELECT id FROM e WHERE at < now() AND (until > current_timestamp OR id = 1)", "current_timestamp"),
        ("SELECT id FROM e WHERE at > now() - INTERVAL '1 month'", "now()"),
        ("SELECT count(*) FILTER (WHERE at < now()) FROM e WHERE until > mz_now()", "now()"),
        ("SELECT k.id FROM k LEFT JOIN e ON k.id = e.id AND at > current_date", "current_date"),
    ],
)
async def test_other_uses_of_now_are_refused_with_position(client: Client, query: str, place: str) -> None:
    await client.script(*TABLES)
    for statement in (f"CREATE MATERIALIZED VIEW m AS {query}", f"SUBSCRIBE ({query})"):
        error = await client.error(statement)
        assert error.sqlstate == "0A000"
        assert statement.index(place) == error.offset
        assert error.hint is not None
    await client(f"CREATE VIEW v AS {query}")
    assert await client.fails("CREATE INDEX ON v (id)" if "AS t" not in query else "CREATE INDEX ON v (t)") in {
        "0A000",
        "42703",
    }
    await client("SELECT * FROM v")


async def test_now_is_the_time_of_the_read(client: Client) -> None:
    """In views, and in queries with AS OF; elsewhere, `now()` is the start of the transaction."""
    await client.script(*TABLES, "CREATE VIEW v AS SELECT now() AS at, current_date AS day FROM k WHERE id = 1")
    time = await present(client)
    await client("INSERT INTO k VALUES (1, 'x')")

    stamp = f"to_timestamp({time // 1_000_000}) + {time % 1_000_000} * INTERVAL '1 us'"
    assert await client(f"SELECT at = {stamp}, day = now()::date, now() = {stamp} FROM v AS OF {time}") == [("t",) * 3]
    assert await client(f"SELECT now() = {stamp} AS OF {time}") == [("t",)]
    assert await client("SELECT count(*), count(DISTINCT at) FROM v") == [("2", "1")]
    await client("BEGIN")
    begun = await client("SELECT now()")
    assert await client("SELECT DISTINCT at = mz_now(), at >= now() FROM v") == [("t", "t")]
    assert await client("SELECT now()") == begun
    await client("COMMIT")
    await client("INSERT INTO e SELECT 7, mz_now(), at FROM v LIMIT 1")
    assert await client("SELECT at = until FROM e") == [("t",)]


async def test_writes_read_temporal_views_at_the_present(client: Client) -> None:
    await client.script(*TABLES, f"CREATE MATERIALIZED VIEW valid AS {VIEWS['valid']}")
    await client("CREATE VIEW over AS SELECT id FROM e WHERE until <= now()")
    await client(
        "INSERT INTO e VALUES (1, '2020-01-01', '2021-01-01'), (2, '2020-01-01', 'infinity'), (3, 'infinity', NULL)"
    )
    await client("INSERT INTO e VALUES (4, '-infinity', now() + INTERVAL '1 us')")

    assert await client("SELECT id FROM valid") == [("2",)]
    assert await client.tag("DELETE FROM e WHERE id IN (SELECT id FROM over)") == "DELETE 2"
    assert await client.tag("UPDATE e SET until = now() FROM valid WHERE e.id = valid.id") == "UPDATE 1"
    assert await client("SELECT id FROM valid") == []
    assert await client("SELECT id FROM over") == [("2",)]


async def test_explain_shows_temporal_filters(coordinator: Coordinator, client: Client) -> None:
    await client.script(*TABLES)

    assert await client(f"EXPLAIN {VIEWS['valid']}") == [
        ("tier 1: map and filter",),
        ("  tier 1: temporal filter: rows appear and disappear on time",),
        ("    tier 1: map and filter",),
        ("      read e",),
    ]
    assert await client("EXPLAIN SELECT k.id FROM k JOIN e USING (id) WHERE until > now()") == [
        ("tier 1: join",),
        ("  read k",),
        ("  tier 1: temporal filter: rows disappear on time",),
        ("    tier 1: map and filter",),
        ("      read e",),
    ]
