"""A read of what is maintained wakes whoever maintains it, and does not wait until that looks by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld, ingest

from derive.compute.replica import worker
from derive.sql.coordinator import Coordinator
from derive.sql.transactions import commit_watcher
from derive.storage import changes

READS = {
    "a materialized view of a collection": "SELECT * FROM m",
    "an index": "SELECT amount FROM i WHERE customer = 'ann'",
    "a view of a view": "SELECT * FROM mm",
    "a join with a table": "SELECT * FROM j",
    "beside what is not maintained": 'SELECT count(*) FROM m, "shop/orders"',
    "a transaction": "BEGIN; SELECT * FROM m; SELECT * FROM j; COMMIT",
    "an insert": "INSERT INTO t SELECT s, customer FROM m WHERE customer = 'nobody'",
}


def test_no_read_waits_for_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look is an hour away, so that a read which waits for it does not end in time."""
    for module in (commit_watcher, worker):
        monkeypatch.setattr(module, "_SECONDS", 3600.0)
    monkeypatch.setattr(changes, "_DOUBT_SECONDS", 3600.0)

    async def work(coordinator: Coordinator) -> None:
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
                async with asyncio.timeout(60):
                    await client(text)

    SqlWorld(tmp_path).within(work)
