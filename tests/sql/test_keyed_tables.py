"""Tables with a primary key are collections with this key to derivations and materializations."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import apsw
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.sql.coordinator import Coordinator

CATALOG = """
collections:
  sql/public/orders:
    key: [/number, /shop]
    schema:
      type: object
      required: [shop, number]
      properties:
        note: {type: string}
        shop: {type: string}
        number: {type: integer}
        amount: {type: integer}
        _meta: {type: object, properties: {op: {type: string}}}
      if: {required: [_meta], properties: {_meta: {required: [op], properties: {op: {const: d}}}}}
      then: {reduce: {strategy: lastWriteWins, delete: true}}
      else: {reduce: {strategy: lastWriteWins}}
  t/spent:
    key: [/shop]
    schema:
      type: object
      required: [shop, spent]
      properties: {shop: {type: string}, spent: {type: integer, reduce: {strategy: sum}}}
      reduce: {strategy: merge}
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10ms}
      transforms:
        - name: fromOrders
          source: sql/public/orders
          shuffle: any
          lambda: SELECT $shop, CASE WHEN $_meta$op IS 'd' THEN -$amount ELSE $amount END AS spent;
materializations:
  m/orders:
    shards: {maxTxnDuration: 10ms}
    endpoint: {address: "ADDRESS", config: {path: "STORED"}}
    bindings:
      - {source: sql/public/orders, resource: {table: orders}}
      - {source: t/spent, resource: {table: spent}}
"""


Rows = list[tuple[object, ...]]


class Tasks:
    """The tasks of a catalog, and the rows that the materialization has stored."""

    def __init__(self, world: SqlWorld, coordinator: Coordinator) -> None:
        self._run = open_run(world.catalog, coordinator.store, InProcessExecutor())
        self._stored = world.folder / "stored.db"

    def wait_until(self, expected: Rows, query: str) -> None:
        """Run the tasks until a query of the endpoint has the expected rows."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (rows := self._rows(query)) != expected:
            assert time.monotonic() < deadline, rows
            self._run.step()
            assert [task.error for task in self._run.tasks.values()] == [None, None]
            self._run.wait(0.05)

    def _rows(self, query: str) -> Rows:
        with closing(apsw.Connection(str(self._stored))) as stored:
            count = stored.execute("SELECT count(*) FROM sqlite_schema WHERE name IN ('orders', 'spent')").get
            return stored.execute(query).fetchall() if count == 2 else []

    def close(self) -> None:
        self._run.close()


def test_primary_key_is_the_key_of_tasks(tmp_path: Path) -> None:
    server = ConnectorServer(MaterializeSqlite(), "127.0.0.1:0")
    catalog = CATALOG.replace("ADDRESS", server.address).replace("STORED", str(tmp_path / "stored.db"))
    world = SqlWorld(tmp_path, catalog)
    orders, spent = "SELECT shop, number, amount FROM orders ORDER BY 1, 2", "SELECT shop, spent FROM spent ORDER BY 1"

    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE orders (note text, amount int, number int, shop text, PRIMARY KEY (number, shop))")
        await client("INSERT INTO orders VALUES ('n', 5, 1, 'a'), ('n', 7, 2, 'a'), ('n', 9, 1, 'b')")
        tasks = Tasks(world, coordinator)
        tasks.wait_until([("a", 1, 5), ("a", 2, 7), ("b", 1, 9)], orders)
        await client("INSERT INTO orders VALUES ('m', 6, 1, 'a') ON CONFLICT (shop, number) DO UPDATE SET amount = 6")
        assert await client.fails("INSERT INTO orders VALUES ('m', 6, 2, 'a')") == "23505"
        await client("DELETE FROM orders WHERE shop = 'b'")
        await client("INSERT INTO orders VALUES ('n', 1, 3, 'a')")
        tasks.wait_until([("a", 1, 6), ("a", 2, 7), ("a", 3, 1)], orders)
        tasks.wait_until([("a", 14), ("b", 0)], spent)
        tasks.close()

    try:
        world.within(work)
    finally:
        server.stop()
