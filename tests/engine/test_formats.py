"""Data folders of older metadata formats: today's code resumes them as if it had made them.

`format_history.py` says how they came about, and how the next one does.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import apsw
import pytest
from conftest import World
from format_history import FORMATS, after, documents, write_catalog

from derive.catalog import load
from derive.engine.reset import reset, split
from derive.storage.compaction import compact
from derive.storage.metadata.sqlite_tables import FORMAT

VERSIONS = sorted(int(file.name.removesuffix(".tar.xz")) for file in FORMATS.iterdir())
DONE = 3
"""How many batches the folders hold; some tasks have processed two of them."""


def unpacked(version: int, folder: Path) -> World:
    """A world that goes on with a data folder of an older format."""
    with tarfile.open(FORMATS / f"{version}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return World(folder / "data", load(write_catalog(folder)), wall=after(DONE - 1))


def from_scratch(like: World, batches: int) -> World:
    """What one run over the same documents derives."""
    world = World(like.root.with_name(f"scratch-{batches}"), like.catalog, wall=after(batches - 1))
    for batch in range(batches):
        world.ingest("u/source", documents(batch))
    world.step(shards=1)
    return world


def tables(world: World) -> dict[object, list[tuple[object, ...]]]:
    """Columns of each table of the metadata, and their types."""
    db = apsw.Connection(str(world.root / "metadata.db"))
    found = {
        name: db.execute('SELECT name, type, "notnull" FROM pragma_table_info(?) ORDER BY name', (name,)).fetchall()
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    }
    assert db.execute("PRAGMA integrity_check").get == "ok"
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    return found


def files_of(world: World) -> set[str]:
    return {str(path.relative_to(world.root)) for path in (world.root / "collections").rglob("*.parquet")}


def known_to(world: World) -> set[str]:
    return {file for name in world.catalog.collections for file in world.store.garbage.known(name)}


def test_every_upgradable_format_has_a_data_folder() -> None:
    assert set(VERSIONS) >= set(range(9, FORMAT))


@pytest.mark.deno
@pytest.mark.parametrize(
    "version", [VERSIONS[0], *(pytest.param(version, marks=pytest.mark.torture) for version in VERSIONS[1:])]
)  # the upgrade of the oldest format has the steps of the later ones
def test_l1_and_l3_hold_for_upgraded_data_folders(version: int, tmp_path: Path) -> None:
    world = unpacked(version, tmp_path)
    unnamed = files_of(world) - known_to(world)
    scratch = from_scratch(world, DONE)
    names = list(world.catalog.collections)
    assert tables(world) == tables(scratch)
    assert world.rows("u/source") == scratch.rows("u/source")
    before = {name: world.rows(name) for name in names if world.store.collection(name)}
    uppers = {name: world.store.upper(name) for name in before}
    assert all(before.values())
    assert set(before) == set(names)

    # What its processes left when they died is done again.
    world.step()
    assert world.digest() == scratch.digest()
    for name, rows in before.items():
        assert world.rows(name)[: len(rows)] == rows
        assert world.store.upper(name) >= uppers[name]
    assert world.task("u/counts").shards == 4

    for batch in (DONE, DONE + 1):
        world.wall = after(batch)
        world.ingest("u/source", documents(batch))
        world.step()
        assert world.digest() == from_scratch(world, batch + 1).digest()

    # And whatever else is done to data folders can be done to it.
    complete = world.digest()
    split(world.store, "u/large")
    reset(world.catalog, world.store, ["u/counts"], cascade=True)
    world.step()
    for spec in world.catalog.collections.values():
        compact(world.store, spec, grace=0)
    assert world.digest() == complete
    # Files that crashed processes of versions before 10 left were never named, and stay.
    assert files_of(world) - unnamed == known_to(world)
    if version < 10:
        assert files_of(world) >= unnamed - {path for path in unnamed if "ingest-" in path}
