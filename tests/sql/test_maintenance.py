"""Views are kept up to date once more when what kept them from it is gone, and meanwhile it is said what that is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client, ingest
from test_views import until_maintained
from typing_extensions import override

from derive.compute.dataflow import watch
from derive.compute.replica import worker
from derive.document.clock import format_rfc3339
from derive.errors import BusyError
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.instances import FOLDER
from derive.sql.maintenance.view_maintenance import Maintenance
from derive.sql.transactions import storage_clock
from derive.sql.transactions.storage_clock import CommitWatcher
from derive.storage import changes
from derive.storage.store import Store
from derive.storage.task_log import recent_entries


class Broken(Maintenance):
    """Maintenance that a full disk keeps from its work."""

    @override
    def work(self) -> bool:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("a defect")])
def test_failed_maintenance_is_retried(error: Exception, tmp_path: Path) -> None:
    tries: list[int] = []
    reports: list[Exception | None] = []

    def work() -> bool:
        tries.append(1)
        if len(tries) == 1:
            raise error
        return False

    async def follow() -> None:
        store = Store(tmp_path, durable=False)
        watcher = CommitWatcher(store.changes, work, reports.append)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(tries) < 2:
                reported = watcher.next
                store.seal_now([])
                await reported.wait()  # commits are told meanwhile
        await watcher.close()
        store.close()

    asyncio.run(follow())
    assert reports == [error, None]


async def test_maintenance_failures_of_views_are_reported(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT 10 / a AS q FROM t")
    await until_maintained(coordinator, "v")
    ((name, upper, error, upper_time, progress),) = await client("SHOW MAINTENANCE")
    assert (name, error, progress) == ("v", None, None)
    assert int(upper or 0) > 0
    assert upper_time == format_rfc3339(int(upper or 0))

    coordinator.maintenance.__class__ = Broken
    while coordinator.maintenance.failure is None:
        await coordinator.watcher.next.wait()
    await client("INSERT INTO t VALUES (5)")
    assert await client("SELECT * FROM v") == [("2",)]  # worked out from what is stored
    ((_, _, error, _, _),) = await client("SHOW MAINTENANCE")
    assert error == "OSError: [Errno 28] No space left on device"
    entry = recent_entries(coordinator.store.root, FOLDER)[-1]
    assert entry["level"] == "error"
    assert "No space left on device" in entry["message"]

    coordinator.maintenance.__class__ = Maintenance
    while coordinator.maintenance.failure is not None:
        await coordinator.watcher.next.wait()
    await until_maintained(coordinator, "v")
    assert await client("SELECT * FROM v") == [("2",)]
    assert recent_entries(coordinator.store.root, FOLDER)[-1]["message"] == "view maintenance resumed"


async def test_slow_view_is_maintained_alone(
    coordinator: Coordinator, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other views advance meanwhile; SHOW MAINTENANCE says that it hydrates; DROP interrupts its statement."""
    monkeypatch.setattr(watch, "MOST_SECONDS", 0.05)
    await client("CREATE TABLE t AS SELECT a, a % 7 AS b FROM generate_series(1, 2000) g(a)")
    await client("CREATE MATERIALIZED VIEW fast AS SELECT count(*) AS n FROM t")
    await until_maintained(coordinator, "fast")
    await client(
        "CREATE MATERIALIZED VIEW slow AS SELECT count(*) AS n FROM t x, t y, t z WHERE x.a < y.a AND y.b < z.b"
    )
    await client("CREATE MATERIALIZED VIEW reader AS SELECT n + 1 AS m FROM slow")
    while "slow" not in {name for name, _, _ in await client("SHOW HYDRATIONS")}:
        await coordinator.watcher.next.wait()
    await client("INSERT INTO t VALUES (2001, 0)")

    assert await client("SELECT n FROM fast") == [("2001",)]
    while (shown := {row[0]: row for row in await client("SHOW MAINTENANCE")})["slow"][4] is None:
        await coordinator.watcher.next.wait()
    assert str(shown["slow"][4]).startswith("hydrating since 20")
    assert shown["fast"][4] is None
    await client("DROP MATERIALIZED VIEW slow CASCADE")
    while await client("SHOW HYDRATIONS"):
        await coordinator.watcher.next.wait()
    assert [row[0] for row in await client("SHOW MAINTENANCE")] == ["fast"]


async def test_commit_error_names_a_dropped_table(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client('CREATE TABLE "orders" (a int)')
    await client.script("BEGIN; INSERT INTO orders VALUES (1)")
    await other("DROP TABLE orders")
    error = await client.error("COMMIT")
    assert (error.sqlstate, error.message) == ("42P01", 'table "orders" was dropped before this was committed')


# A read of what is maintained wakes whoever maintains it, and does not wait until that looks by itself.


READS = {
    "a materialized view of a collection": "SELECT * FROM m",
    "an index": "SELECT amount FROM i WHERE customer = 'ann'",
    "a view of a view": "SELECT * FROM mm",
    "a join with a table": "SELECT * FROM j",
    "beside what is not maintained": 'SELECT count(*) FROM m, "shop/orders"',
    "a transaction": "BEGIN; SELECT * FROM m; SELECT * FROM j; COMMIT",
    "an insert": "INSERT INTO t SELECT s, customer FROM m WHERE customer = 'nobody'",
}


async def test_reads_do_not_wait_for_the_next_poll(monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator) -> None:
    """The next look is an hour away, so that a read which waits for it does not end in time."""
    for module in (storage_clock, worker):
        monkeypatch.setattr(module, "_SECONDS", 3600.0)
    monkeypatch.setattr(changes, "_DOUBT_SECONDS", 3600.0)
    coordinator.own()
    client = Client(coordinator)
    ingest(coordinator, [(1, "ann", 10.0), (2, "ben", 5.0)])
    for text in (
        "CREATE TABLE t (a double precision, b text)",
        'CREATE MATERIALIZED VIEW m AS SELECT customer, sum(amount) AS s FROM "shop/orders" GROUP BY customer',
        'CREATE VIEW i AS SELECT customer, amount FROM "shop/orders"',
        "CREATE INDEX ON i (customer)",
        "CREATE MATERIALIZED VIEW mm AS SELECT count(*) AS n FROM m",
        'CREATE MATERIALIZED VIEW j AS SELECT o.id FROM "shop/orders" o JOIN t ON t.b = o.customer',
    ):
        await client(text)
    for script in READS.values():
        for text in script.split("; ") * 3:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await client(text)


async def test_maintenance_owner_that_failed_to_start_becomes_owner_later(
    monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator
) -> None:
    def fail() -> int:
        raise BusyError("another process holds a lock")

    with monkeypatch.context() as busy:
        busy.setattr(coordinator.store.timeline, "read", fail)
        with pytest.raises(BusyError):
            coordinator.own()
    assert not coordinator.ownership.is_held
    client = Client(coordinator)
    await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    await until_maintained(coordinator, "v")
