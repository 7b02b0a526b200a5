"""Rows of tables, and their deletions, are put aside and retried like documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import World
from test_quarantine import entries
from test_table_sources import CATALOG, COLUMNS, ORDERS, append, reduced

from derive.engine.quarantine import Choice, decide
from derive.protocol.specs import CatalogSpec

FAILING = CATALOG.replace("shuffle: {key: [/id]}", "shuffle: {key: [/id]}\n          onViolation: quarantine").replace(
    "THEN -$amount ELSE $amount END", "THEN -$amount ELSE json_extract(iif($amount = 4, '{', $amount), '$') END"
)


def test_rows_of_tables_are_put_aside_and_retried(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(FAILING), wall=1_000_000)
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 2))
    world.step()
    found = entries(world, "t/amounts")
    assert [(entry["key"], entry["document"]["amount"]) for entry in found] == [([2], 4.0), ([2], 4.0)]
    assert len({entry["id"] for entry in found}) == 2
    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 2.5}]

    world.catalog = catalog_of(CATALOG)
    world.wall += 1_000_000
    assert decide(world.store, world.catalog.derivations["t/amounts"], Choice(), "retry") == 2
    world.wall += 1_000_000
    world.step()
    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 2.5}, {"id": 2, "amount": 8.0}]
    world.store.close()


def test_deletions_of_rows_are_retried_as_deletions(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> None:
    failing = FAILING.replace("THEN -$amount", "THEN json_extract(iif($amount = 2.5, '{', -$amount), '$')")
    world = World(tmp_path / "data", catalog_of(failing), wall=1_000_000)
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1))
    append(world, table, ((1, 2.5), -1))
    world.step()
    (entry,) = entries(world, "t/amounts")
    assert entry["document"] == {"id": 1, "amount": 2.5, "_meta": {"op": "d"}}
    world.catalog = catalog_of(CATALOG)
    world.wall += 1_000_000
    decide(world.store, world.catalog.derivations["t/amounts"], Choice(), "retry")
    world.wall += 1_000_000
    world.step()
    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 0.0}]
    world.store.close()
