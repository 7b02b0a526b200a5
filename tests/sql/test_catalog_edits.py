"""The catalog of collections is edited under what SQL has defined: what is still meant goes on, and all else says why."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sql_world import CATALOG, Client, SqlWorld, derive_all, ingest

from derive.catalog import load
from derive.engine.reset import reset
from derive.errors import FencedError, FrontierError, SqlError, StorageError
from derive.sql.coordinator import Coordinator
from derive.storage.ingest import Ingestion
from derive.storage.task_log import recent_entries

DEFINITIONS = [
    'CREATE VIEW v AS SELECT customer, amount FROM "shop/orders"',
    'CREATE VIEW every AS SELECT * FROM "shop/orders"',
    'CREATE MATERIALIZED VIEW m AS SELECT customer, sum(amount) AS sum FROM "shop/orders" GROUP BY customer',
    'CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM "shop/orders"',
    "CREATE VIEW over AS SELECT sum(amount) AS sum FROM v",
    'CREATE SOURCE s FROM COLLECTION "shop/orders"',
    'CREATE INDEX orders_amount ON "shop/orders" (amount)',
    "CREATE INDEX v_customer ON v (customer)",
]
QUERIES = {
    "collection": 'SELECT count(*) FROM "shop/orders"',
    "view": "SELECT customer, amount FROM v ORDER BY 2",
    "every": "SELECT id, customer, amount FROM every ORDER BY 3",
    "materialized": "SELECT * FROM m ORDER BY 1",
    "count": "SELECT n FROM n",
    "over": "SELECT * FROM over",
    "source": "SELECT amount FROM s ORDER BY 1",
    "subscription": "SUBSCRIBE v AS OF {present} UP TO {present} + 1",
}
ROWS = {
    "collection": [("2",)],
    "view": [("ben", "5.5"), ("ann", "10")],
    "every": [("2", "ben", "5.5"), ("1", "ann", "10")],
    "materialized": [("ann", "10"), ("ben", "5.5")],
    "count": [("2",)],
    "over": [("15.5",)],
    "source": [("5.5",), ("10",)],
    "subscription": [("1", "ann", "10"), ("1", "ben", "5.5")],
}


@pytest.fixture(scope="module")
def defined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all definitions."""
    world = SqlWorld(tmp_path_factory.mktemp("defined"))

    async def define(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        ingest(coordinator, [(1, "ann", 10.0), (2, "ben", 5.5)])
        await client.script(*DEFINITIONS)
        assert await answers(client) == ROWS

    world.within(define)
    return world.data


@pytest.fixture
def world(tmp_path: Path, defined: Path) -> SqlWorld:
    shutil.copytree(defined, tmp_path / "data")
    return SqlWorld(tmp_path)


async def answers(client: Client) -> dict[str, object]:
    """Rows of all queries, or how they fail."""
    reported: dict[str, object] = {}
    for name, query in QUERIES.items():
        present = client.session._state.coordinator.store.timeline.present()
        try:
            rows = await client(query.format(present=present))
            reported[name] = sorted(row[1:] for row in rows) if name == "subscription" else rows
        except Exception as error:
            reported[name] = error
    return reported


def edited(world: SqlWorld, edit: Callable[[str], str]) -> None:
    """The catalog is edited while nobody serves SQL."""
    text = edit(CATALOG)
    assert text != CATALOG
    (world.folder / "flow.yaml").write_text(text)
    world.catalog = load(world.folder / "flow.yaml")


async def reported(world: SqlWorld) -> dict[str, object]:
    """Return the answers of a server that starts now; all names are listed, and what fits nothing can be dropped."""
    async with world.served(statement_timeout="10s") as (coordinator, client):
        coordinator.own()
        assert [name for (name, *_) in await client("SHOW VIEWS")] == ["every", "m", "n", "over", "v"]
        asked = await answers(client)
        await client.script("CREATE TABLE other (a int); INSERT INTO other VALUES (1)")
        assert await client("SELECT a FROM other") == [("1",)]
    async with world.served() as (_, client):
        for dropped in ("VIEW v CASCADE", "MATERIALIZED VIEW m", "SOURCE s", "VIEW every", "INDEX orders_amount"):
            await client(f"DROP {dropped}")
    return asked


def failures(asked: dict[str, object]) -> dict[str, str]:
    """What has failed, and how; all else is as it was."""
    failed = {name: error for name, error in asked.items() if isinstance(error, Exception)}
    assert {name: rows for name, rows in asked.items() if name not in failed} == {
        name: rows for name, rows in ROWS.items() if name not in failed
    }
    assert all("CREATE it again" in (getattr(error, "hint", None) or "") for error in failed.values()), failed
    return {name: getattr(error, "message", str(error)) for name, error in failed.items()}


AMOUNT = "amount: {type: number}"


async def test_changed_column_type_fails_dependent_views(world: SqlWorld) -> None:
    edited(world, lambda text: text.replace(AMOUNT, "amount: {type: [number, string]}", 1))
    reason = 'column "amount" would be jsonb, and was double precision when it was created'
    asked = failures(await reported(world))
    assert set(asked) == {"view", "every", "materialized", "over", "source", "subscription"}
    assert asked["view"] == f'view "v" no longer fits its inputs: {reason}'
    assert asked["source"] == f'source "s" no longer fits its inputs: {reason}'
    assert asked["materialized"].startswith('materialized view "m" no longer fits its inputs: ')


@pytest.mark.parametrize("change", ["{type: [number, string]}", "{type: [number, boolean]}"])
async def test_incompatible_views_stay_listed_with_their_error(world: SqlWorld, change: str) -> None:
    """Listed in SHOW MAINTENANCE, for `flowctl status`, and logged; with what is defined over it, and nothing else."""

    async def listed() -> dict[str | None, str | None]:
        async with world.served(statement_timeout="20s") as (coordinator, client):
            coordinator.own()
            await client("SELECT n FROM n")
            errors = {row[0]: row[2] for row in await client("SHOW MAINTENANCE")}
            reported = {
                row["name"]: row["error"] for one in coordinator.describe_instances() for row in one["dataflows"]
            }
            assert {name for name in reported if reported[name]} == {name for name in errors if errors[name]}
            for name, error in errors.items():
                if error:
                    failure = await client.error(f"SELECT * FROM {name}")
                    assert failure.hint is not None
                    assert failure.hint in error
            return errors

    async with world.served() as (_, client):
        await client.script("CREATE MATERIALIZED VIEW mm AS SELECT count(*) AS n FROM m; CREATE INDEX ON s (amount)")
    every = {"m", "mm", "n", "shop/orders", "v", "s"}
    assert await listed() == dict.fromkeys(every)
    edited(world, lambda text: text.replace(AMOUNT, f"amount: {change}", 1))
    errors = await listed()
    assert errors.keys() == every
    assert {name for name, error in errors.items() if error} == {"m", "mm", "v", "s"}
    assert all(error is None or "no longer" in error for error in errors.values())
    entries = [entry for entry in recent_entries(world.data, "sql-views") if entry["level"] == "error"]
    assert {entry["view"] for entry in entries} == {"public.m", "public.mm", "public.v", "public.s"}
    edited(world, lambda text: text + "\n")
    assert await listed() == dict.fromkeys(every)


async def test_status_reports_why_a_view_does_not_advance(world: SqlWorld) -> None:
    edited(world, lambda text: text.replace(AMOUNT, "amount: {type: [number, string]}", 1))
    settings = {"statement_timeout": "20s", "transaction_isolation": "strict serializable"}
    async with world.opened() as server, world.served(**settings) as (_, client):
        server.own()
        assert "no longer fits its inputs" in (await client.error("SELECT * FROM m")).message
        assert await client("SELECT * FROM n") == [("2",)]


async def test_removed_field_fails_dependent_views(world: SqlWorld) -> None:
    edited(
        world,
        lambda text: (
            text.replace(f", {AMOUNT}", "", 1)
            .replace("[id, customer, amount]", "[id, customer]", 1)
            .replace("$amount", "1", 1)
        ),
    )
    asked = failures(await reported(world))
    assert set(asked) == {"view", "every", "materialized", "over", "source", "subscription"}
    assert asked["view"] == 'view "v" no longer fits its inputs: column "amount" does not exist'
    assert 'collection "shop/orders" no longer has the column "amount"' in asked["source"]


async def test_added_field_does_not_affect_views(world: SqlWorld) -> None:
    edited(world, lambda text: text.replace(AMOUNT, f"aa: {{type: number}}, {AMOUNT}", 1))
    assert failures(await reported(world)) == {}


async def test_renamed_projection_fails_dependent_views(world: SqlWorld) -> None:
    edited(world, lambda text: text.replace("    key: [/id]", "    projections: {paid: /amount}\n    key: [/id]", 1))
    asked = await reported(world)
    assert {name: rows for name, rows in asked.items() if isinstance(rows, Exception)} == {}


async def test_swapped_projections_change_rows(world: SqlWorld) -> None:
    def projected(first: str, second: str) -> Callable[[str], str]:
        projections = f"    projections: {{x: /{first}, y: /{second}}}\n    key: [/id]"
        return lambda text: text.replace("    key: [/id]", projections, 1)

    edited(world, projected("customer", "at"))

    async with world.served() as (_, client):
        await client('CREATE MATERIALIZED VIEW places AS SELECT x, count(*) FROM "shop/orders" GROUP BY x')
        assert await client("SELECT x FROM places ORDER BY 1") == [("ann",), ("ben",)]
    edited(world, projected("at", "customer"))

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator)
        assert await client("SELECT x FROM places ORDER BY 1") == [("None-01-01T00:00:00Z",), ("None-01-01T00:00:01Z",)]
        assert await client("SELECT customer, amount FROM v ORDER BY 2") == ROWS["view"]


