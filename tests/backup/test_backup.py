"""A backup is of one moment, and what is restored from it goes on as if nothing had been in between."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import threading
import time
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from backed_up import BASE, SECOND, go_on, in_child, take, world_of, wrong, wrong_with_backup
from patience import PATIENCE_SECONDS
from sql_world import Client

from derive.backup import back_up, read_manifest
from derive.engine.reset import reset, split
from derive.errors import StorageError, UsageError
from derive.restore import restore
from derive.shard import state
from derive.shard.state import locked, shard_folder, still
from derive.sql.coordinator import Coordinator
from derive.storage.compaction import compact
from derive.storage.metadata.process import lock_holder
from derive.storage.store import Store

BACKUP_POINTS = ["begun", "metadata", "state", "state:3", "segment", "segment:2", "completing", "completed"]
RESTORE_POINTS = [
    *("restore.begun", "restore.file", "restore.file:3", "restore.completing", "restore.completed"),
    *("metadata.committing", "metadata.committed"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["links", "copies"])
def test_l1_folder_restored_elsewhere_continues_with_the_same_bytes(tmp_path: Path, how: str) -> None:
    world = world_of(tmp_path)
    go_on(world, range(3))
    shown: list[tuple[int, int]] = []
    done = take(world, tmp_path / "backup", copies=how == "copies", progress=lambda *counts: shown.append(counts))
    files = len(read_manifest(tmp_path / "backup").files)
    assert shown == [(count, files) for count in range(1, files + 1)]
    assert done.segments == 9
    assert done.linked == (9 if how == "links" else 0)
    go_on(world, range(3, 6))

    restore(tmp_path / "backup", tmp_path / "other" / "data", copies=how == "copies")
    (tmp_path / "other/flow.yaml").write_text((tmp_path / "flow.yaml").read_text())
    other = world_of(tmp_path / "other", wall=BASE + 181 * SECOND)
    assert wrong(other.root) == []
    go_on(other, range(3, 6))

    assert other.digest() == world.digest()
    assert other.rows("b/source") == world.rows("b/source")
    assert wrong_with_backup(tmp_path / "backup") == wrong(world.root) == wrong(other.root) == []
    # Nothing that is done to either reaches the backup, or the other one.
    for each in (world, other):
        reset(each.catalog, each.store, ["b/counts"], cascade=True)
        for spec in each.catalog.collections.values():
            compact(each.store, spec, grace=0)
    assert wrong_with_backup(tmp_path / "backup") == []


def test_restored_folder_replaces_a_lost_folder(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(2))
    take(world, tmp_path / "backup")
    go_on(world, range(2, 4))
    expected = world.digest()
    world.store.close()
    shutil.rmtree(world.root)

    restore(tmp_path / "backup", world.root)
    world = world_of(tmp_path, wall=BASE + 121 * SECOND)
    go_on(world, range(2, 4))

    assert world.digest() == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", BACKUP_POINTS)
def test_killed_backup_is_absent_or_complete(tmp_path: Path, point: str) -> None:
    world = world_of(tmp_path)
    go_on(world, range(2))
    before = world.digest()

    status = in_child(lambda: take(world_of(tmp_path, wall=world.wall), tmp_path / "backup"), f"backup.{point}")

    assert status == -signal.SIGKILL
    if point == "completed":
        assert wrong_with_backup(tmp_path / "backup") == []
    else:
        with pytest.raises(UsageError, match="is not a backup"):
            restore(tmp_path / "backup", tmp_path / "restored")
        with pytest.raises(UsageError, match="is not empty|no backup") as caught:
            if any((tmp_path / "backup").iterdir()):
                take(world, tmp_path / "backup")
            else:
                read_manifest(tmp_path / "backup")
        assert caught.value.message
    assert world.digest() == before
    go_on(world, range(2, 3))
    take(world, tmp_path / "another")
    restore(tmp_path / "another", tmp_path / "restored")
    assert world_of(tmp_path, "restored").digest() == world.digest()
    assert wrong(world.root) == wrong(tmp_path / "restored") == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_folder_of_a_killed_restore_is_refused_until_the_restore_is_repeated(tmp_path: Path, point: str) -> None:
    world = world_of(tmp_path)
    go_on(world, range(2))
    take(world, tmp_path / "backup")
    go_on(world, range(2, 4))

    status = in_child(lambda: restore(tmp_path / "backup", tmp_path / "restored"), point)

    assert status == -signal.SIGKILL
    for reading in (False, True):
        with pytest.raises(StorageError, match="restore into .* is incomplete"):
            Store(tmp_path / "restored", reading=reading)
    restore(tmp_path / "backup", tmp_path / "restored")
    other = world_of(tmp_path, "restored", wall=BASE + 121 * SECOND)
    go_on(other, range(2, 4))
    assert other.digest() == world.digest()
    assert wrong_with_backup(tmp_path / "backup") == wrong(other.root) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", ["missing", "changed", "cut"])
@pytest.mark.parametrize("pattern", ["*.parquet", "state.db", "metadata.db"])
def test_a_damaged_backup_is_not_restored(tmp_path: Path, damage: str, pattern: str) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    take(world, tmp_path / "backup", copies=True)
    path = next((tmp_path / "backup").rglob(pattern))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))

    (finding,) = wrong_with_backup(tmp_path / "backup")
    assert finding.kind == {"missing": "missing", "changed": "changed", "cut": "truncated"}[damage]
    with pytest.raises(StorageError, match="is missing in the backup|is damaged"):
        restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(StorageError, match="is incomplete"):
        Store(tmp_path / "restored")


def test_refused_backup_reports_reason(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    take(world, tmp_path / "backup")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()

    for folder, reported in ((tmp_path / "backup", "holds a backup"), (tmp_path / "full", "is not empty")):
        with pytest.raises(UsageError, match=reported):
            take(world, folder)
        with pytest.raises(UsageError, match=reported):
            restore(tmp_path / "backup", folder)
    with pytest.raises(UsageError, match="lies in the data folder"):
        take(world, world.root / "backup")
    with pytest.raises(UsageError, match="is not a backup"):
        take(world, tmp_path / "other", base=tmp_path / "full")
    with pytest.raises(UsageError, match="is not a backup"):
        restore(tmp_path / "full", tmp_path / "other")
    with pytest.raises(StorageError, match="is a backup"):
        Store(tmp_path / "backup")
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["file"]


def test_backup_with_an_earlier_one_links_unchanged_files(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(2))
    take(world, tmp_path / "one", copies=True)
    go_on(world, range(2, 3))

    done = take(world, tmp_path / "two", base=tmp_path / "one", copies=True)

    assert (done.segments, done.linked) == (9, 6)
    shared = [path for path in (tmp_path / "two").rglob("*.parquet") if path.stat().st_nlink == 2]
    assert len(shared) == 6
    shutil.rmtree(tmp_path / "one")
    assert wrong_with_backup(tmp_path / "two") == []


def test_a_damaged_segment_is_not_backed_up(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    path = next(world.root.rglob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"123456789")
    with pytest.raises(StorageError, match="a segment is damaged"):
        take(world, tmp_path / "one", copies=True)
    path.write_bytes(content[:-9])
    with pytest.raises(StorageError, match="a segment is damaged"):
        take(world, tmp_path / "two")
    path.unlink()
    with pytest.raises(StorageError, match="a segment is missing"):
        take(world, tmp_path / "three")


# While others are at work


def random_life(root: Path, seed: int, until: Path) -> None:
    """Do whatever can be done to a data folder, until a file is there."""
    chance = random.Random(seed)
    world = world_of(root.parent, root.name)
    batch = 1
    while not until.exists():
        deed = chance.choice(["go on", "go on", "go on", "compact", "split", "reset", "since"])
        if deed == "go on" and batch < 40:
            go_on(world, range(batch, batch + 1), shards=chance.choice([1, 2]))
            batch += 1
        elif deed == "compact":
            for spec in world.catalog.collections.values():
                compact(world.store, spec, grace=0)
        elif deed == "since":
            compact(world.store, world.catalog.collections["b/large"], since=BASE + batch * 30 * SECOND, grace=0)
        elif deed == "split" and (known := world.store.task("b/counts")) and known.shards < 8:
            split(world.store, "b/counts")
        elif deed == "reset" and world.store.task("b/counts"):
            reset(world.catalog, world.store, ["b/counts"], cascade=True)
            world.step(shards=2)


@pytest.mark.parametrize("seed", range(int(os.environ.get("FLOW_BACKUP_SEEDS", "1"))))
def test_l2_backups_taken_at_any_time_continue_to_the_same_bytes(tmp_path: Path, seed: int) -> None:
    """A restored folder derives the rest, and has then what one go over its source derives."""
    world = world_of(tmp_path)
    go_on(world, range(1))
    stop = tmp_path / "stop"
    child = os.fork()
    if child == 0:
        try:
            random_life(world.root, seed, stop)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    chance = random.Random(seed)
    try:
        for number in range(4):
            time.sleep(chance.random() / 2)
            take(world, tmp_path / f"backup-{number}", copies=number % 2 == 0)
    finally:
        stop.touch()
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert wrong(world.root) == []

    for number in range(4):
        backup = tmp_path / f"backup-{number}"
        assert wrong_with_backup(backup) == []
        restore(backup, tmp_path / f"restored-{number}")
        restored = world_of(tmp_path, f"restored-{number}", wall=BASE + 10_000 * SECOND)
        assert wrong(restored.root) == []
        restored.step()
        source = restored.rows("b/source")
        fresh = world_of(tmp_path, f"fresh-{number}", wall=BASE + 10_000 * SECOND)
        fresh.ingest("b/source", [orjson.loads(row[3]) for row in source])
        fresh.step()
        assert [row[3] for row in restored.rows("b/counts")] == [row[3] for row in fresh.rows("b/counts")]


async def define_and_pay(data: Path, begun: threading.Event, done: threading.Event) -> None:
    """Make, rename and drop tables, and move money from one table to another, until it is enough."""
    coordinator = Coordinator(data, None)
    try:
        coordinator.own()
        client = Client(coordinator)
        for text in ("CREATE TABLE a (n int)", "CREATE TABLE b (n int)", "INSERT INTO a VALUES (100)"):
            await client(text)
        number = 0
        while not done.is_set():
            begun.set()
            number += 1
            await client("BEGIN")
            await client("UPDATE a SET n = n - 1")
            await client("INSERT INTO b VALUES (1)")
            await client(f"CREATE TABLE t{number} AS SELECT {number} AS v")
            await client("COMMIT")
            await client(f"ALTER TABLE t{number} RENAME TO u{number}")
            if number % 3 == 0:
                await client(f"DROP TABLE u{number - 1}")
    finally:
        await coordinator.close()


async def check_names(root: Path) -> None:
    """Each name is that of a table with what was put there with it, no money is lost, and more can be defined."""
    coordinator = Coordinator(root, None)
    try:
        coordinator.own()
        client = Client(coordinator)
        assert await client("SELECT (SELECT sum(n) FROM a) + coalesce((SELECT sum(n) FROM b), 0)") == [("100",)]
        names = [item.name for item in coordinator.objects.items.values() if item.name[0] in "tu"]
        for name in names:
            assert await client(f"SELECT * FROM {name}") == [(name[1:],)]
        await client("CREATE TABLE more AS SELECT 1 AS v")
        assert await client("SELECT v FROM more") == [("1",)]
    finally:
        await coordinator.close()


def test_backup_has_consistent_names_and_tables_of_sql(tmp_path: Path) -> None:
    data, begun, done = tmp_path / "data", threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(define_and_pay(data, begun, done))
        except BaseException as error:
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(PATIENCE_SECONDS)
    store = Store(data)
    try:
        for number in range(4):
            back_up(store, tmp_path / f"backup-{number}")
            time.sleep(0.1)
    finally:
        done.set()
        thread.join()
        store.close()
    assert failures == []

    for number in range(4):
        restore(tmp_path / f"backup-{number}", tmp_path / f"restored-{number}")
        asyncio.run(check_names(tmp_path / f"restored-{number}"))
        assert wrong(tmp_path / f"restored-{number}") == []


def test_backup_is_not_killed_for_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    folder = shard_folder(world.root, "b/counts", 0, 2)
    (begun, begins), (released, release) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with still(folder):
            os.write(begins, b".")
            os.read(released, 1)
        os._exit(0)
    os.read(begun, 1)
    looks = []

    def look(*arguments: Any) -> int | None:
        looks.append(arguments)
        if len(looks) == 6:  # the holder was found three times, and not killed
            os.write(release, b".")
        return lock_holder(*arguments)

    monkeypatch.setattr(state, "_EVICTION_SECONDS", 0.0)
    monkeypatch.setattr(state, "lock_holder", look)
    with locked(folder / "lock", lambda _: True):  # another holder would be killed
        assert len(looks) >= 6

    assert os.waitpid(child, 0)[1] == 0
    assert not (folder / "backup.lock").exists()


def test_stopped_backup_is_killed_for_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (begun, begins), folder = os.pipe(), tmp_path / "shard"
    folder.mkdir()
    child = os.fork()
    if child == 0:
        with still(folder):
            os.write(begins, b".")
            signal.pause()
        os._exit(0)
    os.read(begun, 1)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)

    monkeypatch.setattr(state, "_EVICTION_SECONDS", 0.0)
    with locked(folder / "lock", lambda _: True):
        assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_backup_beside_a_first_run_and_its_reset_has_all_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins after the backup has locked all shards; the reset removes the state, and stops."""
    world = world_of(tmp_path)
    copy = world.store.metadata.copy
    monkeypatch.setattr(world.store.garbage, "collect_uncommitted", lambda *_: 0)

    def run_copy_and_reset(place: Path) -> None:
        monkeypatch.setattr(world.store.metadata, "copy", copy)
        go_on(world, range(1))
        copy(place)
        reset(world.catalog, world.store, ["b/counts"], cascade=True)

    monkeypatch.setattr(world.store.metadata, "copy", run_copy_and_reset)
    take(world, tmp_path / "backup")
    monkeypatch.undo()
    assert wrong_with_backup(tmp_path / "backup") == []

    restore(tmp_path / "backup", tmp_path / "other")
    other = world_of(tmp_path, "other")
    for each in (world, other):
        go_on(each, range(1, 2))
    assert (other.digest(), len(other.rows("b/large"))) == (world.digest(), 8)


