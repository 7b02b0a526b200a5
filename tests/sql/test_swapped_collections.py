"""Readers in SQL of a derivation that its shadow replaces: all of them see one version at each time."""

from __future__ import annotations

import asyncio
from collections import Counter

from shadowed import swap_to
from sql_world import CATALOG, Client, SqlWorld, derive_all, ingest

from derive.catalog import load
from derive.sql.coordinator import Coordinator

ORDERS = [(1, "ann", 10.0), (2, "ben", 4.0)]
SINGLE = {("ann", "10"), ("ben", "4")}
DOUBLE = {("ann", "20"), ("ben", "8")}
SPENDING = 'SELECT customer, spent FROM "shop/spending"'


async def derive_orders(world: SqlWorld, coordinator: Coordinator) -> None:
    """Derive the ingested orders: the tick of their time has to end first."""
    while (known := coordinator.store.collection("shop/spending")) is None or not known.documents:
        await asyncio.to_thread(derive_all, world, coordinator)


async def test_swap_is_a_change_at_one_time_for_views_and_subscriptions(
    world: SqlWorld, coordinator: Coordinator
) -> None:
    edited = world.folder / "edited.yaml"
    edited.write_text(CATALOG.replace("$amount AS spent", "2 * $amount AS spent"))
    coordinator.own()
    store, settings = coordinator.store, {"statement_timeout": "60s", "transaction_isolation": "serializable"}
    client, *followers = (Client(coordinator, **settings) for _ in range(3))
    ingest(coordinator, ORDERS)
    await derive_orders(world, coordinator)
    await client(f"CREATE MATERIALIZED VIEW m AS {SPENDING}")
    await client(f"CREATE VIEW v AS {SPENDING} WHERE spent > 0")
    await client("CREATE INDEX ON v (customer)")
    first = store.upper("shop/spending") - 1
    for follower, query in zip(followers, ("m", f"({SPENDING})"), strict=True):
        await follower("BEGIN")
        await follower(f"DECLARE c CURSOR FOR SUBSCRIBE {query}")
    at = await asyncio.to_thread(swap_to, store, load(edited))
    world.catalog = load(edited)
    last = store.timeline.present()
    while min(store.upper("shop/spending"), store.upper("sql/public/m")) <= last:
        await asyncio.to_thread(derive_all, world, coordinator)
        await coordinator.watcher.next.wait()

    for query in (SPENDING, "SELECT * FROM m", "SELECT * FROM v"):
        assert set(await client(query)) == DOUBLE, query
    for time, expected in ((first, SINGLE), (at - 1, SINGLE), (at, DOUBLE), (last, DOUBLE)):
        assert set(await client(f"{SPENDING} AS OF {time}")) == expected
    for time, expected in ((at - 1, SINGLE), (at, DOUBLE)):
        assert set(await client(f"SELECT * FROM m AS OF {time}")) == expected
    for follower in followers:
        counts: Counter[tuple[str | None, ...]] = Counter()
        times = set()
        while set(+counts) != DOUBLE:
            for clock, diff, *row in await follower("FETCH ALL c WITH (timeout = '50ms')"):
                counts[tuple(row)] += int(str(diff))
                times.add(int(str(clock)))
        assert max(times) == at
        await follower("ROLLBACK")


async def test_view_that_was_not_maintained_meanwhile_sees_the_swap(world: SqlWorld) -> None:
    edited = world.folder / "edited.yaml"
    edited.write_text(CATALOG.replace("$amount AS spent", "2 * $amount AS spent"))
    settings = {"statement_timeout": "60s", "transaction_isolation": "serializable"}

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator, **settings)
        ingest(coordinator, ORDERS)
        await derive_orders(world, coordinator)
        await client(f"CREATE MATERIALIZED VIEW m AS {SPENDING}")
        first = coordinator.store.upper("sql/public/m") - 1

    async with world.opened() as coordinator:
        at = await asyncio.to_thread(swap_to, coordinator.store, load(edited))
    world.catalog = load(edited)

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator, **settings)
        while coordinator.store.upper("sql/public/m") <= at:
            await asyncio.to_thread(derive_all, world, coordinator)
            await coordinator.watcher.next.wait()
        assert set(await client("SELECT * FROM m")) == DOUBLE
        for time, expected in ((first, SINGLE), (at - 1, SINGLE), (at, DOUBLE)):
            assert set(await client(f"SELECT * FROM m AS OF {time}")) == expected
