"""A read of what is maintained wakes whoever maintains it, and does not wait until that looks by itself."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from sql_world import Client, SqlWorld, ingest

from derive.sql.coordinator import Coordinator

_LOOK_SECONDS = 0.5
"""How often instances look where nobody wakes them."""

READS = {
    "a materialized view of a collection": "SELECT * FROM m",
    "an index": "SELECT amount FROM i WHERE customer = 'ann'",
    "a view of a view": "SELECT * FROM mm",
    "a join with a table": "SELECT * FROM j",
    "beside what is not maintained": 'SELECT count(*) FROM m, "shop/orders"',
    "a transaction": "BEGIN; SELECT * FROM m; SELECT * FROM j; COMMIT",
    "an insert": "INSERT INTO t SELECT s, customer FROM m WHERE customer = 'nobody'",
}


def test_no_read_waits_for_the_next_look(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> dict[str, float]:
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
        typical = {}
        for name, script in READS.items():
            took = []
            for _ in range(9):
                begin = time.perf_counter()
                for text in script.split("; "):
                    await client(text)
                took.append(time.perf_counter() - begin)
            typical[name] = statistics.median(took)
        return typical

    typical = SqlWorld(tmp_path).within(work)
    assert {name: seconds for name, seconds in typical.items() if seconds > _LOOK_SECONDS / 3} == {}