def test_failed_backup_releases_its_locks(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    go_on(world, range(1))
    next(world.root.rglob("*.parquet")).unlink()
    with pytest.raises(StorageError):
        take(world, tmp_path / "backup")

    for folder in (world.root / "state").rglob("lock"):
        with locked(folder, lambda _: pytest.fail("the backup still has the lock of a shard")):
            pass
    with closing(apsw.Connection(str(world.root / "metadata.db"))) as db:
        assert db.execute("SELECT count(*) FROM capability WHERE expires IS NOT NULL AND kind = 'read'").get == 0


# Whose it is


def test_restored_folder_has_no_capabilities_of_processes(tmp_path: Path) -> None:
    original = world_of(tmp_path)
    go_on(original, range(2))
    source = original.store.tables.id_of("b/source")
    assert source is not None
    original.store.capabilities.acquire_read(source, lasts=True)
    original.store.task_capabilities.acquire_dataflow_inputs({}, {7: (["b/source"], original.wall)})
    take(original, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")

    with closing(apsw.Connection(str(tmp_path / "restored" / "metadata.db"))) as db:
        query = "SELECT task, at FROM capability WHERE task IS NULL OR task NOT LIKE 'b/%'"
        assert db.execute(query).fetchall() == [("index:7", None)]


def test_l5_run_of_the_original_commits_nothing_to_the_restored_folder(tmp_path: Path) -> None:
    original = world_of(tmp_path)
    go_on(original, range(2))
    take(original, tmp_path / "backup")
    stale = original.run()
    original.wall = BASE + 300 * SECOND
    original.ingest("b/source", [{"id": 99, "k": 1, "at": "2023-11-14T22:16:00Z"}])
    shutil.rmtree(original.root)
    restore(tmp_path / "backup", original.root)
    restored = world_of(tmp_path, wall=BASE + 121 * SECOND)
    go_on(restored, range(2, 3))
    before = restored.digest()

    with pytest.raises(StorageError, match="was replaced while this process used it"):
        stale.step()

    assert restored.digest() == before
    assert {finding.kind for finding in wrong(restored.root)} <= {"unknown"}
    go_on(restored, range(3, 4))
    undisturbed = world_of(tmp_path, "undisturbed")
    go_on(undisturbed, range(4))
    assert restored.digest() == undisturbed.digest()
    assert (restored.root / "folder-id").read_text() != read_manifest(tmp_path / "backup").folder
    with closing(apsw.Connection(str(restored.root / "metadata.db"))) as db:
        least: int = db.execute("SELECT min(epoch) FROM task").get
    assert least > 1 << 20


def test_run_over_a_folder_restored_in_place_ends_with_an_error(tmp_path: Path) -> None:
    """Its commits would reach a deleted file, in silence; the restored folder stays as it was restored."""
    world = world_of(tmp_path)
    go_on(world, range(2))
    take(world, tmp_path / "backup")
    run = world.run(shards=2)
    world.root.rename(tmp_path / "removed")

    with pytest.raises(StorageError, match=r"metadata\.db was removed while this process used it"):
        run.step()
    restore(tmp_path / "backup", world.root)
    with pytest.raises(StorageError, match=r"metadata\.db was replaced while this process used it") as raised:
        run.step()

    assert raised.value.hint == "if the folder was restored, run the command again"
    assert not raised.value.heals
    assert wrong(world.root) == []
