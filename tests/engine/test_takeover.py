"""A process that was stopped keeps no other from its work, and changes nothing when it continues late.

Real processes are stopped (SIGSTOP) at a failpoint, another process does its work, and then they continue.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import World, write_catalog

from derive import failpoint
from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.reset import reset
from derive.errors import FencedError, StorageError
from derive.shard import state
from derive.shard.state import task_folder
from derive.storage.compaction import compact
from derive.storage.location import blobs_of
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

CATALOG = """
collections:
  l/source:
    schema:
      type: object
      required: [id, k, at]
      properties: {id: {type: integer}, k: {type: string}, at: {type: string}}
    key: [/id]
  l/counts:
    schema: {type: object, required: [k, n], properties: {k: {type: string}, n: {type: integer}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: l/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING k, n;
"""
BASE = 1_700_000_000_000_000
FENCED, FAILED = 3, 4
Act = Callable[[World], object]


def world_of(folder: Path) -> World:
    return World(folder / "data", load(write_catalog(folder, CATALOG)), wall=BASE)


def add(world: World, batch: int) -> None:
    """Add twenty documents, and let enough time pass that they are processed."""
    numbers = range(20 * batch, 20 * batch + 20)
    world.ingest("l/source", [{"id": n, "k": "abc"[n % 3], "at": format_rfc3339(BASE + n * 100_000)} for n in numbers])
    world.wall = BASE + (batch + 1) * 2_000_000


def again(world: World) -> World:
    return World(world.root, world.catalog, wall=world.wall, cache=world.cache)


_CHILDREN: list[int] = []
"""Children that a test has stopped."""


@pytest.fixture(autouse=True)
def ended_children() -> Iterator[None]:
    """End the children of a test that has failed, which would be stopped for ever."""
    yield
    for child in list(_CHILDREN):
        os.kill(child, signal.SIGKILL)
        ended(child)


def stopped(world: World, act: Act, name: str) -> int:
    """Act in a child that stops at a failpoint; return its process id."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            failpoint.arm(f"{name}{'' if ':' in name else ':1'}:pause")
            act(again(world))
            status = 0
        except FencedError:
            status = FENCED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, os.WUNTRACED)
    _CHILDREN.append(child)
    assert os.WIFSTOPPED(status), f"it ended with status {status} before {name}"
    return child


def woken(child: int) -> int:
    """Let a stopped child continue; return its exit status."""
    os.kill(child, signal.SIGCONT)
    return ended(child)


def ended(child: int) -> int:
    """Wait for the end of a child; return its exit status."""
    _CHILDREN.remove(child)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def age(world: World) -> None:
    """Let an hour pass for all capabilities."""
    with world.store._metadata.transaction() as db:
        db.execute("UPDATE capability SET expires = expires - 3600000000 WHERE expires IS NOT NULL")


def files(world: World) -> dict[str, list[str]]:
    """Return what is stored: the files of collections, and those of tasks."""
    blobs, state = blobs_of(world.root), task_folder(world.root, "l/counts")
    stored = blobs.list("collections", "**/*"), [str(file.relative_to(state)) for file in state.rglob("*")]
    return dict(zip(("collections", "state"), map(sorted, stored), strict=True))


def run(world: World) -> None:
    running = world.run(shards=2)
    try:
        running.step()
    finally:
        running.close()


def reset_counts(world: World) -> None:
    reset(world.catalog, world.store, ["l/counts"])


def counted(world: World) -> int:
    """Return the number of documents that the lambda has counted."""
    last = {document["k"]: document["n"] for document in (orjson.loads(row[3]) for row in world.rows("l/counts"))}
    return int(sum(last.values()))


RUNS = ["epoch.written", "epoch.published", "segment.closed", "state.committed"]


@pytest.mark.both_databases
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RUNS)
def test_run_takes_over_from_a_stopped_run(tmp_path: Path, database: str, name: str) -> None:
    world = world_of(tmp_path)
    add(world, 0)
    run(world)
    add(world, 1)
    child = stopped(world, run, name)
    age(world)
    newer = again(world)
    run(newer)
    assert counted(newer) == 40
    before = newer.digest()

    assert woken(child) == FENCED
    assert (newer.digest(), newer.store.garbage.unknown()) == (before, [])
    add(newer, 2)
    run(newer)
    assert counted(newer) == 60
    assert files(newer)["collections"] == sorted(
        newer.store.garbage.known("l/counts") | newer.store.garbage.known("l/source")
    )


OTHER = "CREATE TABLE later (k TEXT);"
MIGRATION = "CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"


