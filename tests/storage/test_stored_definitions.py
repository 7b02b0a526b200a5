"""Definitions of one commit: names, tables and rows, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.document.key import pack
from derive.errors import FrontierError, UsageError
from derive.storage.metadata.definitions import Definitions, ItemChanges, NewTable, StoredItem
from derive.storage.metadata.owner import Door, Owner
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, TableColumn, TableUpdate
from derive.storage.tables import MANY_ROWS, Change
from derive.time import FOREVER

pytestmark = pytest.mark.both_databases

COLUMNS = (TableColumn("id", "bigint", nullable=False),)
DECLARED = """
collections:
  sql/public/t: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  a/source: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, DECLARED)), wall=1_000)
    yield world
    world.store.close()


def rows(count: int) -> list[Change]:
    return [(orjson.dumps({"id": number}).decode(), pack([number]), 1) for number in range(count)]


def item(identifier: int, name: str) -> StoredItem:
    return StoredItem(identifier, "table", "public", name, "{}")


def parquet(store: Store) -> list[str]:
    return [str(path.relative_to(store.root)) for path in store.root.rglob("*.parquet")]


def create(store: Store, clock: int, name: str, count: int = 0) -> int:
    (identifier,) = store.tables.new_ids(1)
    changes = ItemChanges(added=(item(identifier, name),))
    definitions = Definitions(changes, created=(NewTable(identifier, f"sql/public/{name}", COLUMNS),))
    store.tables.append(clock, {identifier: rows(count)} if count else {}, [identifier], definitions)
    return identifier


@pytest.mark.parametrize("count", [0, 3, MANY_ROWS])
def test_a_new_table_has_its_rows_from_its_commit_on(count: int, world: World) -> None:
    store = world.store
    identifier = create(store, 2_000, "t", count)

    table = store.tables.find("sql/public/t")
    assert table is not None
    assert (table.id, table.key, table.since, table.upper) == (identifier, ("/id",), 2_000, 2_001)
    read = store.tables.read(identifier, 0, 3_000)
    assert sum(segment.documents for segment in read.segments) + len(read.appended) == count
    assert all(path.startswith("collections/sql/public/t@/") for path in parquet(store))
    assert len(parquet(store)) == (count == MANY_ROWS)
    assert store.sql_catalog.read() == (1, [item(identifier, "t")])
    assert [table.name for table in store.tables.all()] == ["sql/public/t"]


@pytest.mark.parametrize("count", [1, MANY_ROWS])
def test_a_failed_commit_defines_and_writes_nothing(count: int, world: World) -> None:
    store = world.store
    other = create(store, 2_000, "other")
    world.ingest("a/source", [{"id": 1}], None)
    files = parquet(store)
    (identifier,) = store.tables.new_ids(1)
    new, changes = NewTable(identifier, "a/source", COLUMNS), ItemChanges(removed=(other,))
    with pytest.raises(UsageError, match="collection 'a/source' exists already"):
        store.tables.append(3_000, {identifier: rows(count)}, (), Definitions(changes, (new,), dropped=(other,)))
    with pytest.raises(FrontierError):
        renamed = Definitions(ItemChanges(renamed={other: "t"}), renamed={other: "sql/public/t"})
        store.tables.append(2_000, {other: rows(count)}, (), renamed)

    assert parquet(store) == files
    assert [table.name for table in store.tables.all()] == ["sql/public/other"]
    assert store.sql_catalog.read() == (1, [item(other, "other")])
    assert create(store, 3_000, "t") == identifier + 1


def test_tables_and_items_swap_names(world: World) -> None:
    store = world.store
    one, two = create(store, 2_000, "t", 1), create(store, 2_001, "u", 2)
    names = {one: "sql/public/u", two: "sql/public/t"}
    store.tables.append(
        3_000, {one: rows(3)}, (), Definitions(ItemChanges(renamed={one: "u", two: "t"}), renamed=names)
    )

    assert {identifier: store.tables.name_of(identifier) for identifier in names} == names
    assert [(stored.id, stored.name) for stored in store.sql_catalog.read()[1]] == [(one, "u"), (two, "t")]
    assert len(store.tables.read(one, 3_000, 3_001).appended) == 3


def test_a_declared_collection_becomes_the_table_and_keeps_its_relation(world: World) -> None:
    store = world.store
    store.create(*world.catalog.collections.values())
    relation = store.relation("sql/public/t")
    identifier = create(store, 2_000, "t", 1)

    assert store.relation("sql/public/t") == relation
    assert store.tables.id_of("sql/public/t") == identifier


def test_name_of_a_dropped_view_has_no_owner(world: World) -> None:
    store = world.store
    table = create(store, 2_000, "t", 1)
    (view,) = store.tables.new_ids(1)
    new = NewTable(view, "sql/public/m", COLUMNS, inputs=(table,))
    store.tables.append(2_001, {}, (), Definitions(ItemChanges(added=(item(view, "m"),)), (new,)))
    stored = store.tables.table(view)
    assert stored is not None
    assert (stored.since, store.owner("sql/public/m")) == (2_000, Owner.VIEW)
    store.tables.append(2_002, {}, (), Definitions(ItemChanges(removed=(view,)), dropped=(view,)))

    assert store.owner("sql/public/m") is Owner.TABLE


def test_only_the_last_definition_of_a_view_writes(world: World) -> None:
    tables = world.store.tables
    view = tables.create("sql/public/v", COLUMNS, at=5, view_of=["a/source"])
    update = TableUpdate(view.id, 10, 21, (RowUpdate(20, '{"id":1}', pack([1]), 1),))
    tables.commit([TableUpdate(view.id, 5, 6, definition=1)], Door.DATAFLOW)
    tables.append(10, {}, definitions=Definitions(ItemChanges(), redefined={view.id: []}))

    changed = tables.table(view.id)
    assert changed is not None
    assert (changed.upper, changed.definition) == (10, -2)
    with pytest.raises(FrontierError, match="another definition"):
        tables.commit([replace(update, definition=1)], Door.DATAFLOW)
    tables.commit([replace(update, definition=2)], Door.DATAFLOW)
    written = tables.table(view.id)
    assert written is not None
    assert (written.upper, written.definition) == (21, 2)
    with pytest.raises(FrontierError, match="another definition"):
        tables.commit([TableUpdate(view.id, 21, 22, definition=1)], Door.DATAFLOW)
    tables.commit([TableUpdate(view.id, 21, FOREVER, definition=2)], Door.DATAFLOW)
    tables.append(30, {}, definitions=Definitions(ItemChanges(), redefined={view.id: []}))
    constant = tables.table(view.id)
    assert constant is not None
    assert (constant.upper, constant.definition) == (FOREVER, 2)
