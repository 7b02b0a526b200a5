"""A catalog with a materialization into SQLite, a connector served in this process, and what its tables hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import apsw
from conftest import World

from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally

CATALOG = """
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id, customer, amount, at]
      properties:
        id: { type: integer }
        customer: { type: string }
        amount: { type: number }
        at: { type: string, format: date-time }
        gift: { type: object, properties: { text: { type: string } } }
  shop/spending:
    key: [/customer]
    schema:
      type: object
      required: [customer]
      reduce: { strategy: merge }
      properties:
        customer: { type: string }
        orders: { type: integer, reduce: { strategy: sum } }
        spent: { type: number, reduce: { strategy: sum } }
    derive:
      using: { sqlite: {} }
      transforms:
        - name: fromOrders
          source: shop/orders
          shuffle: any
          lambda: SELECT $customer, 1 AS orders, $amount AS spent;
materializations:
  shop/view:
    endpoint: { address: "ADDRESS", config: { path: "PATH" } }
    bindings:
      - { resource: { table: orders }, source: shop/orders }
      - { resource: { table: spending }, source: shop/spending }
"""


def orders(begin: int, end: int, day: int = 1) -> list[dict[str, object]]:
    """Orders of some numbers, a minute apart."""
    return [
        {
            "id": number,
            "customer": f"c{number % 7}",
            "amount": number / 4,
            "at": f"2024-01-{day:02}T{number // 60 % 24:02}:{number % 60:02}:00Z",
        }
        for number in range(begin, end)
    ]


def ingest(world: World, begin: int, end: int, day: int = 1) -> None:
    """Ingest orders of a day, which is over then."""
    world.wall = 1_704_067_200_000_000 + day * 86_400_000_000
    world.ingest("shop/orders", orders(begin, end, day))


@contextmanager
def served(connector: MaterializeSqlite | None = None) -> Iterator[str]:
    """The address of a connector of SQLite."""
    server = ConnectorServer(connector or MaterializeSqlite(), "127.0.0.1:0")
    try:
        yield server.address
    finally:
        server.stop()


def tables(path: Path) -> dict[str, list[str]]:
    """The documents of each table, by key."""
    with closing(apsw.Connection(str(path))) as db:  # the connector's library: two would lose each other's locks
        db.set_busy_timeout(30_000)  # a connector may take a moment to end behind a process that was killed
        return {
            "shop/orders": [text for (text,) in db.execute("SELECT flow_document FROM orders ORDER BY id")],
            "shop/spending": [text for (text,) in db.execute("SELECT flow_document FROM spending ORDER BY customer")],
        }


def folded(world: World) -> dict[str, list[str]]:
    """What the tables must hold, by the collections."""
    contents = {}
    scratch = world.root / "scratch"
    for name in ("shop/orders", "shop/spending"):
        spec = world.catalog.collections[name]
        parts = read_reduced(world.store, spec, ReadOptions(), partial(reduced_locally, scratch=scratch))
        contents[name] = [text for rows in parts for text in rows.texts.to_pylist()]
    return contents
