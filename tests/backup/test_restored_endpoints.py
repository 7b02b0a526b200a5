"""A restored data folder stores nothing in an endpoint that knows more than the folder does, and says what to do."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from backed_up import BASE, SECOND, take
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.reset import reset, split
from derive.errors import TaskError
from derive.materialize.worker import close_all
from derive.restore import restore

CATALOG = """
collections:
  m/sums:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, n: {type: integer, reduce: {strategy: sum}}, at: {type: string}}
    key: [/k]
materializations:
  m/out:
    endpoint: {connector: {image: materialize-sqlite, config: {path: out.db}}}
    bindings: [{resource: {table: sums}, source: m/sums}]
"""


ENDPOINT = "{connector: {image: materialize-sqlite, config: {path: out.db}}}"
ENDPOINTS = {
    "sqlite": ENDPOINT,
    "files": "{connector: {image: materialize-files, config: {path: out}}}",
    "duckdb": "{connector: {image: materialize-duckdb, config: {path: out.duckdb}}}",
}

DERIVED = """
    derive: {using: {sqlite: {}}, transforms: [{name: all, source: m/in, shuffle: any, lambda: "SELECT $k, $n, $at"}]}
  m/in:
    schema: {type: object, required: [at], properties: {k: {type: integer}, n: {type: integer}, at: {type: string}}}
    key: [/at]
