"""Collections that are reset, and tables that change their names, between the steps of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.algebra.types import Row
from derive.catalog import load
from derive.contents.inputs import relation_input
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.rows import contents_at, rows_of_share, shares_at
from derive.errors import FencedError
from derive.relations.table_rows import TableRows
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn

CATALOG = """
collections:
  a/c:
    schema: {type: object, required: [k], properties: {k: {type: integer}}}
    key: [/k]
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=1_000_000)
    with closing(world.store):
        yield world


def in_between(
    monkeypatch: pytest.MonkeyPatch, store: Store, method: str, change: Callable[[], object], *, is_before: bool
) -> None:
    """Have a change happen once, just before or after a step of a read."""
    owner = store.capabilities if method == "keep" else store
    step = getattr(owner, method)

    def changed(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(owner, method, step)
        if is_before:
            change()
        result = step(*arguments, **options)
        if not is_before:
            change()
        return result

    monkeypatch.setattr(owner, method, changed)


@pytest.mark.parametrize(("method", "is_before"), [("keep", False), ("segments", True), ("segments", False)])
def test_read_of_a_collection_that_is_reset_meanwhile_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, is_before: bool
) -> None:
    """Other documents have the name then, of the same time."""
    spec = world.catalog.collections["a/c"]
    world.claim("a/c")
    world.ingest("a/c", [{"k": 1}], None, door=Door.TEST)
    world.wall += 1_000_000
    world.store.seal_now(["a/c"])

    in_between(monkeypatch, world.store, method, lambda: world.store.reset(["a/c"]), is_before=is_before)

    with pytest.raises(FencedError, match="'a/c' was reset during the read"):
        list(read_rows(world.store, spec, ReadOptions(as_of=world.wall - 1)))


READERS: dict[str, Callable[[Store, Table, int], list[list[Row]]]] = {
    "contents": lambda store, table, time: list(contents_at(store, table, time)),
    "shares": lambda store, table, time: [rows for at in shares_at(store, table, time) for rows in rows_of_share(at)],
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("is_before", [True, False])
def test_reader_keeps_its_table_while_two_tables_exchange_names(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    reader: Callable[[Store, Table, int], list[list[Row]]],
    is_before: bool,
) -> None:
    """Two tables change their names while one is read; its capability is on the right table, too."""
    store = world.store
    one, other = (store.tables.create(f"sql/public/{name}", (TableColumn("k", "bigint"),)) for name in "tu")
    rows = TableRows(one)
    world.wall += 1_000_000
    time = world.wall
    store.tables.append(time, {one.id: rows.changes([((1,), 1)]), other.id: rows.changes([((2,), 1)])})

    def swap() -> None:
        world.define(Definitions(renamed={one.id: other.name, other.id: one.name}))

    in_between(monkeypatch, store, "keep", swap, is_before=is_before)
    assert reader(store, one, time) == [[(1,)]]
    assert reader(store, one, time) == [[(1,)]]  # the names are swapped now
    with closing(relation_input(store, one, time)) as read:
        assert list(read.snapshot(time)) == [[(1,)]]