@pytest.mark.parametrize("travels", [False, True])
def test_run_with_an_edited_catalog_takes_over(tmp_path: Path, *, travels: bool) -> None:
    world = world_of(tmp_path)
    world.cache = tmp_path / "north" if travels else None
    add(world, 0)
    run(again(world))
    add(world, 1)
    child = stopped(world, run, "segment.closed")
    newer = again(world)
    newer.cache = tmp_path / "south" if travels else None

    for text, error in [
        (f"CREATE TABLE other (k TEXT); {MIGRATION}", "migration 0 of"),
        (f'{MIGRATION}", "{OTHER}', ""),
    ]:
        newer.catalog = load(write_catalog(tmp_path, CATALOG.replace(MIGRATION, text)))
        running = again(newer).run(shards=2)
        running.step()
        assert error in str(running.tasks["l/counts"].error or "")
        running.close()
        assert counted(newer) == (20 if error else 40)
    before = newer.digest()

    assert woken(child) == FENCED
    assert newer.digest() == before
    newer.catalog = world.catalog
    running = again(newer).run(shards=2)
    running.step()
    assert "migration 1 of" in str(running.tasks["l/counts"].error)
    running.close()


@pytest.mark.both_databases
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["reset.committed", "epoch.written", "reset.removed"])
def test_run_does_not_wait_for_a_stopped_reset(tmp_path: Path, database: str, name: str) -> None:
    world = world_of(tmp_path)
    add(world, 0)
    run(world)
    child = stopped(world, reset_counts, name)
    newer = again(world)
    run(newer)
    before = newer.digest(), files(newer)

    assert woken(child) == 0
    assert (newer.digest(), files(newer)) == before
    add(newer, 1)
    run(newer)
    assert counted(newer) == 40


@pytest.mark.both_databases
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "status"), [("compaction.written", FENCED), ("compaction.folded", FENCED), ("compaction.advanced", 0)]
)
def test_compaction_of_a_stopped_process_is_refused(tmp_path: Path, database: str, name: str, status: int) -> None:
    world = world_of(tmp_path)
    for batch in range(4):
        add(world, batch)
    spec = world.catalog.collections["l/source"]
    rows = world.rows("l/source")

    def compact_all(other: World) -> None:
        compact(other.store, spec, since=BASE + 1_000_000)

    child = stopped(world, compact_all, name)
    assert compact(world.store, spec, wait=False) is None
    age(world)
    compacted = compact(world.store, spec, since=BASE + 1_000_000, wait=False)
    assert compacted is not None
    assert compacted.after == 1
    before = world.rows("l/source"), files(world)["collections"]

    assert woken(child) == status
    assert (world.rows("l/source"), files(world)["collections"]) == before
    assert len(rows) == 80
    assert world.store.garbage.unknown() == []
    assert compact(world.store, spec, wait=False) is not None


def test_compaction_without_the_outcome_of_its_commit_keeps_committed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(tmp_path)
    for batch in range(4):
        add(world, batch)
    spec, rows = world.catalog.collections["l/source"], world.rows("l/source")
    advance = world.store.history.advance_since

    def advance_and_fail(*arguments: Any) -> bool:
        assert advance(*arguments)
        age(world)
        with world.store.task_capabilities.compacting() as right:
            assert right is not None
        raise StorageError("the outcome is unknown")

    monkeypatch.setattr(world.store.history, "advance_since", advance_and_fail)
    with pytest.raises(FencedError):
        compact(world.store, spec, since=BASE + 1_000_000)
    assert [row[3] for row in world.rows("l/source")] == [row[3] for row in rows]


@pytest.mark.parametrize(("cache", "name"), [(None, "state.discarding"), ("north", "state.linked")])
def test_run_ends_a_stopped_process_with_the_lock_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str | None, name: str
) -> None:
    world = world_of(tmp_path)
    world.cache = tmp_path / cache if cache else None
    world = again(world)
    add(world, 0)
    run(world)
    add(world, 1)
    child = stopped(world, run, name)
    monkeypatch.setattr(state, "_EVICTION_SECONDS", 0.0)
    newer = again(world)
    run(newer)

    assert ended(child) == -signal.SIGKILL
    assert counted(newer) == 40


def test_run_ends_a_process_that_was_stopped_in_its_commit(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    add(world, 0)
    run(world)
    add(world, 1)

    def release(other: World) -> None:
        capability, _ = other.store.acquire_task("l/counts", 2, ["l/counts"])
        failpoint.arm("metadata.committing:1:pause")
        other.store.release_task(capability)

    child = stopped(world, release, "state.linked")
    with closing(SqliteMetadata(world.root / "metadata.db", patience=1000)) as metadata, metadata.transaction():
        pass

    assert ended(child) == -signal.SIGKILL
    newer = again(world)
    run(newer)
    assert counted(newer) == 40


@pytest.mark.both_databases
def test_late_collection_of_garbage_removes_no_file_of_a_later_run(tmp_path: Path, database: str) -> None:
    world = world_of(tmp_path)
    add(world, 0)
    run(world)
    capability, _ = world.store.acquire_task("l/counts", 2, ["l/counts"])
    with closing(Store(world.root, durable=False)) as other:
        other.acquire_task("l/counts", 2, ["l/counts"])
    with pytest.raises(FencedError):
        world.store.garbage.collect_uncommitted("l/counts", ("l/counts", capability.epoch))
