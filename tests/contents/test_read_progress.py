"""The progress of reads: it grows up to the end of the last source, for collections and tables."""

from __future__ import annotations

from pathlib import Path

from conftest import LATER, World, write_catalog
from test_table_conditions import history_of

from derive.catalog import load
from derive.contents.rows import ReadProgress, contents_at
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

CATALOG = """
collections:
  c/events:
    schema: {type: object, required: [id], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
"""


def test_progress_of_reads_ends_with_the_last_source(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    world.ingest("c/events", [{"id": number % 7, "at": "2023-11-14T22:13:20Z"} for number in range(100)])
    world.store.seal(["c/events"], LATER)
    spec = world.catalog.collections["c/events"]
    store = Store(tmp_path / "other", wall=lambda: 0, durable=False)
    created = store.tables.create("sql/public/t", (TableColumn("n", "bigint"),))
    *_, last = history_of(store, created, [("change", [((5,), 1), ((6,), 1)])], is_only_added_to=True)
    table = store.tables.table(created.id)
    assert table is not None

    reads = ReadProgress()
    assert reads.share is None
    count = reads.begin(world.store, [spec])
    assert reads.begin(store, [table]) == count
    assert reads.share == 0
    assert sum(map(len, contents_at(world.store, spec, LATER - 1, progress=count))) == 7
    assert reads.share == 100 / 102
    assert list(contents_at(store, table, last, progress=count)) == [[(5,), (6,)]]
    assert reads.share == 1
    store.close()
