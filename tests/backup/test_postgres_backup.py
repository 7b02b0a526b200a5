"""Backups of data folders whose metadata are in PostgreSQL, and restores into PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
from backed_up import BASE, SECOND, go_on, in_child, take, world_of, wrong, wrong_with_backup
from conftest import World
from forked_flowctl import BARE, flowctl
from postgres_server import server
from psycopg.sql import SQL, Identifier

from derive.errors import StorageError, UsageError
from derive.restore import restore
from derive.storage.metadata.place import VARIABLE, Place, place_of, read_place
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.store import Store


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A data folder with its metadata in PostgreSQL."""
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    settle_place(tmp_path / "data", place_of(os.environ[VARIABLE]), creates=True)
    world = world_of(tmp_path)
    go_on(world, range(2))
    return world


def new_place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    return place_of(os.environ[VARIABLE])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["PostgreSQL", "the folder"])
def test_l1_restored_metadata_continue_with_the_same_bytes(
    target: str, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (tmp_path / "data/metadata.json").exists()
    take(world, tmp_path / "backup")
    assert (wrong_with_backup(tmp_path / "backup"), wrong(world.root)) == ([], [])
    go_on(world, range(2, 4))
    expected = world.digest()

    zombie, _ = world.store.acquire_task("b/counts", 2, ["b/counts"])
    place = new_place(monkeypatch) if target == "PostgreSQL" else None
    restore(tmp_path / "backup", tmp_path / "restored", place=place)
    assert read_place(tmp_path / "restored") == place
    with closing((other := world_of(tmp_path, "restored", BASE + 121 * SECOND)).store) as store:
        go_on(other, range(2, 4))
        assert other.digest() == expected
        assert wrong(other.root) == []
        assert store.acquire_task("b/counts", 2, ["b/counts"])[0].epoch > zombie.epoch + 1_000_000
    world.store.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "point", ["restore.file:3", "move.table", "move.filled", "restore.completing", "restore.completed"]
)
def test_killed_restore_into_postgresql_is_repeated(
    point: str, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(world, tmp_path / "backup")
    expected = world.digest()
    world.store.close()
    place = new_place(monkeypatch)

    assert in_child(lambda: restore(tmp_path / "backup", tmp_path / "restored", place=place), point) == -signal.SIGKILL
    with pytest.raises(StorageError, match="restore into .* is incomplete"):
        Store(tmp_path / "restored")
    restore(tmp_path / "backup", tmp_path / "restored", place=place)
    with closing((other := world_of(tmp_path, "restored")).store):
        assert other.digest() == expected
        assert wrong(other.root) == []
    with pytest.raises(UsageError, match="has the metadata of the data folder"):
        restore(tmp_path / "backup", tmp_path / "another", place=place)


def test_server_that_has_lost_commits_is_refused_until_the_loss_is_accepted(tmp_path: Path, world: World) -> None:
    """A failover to a standby that lacks the last transactions: their files stay, and their epochs are not reused."""
    place = read_place(world.root)
    assert place is not None
    with server().connect() as connection:
        tables, lost = Identifier(place.schema), Identifier(f"{place.schema}_old")
        connection.execute(SQL("CREATE SCHEMA {}").format(lost))
        for table in ("folder", "task"):
            name = Identifier(table)
            connection.execute(SQL("CREATE TABLE {}.{} AS TABLE {}.{}").format(lost, name, tables, name))
        go_on(world, range(2, 3))
        epoch = world.store.acquire_task("b/counts", 2, ["b/counts"])[0].epoch
        for columns in ("folder SET commits = old.commits", "task SET epoch = old.epoch"):
            table = columns.split()[0]
            connection.execute(
                SQL(
                    "UPDATE {}." + columns + " FROM {}.{} AS old WHERE {}.id = old.id"
                    if table == "folder"
                    else "UPDATE {}." + columns + " FROM {}.{} AS old WHERE {}.name = old.name"
                ).format(tables, lost, Identifier(table), Identifier(table))
            )
        connection.execute(
            "SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity WHERE application_name LIKE 'flowctl%'"
        )
    with pytest.raises(StorageError, match="is older than"):  # also for a process that has the folder open
        world.store.timeline.read()
    world.store.close()
    named = {**BARE, VARIABLE: os.environ[VARIABLE]}
    status, _, err = flowctl(tmp_path, "status", "--data", "data", env=named)
    assert (status, "flowctl verify --accept-older" in err.replace("\n", " ")) == (1, True)
    status, out, _ = flowctl(tmp_path, "verify", "--data", "data", env=named)
    assert (status, '"kind":"older","path":"metadata.json"' in out) == (1, True)
    assert flowctl(tmp_path, "verify", "--data", "data", "--accept-older", env=named)[0] == 1
    assert flowctl(tmp_path, "status", "--data", "data", env=named)[0] == 0
    with closing(Store(world.root)) as store:
        assert store.acquire_task("b/counts", 2, ["b/counts"])[0].epoch > epoch + 1_000_000


def test_commands_back_up_restore_and_verify(tmp_path: Path, world: World) -> None:
    world.store.close()
    named = {**BARE, VARIABLE: os.environ[VARIABLE]}
    other = {**BARE, VARIABLE: server().metadata_url}
    assert flowctl(tmp_path, "backup", "backup", "--data", "data", env=named)[0] == 0
    assert flowctl(tmp_path, "verify", "--backup", "backup")[0] == 0
    shutil.rmtree(tmp_path / "data")

    status, _, err = flowctl(tmp_path, "restore", "backup", "--data", "data", env=named)
    assert (status, "name another schema" in err) == (2, True)
    assert flowctl(tmp_path, "restore", "backup", "--data", "data", env=other)[0] == 0
    assert flowctl(tmp_path, "verify", "--data", "data", env=other)[0] == 0
    assert flowctl(tmp_path, "verify", "--replay", "--data", "data", env=other)[0] == 0
    (tmp_path / "data/collections").rename(tmp_path / "lost")
    status, out, _ = flowctl(tmp_path, "verify", "--data", "data", env=other)
    assert (status, out.count('"kind":"missing"')) == (1, 6)
