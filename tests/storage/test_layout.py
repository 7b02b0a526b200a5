"""Collections and tasks have folders of their own, also where the name of one goes on from the name of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog
from hypothesis import given
from hypothesis import strategies as st

from derive.catalog import load
from derive.catalog.language.names import is_name
from derive.engine.reset import reset
from derive.shard.progress import progress_folder
from derive.shard.state import task_folder
from derive.storage.layout import move_former
from derive.storage.segments.partition import collection_folder, former_folder
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


def test_collecting_the_files_of_a_collection_leaves_those_of_one_whose_name_goes_on_from_it(tmp_path: Path) -> None:
    worlds = folder_of(tmp_path, INNER, OUTER)
    run(worlds[INNER], 1, 2)

    worlds[OUTER].wall = worlds[INNER].wall
    run(worlds[OUTER])

    expected = ['{"k":1,"n":1}', '{"k":2,"n":1}']
    assert (rows(worlds[OUTER], OUTER), rows(worlds[INNER], INNER)) == (expected, expected)


def test_starting_a_task_over_leaves_the_state_of_one_whose_name_goes_on_from_it(tmp_path: Path) -> None:
    worlds = folder_of(tmp_path, INNER, OUTER)
    for world in worlds.values():
        run(world, 1)

    reset(worlds[OUTER].catalog, worlds[OUTER].store, [OUTER])
    worlds[INNER].wall = worlds[OUTER].wall
    run(worlds[INNER], 1)

    assert rows(worlds[INNER], INNER) == ['{"k":1,"n":1}', '{"k":1,"n":2}', '{"k":1,"n":3}']


@given(st.from_regex(r"[a-z0-9_.@=-]{1,9}(/[a-z0-9_.@=-]{1,9}){0,2}", fullmatch=True).filter(is_name), st.data())
def test_no_path_of_a_name_is_on_the_way_to_one_of_another(name: str, data: st.DataObject) -> None:
    longer = name + data.draw(st.sampled_from(["/a", "/epoch", "/00000000-ffffffff", ".jsonl/a", ".jsonl.1", "/a/b"]))
    root = Path("data")
    assert is_name(longer)

    for path in (task_folder, progress_folder, log_file, lambda root, name: root / collection_folder(name)):
        mine, other = path(root, name), path(root, longer)
        assert mine != other
        assert mine not in other.parents
        assert other not in mine.parents
        assert "=" not in mine.name  # which other tools would take for a logical partition


# What older versions have left


NEW_COLUMNS = [
    ("timeline", "time"),
    ("timeline", "watch"),
    ("timeline", "elapsed"),
    ("task", "fingerprints"),
    ("task", "edits"),
    ("collection", "id"),
    ("collection", "columns"),
    ("collection", "maintained"),
    ("segment", "checksum"),
    ("collection", "relation"),
    ("collection", "named"),
]
"""What format 4 had not, by table."""


def to_format_4(world: World, names: list[str]) -> None:
    """Make the data folder one of format 4, as which it has been in use."""
    root = world.root
    db = apsw.Connection(str(root / "metadata.db"))
    db.execute("UPDATE format SET version = 4")
    db.execute("DROP INDEX collection_by_id")
    db.execute("DROP INDEX collection_by_relation")
    for table in ("identifier", "appended", "failure", "folder", "writer", "discarded"):
        db.execute(f"DROP TABLE {table}")
    (root / "commits").unlink()
    for table, column in NEW_COLUMNS:
        db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    for table in ("collection", "capability"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0")
    db.execute("UPDATE collection SET epoch = coalesce((SELECT epoch FROM task WHERE task.name = collection.name), 0)")
    db.execute("ALTER TABLE task DROP COLUMN epoch")
    for name, places in db.execute("SELECT name, places FROM task").fetchall():
        known = {key: place[:3] for key, place in json.loads(str(places)).items()}
        db.execute("UPDATE task SET places = ? WHERE name = ?", (json.dumps(known), name))
    for name in sorted(names, key=len):
        own, former = collection_folder(name), former_folder(name)
        db.execute("UPDATE segment SET path = replace(path, ?, ?)", (f"{own}/", f"{former}/"))
        for now, then in ((own, former), (own.replace("collections", "state"), former.replace("collections", "state"))):
            if (root / now).exists():
                shutil.copytree(root / now, root / then, dirs_exist_ok=True)
                shutil.rmtree(root / now)
        if log_file(root, name).exists():
            log_file(root, name).rename(root / f"logs/{name}.jsonl")
    db.close()


def files(root: Path) -> list[str]:
    """What is in a data folder beside the metadata and its documents, whose names are made up."""
    found = (str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())
    return sorted(each for each in found if "/" in each and not each.endswith(".parquet"))


def test_a_data_folder_of_format_4_goes_on(tmp_path: Path) -> None:
    worlds = folder_of(tmp_path, INNER, OUTER)
    for world in worlds.values():
        run(world, 1, 2)
    before, expected = files(tmp_path / "data"), [rows(worlds[name], name) for name in (OUTER, INNER)]
    to_format_4(worlds[OUTER], ["source", OUTER, INNER])
    assert files(tmp_path / "data") != before
    garbage = [tmp_path / f"data/collections/acme/orders/{path}" for path in ("t-0.parquet", "k=1/t-0.parquet")]
    for each in garbage:
        each.write_bytes(b"torn")

    worlds = {name: World(tmp_path / "data", world.catalog, wall=world.wall) for name, world in worlds.items()}
    assert files(tmp_path / "data") == before
    assert [rows(worlds[name], name) for name in (OUTER, INNER)] == expected
    worlds[INNER].wall = worlds[OUTER].wall
    for world in worlds.values():
        run(world, 1)

    assert [rows(worlds[name], name)[1] for name in (OUTER, INNER)] == ['{"k":1,"n":2}', '{"k":1,"n":2}']
    assert all(each.exists() for each in garbage)  # the metadata never named them: they may be newer


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_moving_state_goes_on_after_a_crash(tmp_path: Path, moved: int) -> None:
    shard = "00000000-ffffffff"
    names = ["a", f"a/{shard}"]  # the folder of the second was that of the first one's shard
    former = ["epoch", f"{shard}/state.db", f"{shard}/epoch", f"{shard}/{shard}/state.db"]
    for path in former:
        (tmp_path / "state/a" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state/a" / path).write_text(path)
    for entry in [f"{shard}/epoch", f"{shard}/{shard}", "epoch"][:moved]:  # in the order in which they are moved
        own = tmp_path / (f"state/a/{shard}@" if "/" in entry else "state/a@")
        own.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state/a" / entry).rename(own / Path(entry).name)

    for _ in range(2):
        move_former(tmp_path, names)

    found = {
        str(each.relative_to(tmp_path / "state")): each.read_text() for each in tmp_path.rglob("*") if each.is_file()
    }
    assert found == {
        "a@/epoch": "epoch",
        f"a@/{shard}/state.db": f"{shard}/state.db",
        f"a/{shard}@/epoch": f"{shard}/epoch",
        f"a/{shard}@/{shard}/state.db": f"{shard}/{shard}/state.db",
    }
