"""Views are kept up to date once more when what kept them from it is gone, and meanwhile it is said what that is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld
from test_views import until_maintained
from typing_extensions import override

from derive.document.clock import format_rfc3339
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.instances import FOLDER
from derive.sql.maintenance.reconcile import Maintenance
from derive.sql.transactions.commit_watcher import CommitWatcher
from derive.storage.store import Store
from derive.storage.task_log import recent_entries


class Broken(Maintenance):
    """Maintenance that a full disk keeps from its work."""

    @override
    def work(self) -> bool:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("a defect")])
def test_work_that_fails_is_tried_again(error: Exception, tmp_path: Path) -> None:
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
        async with asyncio.timeout(60):
            while len(tries) < 2:
                told = watcher.next
                store.seal_now([])
                await told.wait()  # commits are told meanwhile
        await watcher.close()
        store.close()

    asyncio.run(follow())
    assert reports == [error, None]


def test_it_is_said_what_keeps_views_from_being_kept_up_to_date(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT 10 / a AS q FROM t")
        await until_maintained(coordinator, "v")
        ((name, upper, error, upper_time),) = await client("SHOW MAINTENANCE")
        assert (name, error) == ("v", None)
        assert int(upper or 0) > 0
        assert upper_time == format_rfc3339(int(upper or 0))

        coordinator.maintenance.__class__ = Broken
        while coordinator.maintenance.failure is None:
            await coordinator.watcher.next.wait()
        await client("INSERT INTO t VALUES (5)")
        assert await client("SELECT * FROM v") == [("2",)]  # worked out from what is stored
        ((_, _, error, _),) = await client("SHOW MAINTENANCE")
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

    SqlWorld(tmp_path).within(work)


def test_a_commit_names_the_table_that_was_dropped_meanwhile(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        client, other = Client(coordinator), Client(coordinator)
        await client('CREATE TABLE "orders" (a int)')
        await client("BEGIN")
        await client("INSERT INTO orders VALUES (1)")
        await other("DROP TABLE orders")
        error = await client.error("COMMIT")
        assert (error.sqlstate, error.message) == ("42P01", 'table "orders" was dropped before this was committed')

    SqlWorld(tmp_path).within(work)