"""


def world_of(folder: Path, name: str = "data", batches: int = 0) -> World:
    path = folder / "flow.yaml"
    catalog = load(path if path.exists() else write_catalog(folder, CATALOG))
    return World(folder / name, catalog, wall=BASE + batches * 60 * SECOND)


def go_on(world: World, batches: range, source: str = "m/sums") -> None:
    for batch in batches:
        world.wall = BASE + (batch + 1) * 60 * SECOND
        world.ingest(
            source, [{"k": number % 2, "n": 1, "at": f"2023-11-14T22:{13 + batch}:2{number}Z"} for number in range(4)]
        )
        try:
            for _ in range(2):  # what starts over first removes what is there
                world.step()
        finally:
            close_all()


def table(folder: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(folder / "out.db")) as db:
        return db.execute("SELECT k, n FROM sums ORDER BY k").fetchall()


def backed_up(folder: Path, more: int) -> World:
    """A data folder that is backed up after two batches, and then goes on."""
    world = world_of(folder)
    go_on(world, range(2))
    take(world, folder / "backup")
    shutil.copyfile(folder / "out.db", folder / "out.backup")
    go_on(world, range(2, 2 + more))
    restore(folder / "backup", folder / "restored")
    return world


def put_back(folder: Path) -> None:
    """Restore the endpoint from its backup."""
    shutil.copyfile(folder / "out.backup", folder / "out.db")
    for suffix in ("-wal", "-shm"):
        (folder / f"out.db{suffix}").unlink(missing_ok=True)


def test_endpoint_at_the_time_of_the_backup_continues_with_the_restored_folder(tmp_path: Path) -> None:
    original = backed_up(tmp_path, 0)
    restored = world_of(tmp_path, "restored", 3)
    go_on(restored, range(2, 4))
    assert table(tmp_path) == [(0, 8), (1, 8)]

    with pytest.raises(TaskError, match="another data folder"):
        go_on(original, range(2, 3))

    assert table(tmp_path) == [(0, 8), (1, 8)]
    go_on(restored, range(4, 5))
    assert table(tmp_path) == [(0, 10), (1, 10)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_refilled", [False, True])
def test_endpoint_ahead_of_the_backup_is_refused_until_it_is_restored(is_refilled: bool, tmp_path: Path) -> None:
    """Rows of a refill are of a history that the restored folder does not know, and newer than what it has."""
    original = backed_up(tmp_path, 1)
    if is_refilled:
        reset(original.catalog, original.store, ["m/out"])
    go_on(original, range(3, 4))
    original.store.close()
    restored = world_of(tmp_path, "restored", 3)

    for batch in (2, 3):
        with pytest.raises(TaskError, match="the endpoint is ahead of the folder") as caught:
            go_on(restored, range(batch, batch + 1))
        assert (caught.value.hint or "").endswith("flowctl reset --task m/out")
    assert table(tmp_path) == [(0, 8), (1, 8)]

    put_back(tmp_path)
    go_on(restored, range(4, 5))
    assert table(tmp_path) == [(0, 10), (1, 10)]


def test_endpoint_ahead_of_the_backup_starts_over_after_a_reset(tmp_path: Path) -> None:
    backed_up(tmp_path, 2).store.close()
    restored = world_of(tmp_path, "restored", 3)

    reset(restored.catalog, restored.store, ["m/out"])
    go_on(restored, range(2, 6))  # until it is later than what the endpoint has

    assert table(tmp_path) == [(0, 12), (1, 12)]


def test_endpoint_behind_the_backup_receives_the_missing_rows(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    shutil.copyfile(tmp_path / "out.db", tmp_path / "out.backup")
    go_on(world, range(1, 3))
    take(world, tmp_path / "backup")
    world.store.close()
    put_back(tmp_path)

    restore(tmp_path / "backup", tmp_path / "restored")
    go_on(world_of(tmp_path, "restored", 4), range(3, 4))

    assert table(tmp_path) == [(0, 8), (1, 8)]


def test_unrelated_folder_does_not_continue_rows_of_another_folder(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(2))
    world.store.close()

    other = world_of(tmp_path, "other")
    with pytest.raises(TaskError, match="another data folder") as caught:
        go_on(other, range(1))

    assert (caught.value.hint or "").endswith("replace its rows: flowctl reset --task m/out")
    assert table(tmp_path) == [(0, 4), (1, 4)]
    reset(other.catalog, other.store, ["m/out"])
    go_on(other, range(1, 2))
    assert table(tmp_path) == [(0, 4), (1, 4)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("documents", [0, 1])
@pytest.mark.parametrize("shards", [1, 2])
def test_unrelated_folder_does_not_refill_rows_of_another_folder(documents: int, shards: int, tmp_path: Path) -> None:
    """The rows of the first folder are of a history that the other folder does not know, and stay."""
    world = world_of(tmp_path)
    world.step(shards=shards)
    go_on(world, range(2))
    reset(world.catalog, world.store, ["m/out"])
    world.step(shards=shards)
    go_on(world, range(2, 3))
    world.store.close()

    other = world_of(tmp_path, "other")
    with pytest.raises(TaskError, match="another data folder"):
        if documents:
            other.ingest("m/sums", [{"k": 7, "n": 1}], clock=None)
        other.step(shards=1)
    close_all()
    assert table(tmp_path) == [(0, 6), (1, 6)]
    go_on(world_of(tmp_path), range(3, 4))
    assert table(tmp_path) == [(0, 8), (1, 8)]


def test_folder_is_refused_after_another_folder_took_its_endpoint(tmp_path: Path) -> None:
    """The folder that starts over takes the endpoint over, and the former one does not take it back."""
    first, second = world_of(tmp_path), world_of(tmp_path, "other")
    go_on(first, range(2))
    for batch, taken, left in ((2, second, first), (4, first, second)):
        reset(taken.catalog, taken.store, ["m/out"])
        go_on(taken, range(batch, batch + 1))
        before = table(tmp_path)
        with pytest.raises(TaskError, match="another data folder"):
            go_on(left, range(batch + 1, batch + 2))
        assert table(tmp_path) == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [["m/out"], ["m/sums"]])
def test_restored_folder_completes_a_reset_of_the_backup(names: list[str], tmp_path: Path) -> None:
    """The endpoint has later documents once, if the materialization starts over whole or by a binding."""
    derived = CATALOG.replace("    key: [/k]\nmat", "    key: [/k]\n" + DERIVED + "mat")
    write_catalog(tmp_path, derived if names == ["m/sums"] else CATALOG)
    source = "m/in" if names == ["m/sums"] else "m/sums"
    world = world_of(tmp_path)
    go_on(world, range(2), source)
    assert table(tmp_path) == [(0, 4), (1, 4)]
    reset(world.catalog, world.store, names, cascade=True)
    take(world, tmp_path / "backup")
    world.store.close()

    restore(tmp_path / "backup", tmp_path / "restored")
    go_on(world_of(tmp_path, "restored", 4), range(3, 5), source)

    assert table(tmp_path) == [(0, 8), (1, 8)]


def backed_up_before_splits(folder: Path, endpoint: str) -> World:
    """A restored data folder of one shard, whose endpoint has gone on with four shards since the backup."""
    catalog = CATALOG.replace(ENDPOINT, endpoint)
    if "files" in endpoint:
        catalog = catalog.replace("{table: sums}", "{path: out, format: jsonl}")
    write_catalog(folder, catalog)
    world = world_of(folder)
    world.step(shards=1)
    go_on(world, range(2))
    take(world, folder / "backup")
    for batch in (2, 3):
        split(world.store, "m/out", is_materialized=True)
        go_on(world, range(batch, batch + 1))
    world.store.close()
    restore(folder / "backup", folder / "restored")
    return world_of(folder, "restored", 5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS))
def test_endpoint_ahead_of_the_backup_with_more_shards_is_refused(endpoint: str, tmp_path: Path) -> None:
    """The checkpoint of the whole range is as old as the backup; those of the shards within it are newer."""
    restored = backed_up_before_splits(tmp_path, ENDPOINTS[endpoint])
    before = {path: path.stat().st_size for path in tmp_path.glob("out/*")}
    for batch in (5, 6):
        with pytest.raises(TaskError, match="the endpoint is ahead of the folder"):
            go_on(restored, range(batch, batch + 1))
    assert {path: path.stat().st_size for path in tmp_path.glob("out/*")} == before
    if endpoint == "sqlite":
        assert table(tmp_path) == [(0, 8), (1, 8)]