async def test_removed_collection_is_usable_after_redeclaration(world: SqlWorld) -> None:
    (world.folder / "flow.yaml").write_text("collections: {}\n")
    world.catalog = load(world.folder / "flow.yaml")

    async with world.opened() as coordinator:
        coordinator.own()
        asked = await answers(Client(coordinator, statement_timeout="10s"))
    assert {name for name, rows in asked.items() if isinstance(rows, Exception)} == set(QUERIES)
    messages = {name: getattr(error, "message", "") for name, error in asked.items()}
    assert messages["collection"] == 'relation "shop/orders" does not exist'
    assert messages["view"] == 'view "v" no longer fits its inputs: relation "shop/orders" does not exist'
    assert 'collection "shop/orders" is no longer in the catalog' in messages["source"]
    assert 'materialized view "m"' in messages["materialized"]
    edited(world, lambda text: text + "\n")
    assert failures(await reported(world)) == {}


async def test_reset_ends_subscriptions_only(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    async with world.opened() as coordinator:
        coordinator.own()
        settings = {"statement_timeout": "20s", "transaction_isolation": "serializable"}
        client, other, third = (Client(coordinator, **settings) for _ in range(3))

        async def derive(count: int) -> None:
            while (known := coordinator.store.collection("shop/spending")) is None or known.documents < count:
                derive_all(world, coordinator)
                await coordinator.watcher.next.wait()

        ingest(coordinator, [(1, "ann", 10.0)])
        await derive(1)
        await client('CREATE MATERIALIZED VIEW m AS SELECT sum(spent) AS spent FROM "shop/spending"')
        await client('CREATE VIEW v AS SELECT customer, spent FROM "shop/spending"')
        await client("CREATE INDEX ON v (customer)")
        assert await client("SELECT spent FROM m") == [("10",)]
        assert await client("SELECT * FROM v") == [("ann", "10")]
        await client("PREPARE p AS SELECT spent FROM v WHERE customer = 'ann'")
        names = ("m", '"shop/spending"', "v")
        begun = [asyncio.Event() for _ in names]
        subscribed = [asyncio.create_task(other_of(coordinator, *each)) for each in zip(names, begun, strict=True)]
        await asyncio.gather(*(event.wait() for event in begun))
        await other.script("BEGIN; DECLARE updates CURSOR FOR SUBSCRIBE v")
        assert [row[2:] for row in await other("FETCH 1 updates")] == [("ann", "10")]

        await third("BEGIN")
        await third('DECLARE rows CURSOR FOR SELECT * FROM "shop/spending"')
        reset(world.catalog, coordinator.store, ["shop/spending"])
        with pytest.raises((FencedError, FrontierError), match="'shop/spending'"):
            await third("FETCH ALL rows")
        for failed in await asyncio.gather(*subscribed, return_exceptions=True):
            assert isinstance(failed, SqlError)
            assert failed.sqlstate == "55000"
            assert "SUBSCRIBE again" in (failed.hint or "")
        assert await other.fails("FETCH ALL updates WITH (TIMEOUT = '20s')") == "55000"
        await other("ROLLBACK")
        ingest(coordinator, [(2, "ben", 1.0)])
        await derive(2)
        assert await client("EXECUTE p") == [("10",)]
        while await client("SELECT spent FROM m") != [("11",)]:  # serializable reads do not wait for views
            await coordinator.watcher.next.wait()
        while await client("SELECT * FROM v ORDER BY 1") != [("ann", "10"), ("ben", "1")]:
            await coordinator.watcher.next.wait()


async def other_of(coordinator: Coordinator, name: str, begun: asyncio.Event) -> None:
    """Subscribe to a relation until the subscription fails; set an event when the first row is there."""
    client = Client(coordinator, transaction_isolation="serializable")
    await client.script(f"BEGIN; DECLARE updates CURSOR FOR SUBSCRIBE {name}; FETCH 1 updates")
    begun.set()
    await client("FETCH ALL updates WITH (TIMEOUT = '20s')")


async def test_documents_of_another_catalog_fail_only_readers_of_differences(
    world: SqlWorld, coordinator: Coordinator
) -> None:
    coordinator.own()
    client = Client(coordinator, statement_timeout="20s")
    assert await client("SELECT n FROM n") == [("2",)]
    changed = CATALOG.replace(AMOUNT, "amount: {type: [number, string]}", 1)
    (world.folder / "changed.yaml").write_text(changed)
    orders = load(world.folder / "changed.yaml").collections["shop/orders"]
    strange = {"id": 3, "customer": "cas", "amount": "much"}
    Ingestion(coordinator.store, orders).load("test", [(1, strange)])

    assert await client('SELECT customer FROM "shop/orders" ORDER BY 1') == [("ann",), ("ben",), ("cas",)]
    for query in ("SELECT amount FROM v", "SELECT * FROM m", "SELECT * FROM over", "SELECT amount FROM s"):
        error = await client.error(query)
        assert error.sqlstate == "22003", query
        assert "'amount'" in error.message
    await client("CREATE TABLE other (a int)")
    assert await client("SELECT a FROM other") == []
    Ingestion(coordinator.store, orders).load("test", [(1, strange | {"amount": 1.0})])
    assert await client("SELECT sum FROM over") == [("16.5",)]


async def test_changed_key_is_refused(world: SqlWorld) -> None:
    edited(world, lambda text: text.replace("key: [/id]", "key: [/customer]", 1))
    with pytest.raises(StorageError) as caught:
        await reported(world)
    assert "shop/orders" in caught.value.message
    assert "key" in caught.value.message
    assert caught.value.hint
