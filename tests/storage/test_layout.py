"""Collections and tasks have folders of their own, also where the name of one goes on from the name of another."""

from __future__ import annotations

from pathlib import Path

from conftest import World, write_catalog
from hypothesis import given
from hypothesis import strategies as st

from derive.catalog import load
from derive.catalog.language.structure import is_name
from derive.engine.reset import reset
from derive.shard.progress import progress_folder
from derive.shard.state import task_folder
from derive.storage.segments.partition import collection_folder
from derive.storage.task_log import log_file

CATALOG = """
collections:
  source:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
  NAME:
    schema: {type: object, required: [k, n], properties: {k: {type: integer}, n: {type: integer}}}
    key: [/k, /n]
    projections: {k: {location: /k, partition: true}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER);"]}}
      transforms:
        - name: count
          source: source
          shuffle: {key: [/id]}
          lambda: INSERT INTO t VALUES ($id, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n;
"""
OUTER, INNER = "acme/orders", "acme/orders/daily"
BASE = 1_700_000_000_000_000


def folder_of(tmp_path: Path, *names: str) -> dict[str, World]:
    """One data folder, and a catalog for each name, as no catalog can have one name below another."""
    worlds = {}
    for name in names:
        source = tmp_path / name.replace("/", "-")
        source.mkdir()
        catalog = load(write_catalog(source, CATALOG.replace("NAME", name)))
        worlds[name] = World(tmp_path / "data", catalog, wall=BASE + 1_000_000)
    return worlds


def run(world: World, *numbers: int) -> None:
    """One more document for each number, and time enough for them to be processed."""
    world.ingest("source", [{"id": number, "at": "2023-11-14T22:13:20Z"} for number in numbers], None)
    world.wall += 1_000_000
    world.step(shards=2)


def rows(world: World, name: str) -> list[str]:
    return sorted(row[3] for row in world.rows(name))


def test_garbage_collection_keeps_files_of_a_collection_with_a_longer_name(tmp_path: Path) -> None:
    worlds = folder_of(tmp_path, INNER, OUTER)
    run(worlds[INNER], 1, 2)

    worlds[OUTER].wall = worlds[INNER].wall
    run(worlds[OUTER])

    expected = ['{"k":1,"n":1}', '{"k":2,"n":1}']
    assert (rows(worlds[OUTER], OUTER), rows(worlds[INNER], INNER)) == (expected, expected)


def test_starting_a_task_over_keeps_the_state_of_a_task_with_a_longer_name(tmp_path: Path) -> None:
    worlds = folder_of(tmp_path, INNER, OUTER)
    for world in worlds.values():
        run(world, 1)

    reset(worlds[OUTER].catalog, worlds[OUTER].store, [OUTER])
    worlds[INNER].wall = worlds[OUTER].wall
    run(worlds[INNER], 1)

    assert rows(worlds[INNER], INNER) == ['{"k":1,"n":1}', '{"k":1,"n":2}', '{"k":1,"n":3}']


@given(st.from_regex(r"[a-z0-9_.@=-]{1,9}(/[a-z0-9_.@=-]{1,9}){0,2}", fullmatch=True).filter(is_name), st.data())
def test_collection_paths_do_not_contain_each_other(name: str, data: st.DataObject) -> None:
    longer = name + data.draw(st.sampled_from(["/a", "/epoch", "/00000000-ffffffff", ".jsonl/a", ".jsonl.1", "/a/b"]))
    root = Path("data")
    assert is_name(longer)

    for path in (task_folder, progress_folder, log_file, lambda root, name: root / collection_folder(name)):
        mine, other = path(root, name), path(root, longer)
        assert mine != other
        assert mine not in other.parents
        assert other not in mine.parents
        assert "=" not in mine.name  # which other tools would take for a logical partition
