"""Derivations that read tables: rows are documents, and those that are taken away say so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from conftest import World, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.algebra.types import Row
from derive.catalog import load
from derive.errors import StorageError
from derive.protocol.specs import CatalogSpec
from derive.relations.tables.rows import TableRows
from derive.storage.compaction import compact
from derive.storage.contents import ReadOptions
from derive.storage.reduced_read import read_reduced, reduced_locally
from derive.storage.table import Table, TableColumn

ORDERS = "sql/public/orders"
CATALOG = """
collections:
  sql/public/orders:
    schema:
      type: object
      required: [id]
      properties:
        id: {type: integer}
        amount: {type: number}
        _meta: {type: object, properties: {op: {type: string}}}
    key: [/id]
  t/amounts:
    schema:
      type: object
      required: [id, amount]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, amount: {type: number, reduce: {strategy: sum}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: fromOrders
          source: sql/public/orders
          shuffle: {key: [/id]}
          lambda: SELECT $id, CASE WHEN $_meta$op IS 'd' THEN -$amount ELSE $amount END AS amount;
  t/documents:
    schema: {type: object, required: [id], properties: {id: {type: integer}, op: {type: [string, "null"]}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: fromOrders
          source: sql/public/orders
          shuffle: any
          lambda: SELECT $id, json_extract($flow_document, '$._meta.op') AS op;
"""
COLUMNS = (TableColumn("id", "bigint", nullable=False), TableColumn("amount", "double precision"))


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def append(world: World, table: Table, *changes: tuple[Row, int]) -> None:
    world.wall += 1_000_000
    world.store.tables.append(world.store.timeline.assign(1), {table.id: TableRows(table).changes(changes)})
    world.wall += 1_000_000


def reduced(world: World, name: str) -> list[dict[str, object]]:
    scratch = world.root.parent
    parts = read_reduced(
        world.store,
        world.catalog.collections[name],
        ReadOptions(),
        lambda root, spec, read: reduced_locally(root, spec, read, scratch),
    )
    return [document for rows in parts for document in rows.documents()]


def test_rows_are_documents_and_those_taken_away_say_so(world: World) -> None:
    world.step()  # the catalog may be run before there is a table
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 2))
    world.step()
    append(world, table, ((1, 2.5), -1), ((1, 3.0), 1))
    append(world, table, ((2, 4.0), -1))
    world.step()

    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 3.0}, {"id": 2, "amount": 4.0}]
    told = [(document["id"], document.get("op")) for document in map(orjson.loads, texts(world, "t/documents"))]
    assert told == [(1, None), (2, None), (1, None), (2, "d")]


def texts(world: World, name: str) -> list[str]:
    return [text for _, _, _, text in world.rows(name)]


def test_what_is_stored_decides_what_a_table_comes_to(world: World) -> None:
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 1))
    append(world, table, ((1, 2.5), -1))
    assert reduced(world, ORDERS) == [{"id": 2, "amount": 4.0}]

    upper = world.store.upper(ORDERS)
    compact(world.store, world.catalog.collections[ORDERS], since=upper, grace=0)
    assert reduced(world, ORDERS) == [{"id": 2, "amount": 4.0}]


def test_a_catalog_says_what_the_key_of_a_table_is(world: World) -> None:
    world.store.tables.create(ORDERS, COLUMNS, key=["amount"])

    with pytest.raises(StorageError, match=r'was stored with key \["/amount"\]'):
        world.step()


@settings(max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "8")), deadline=None)
@given(
    commits=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1, 2, -1]))),
            st.integers(1, 2_000_000),
            st.sampled_from(["", "flush", "compact", "step"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_l1_whatever_becomes_of_rows_the_same_is_derived(
    commits: list[tuple[list[tuple[int, float, int]], int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("worlds")
    catalog = load(write_catalog(folder, CATALOG))
    digests = []
    for name, shards in (("plain", 1), ("busy", 3)):
        world = World(folder / name, catalog, wall=1_000_000)
        table = world.store.tables.create(ORDERS, COLUMNS)
        clock = 1_000_000
        for changes, pause, action in commits:
            clock += pause
            world.wall = clock + 1
            rows = TableRows(table).changes(((number, value), diff) for number, value, diff in changes)
            world.store.tables.append(clock, {table.id: rows})
            if name == "busy" and action == "step":
                world.step(shards=shards)
            elif name == "busy" and action == "compact":
                compact(world.store, table.spec, grace=0)
            elif name == "busy" and action == "flush":
                world.store.tables.flush()
        world.wall = clock + 10_000_000
        world.step(shards=shards)
        digests.append(world.digest())
        world.store.close()

    assert digests[0] == digests[1]
