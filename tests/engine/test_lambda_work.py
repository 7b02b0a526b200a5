"""The work of lambdas is counted with the progress of their task: once, for any number of shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.reset import reset
from derive.planning.status import task_row

CATALOG = """
collections:
  w/orders: {key: [/id], schema: &id {type: object, required: [id], properties: {id: {type: integer}, n: {type: integer}}}}
  w/items: {key: [/id], schema: *id}
  w/both:
    key: [/id]
    schema: *id
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: orders, source: w/orders, shuffle: {key: [/id]}, lambda: "SELECT $id, 1 AS n WHERE $id % 2 = 0;"}
        - {name: items, source: w/items, shuffle: {key: [/id]}, lambda: "SELECT $id, 2 AS n; SELECT $id + 1000 AS id;"}
  w/loop:
    key: [/id]
    schema: *id
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: begin, source: w/orders, shuffle: any, lambda: "SELECT $id, 3 AS n;"}
        - {name: again, source: w/loop, shuffle: any, lambda: "SELECT $id, $n - 1 AS n WHERE $n > 0;"}
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_work_is_counted_once_by_transform(shards: int, tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    for begin in (0, 50):
        for name in ("w/orders", "w/items"):
            world.ingest(name, [{"id": number} for number in range(begin, begin + 50)], clock=None)
        world.wall += 10_000_000
        world.step(shards=shards)
    world.step(shards=shards)

    rows = {name: task_row(world.store, spec)[0]["transforms"] for name, spec in world.catalog.derivations.items()}
    counts = {
        name: [(row["transform"], row["source"], row["documents in"], row["published"]) for row in row_of]
        for name, row_of in rows.items()
    }
    assert counts == {
        "w/both": [("orders", "w/orders", 100, 50), ("items", "w/items", 100, 200)],
        "w/loop": [("begin", "w/orders", 100, 100), ("again", "w/loop", 400, 300)],
    }
    assert [world.task(name).documents_in for name in counts] == [200, 500]
    assert all(
        row["microseconds per document"] > 0 and row["seconds"] > 0 for row_of in rows.values() for row in row_of
    )

    both = world.catalog.derivations["w/both"]
    reset(world.catalog, world.store, [both.name])
    cleared = task_row(world.store, both)[0]["transforms"]
    assert [(row["documents in"], row["microseconds per document"]) for row in cleared] == [(0, None)] * 2
    assert world.store.work("w/both") == {}
    world.step(shards=shards)
    assert [work.documents for work in world.store.work("w/both").values()] == [100, 100]
