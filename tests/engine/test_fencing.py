"""Runs that overlap: whatever the moment at which one takes over, the older commits nothing from then on (law L5)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as SomeOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive import failpoint
from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, split
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.errors import FencedError, StorageError, UsageError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress
from derive.shard.state import task_folder
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.descriptions import ResetTask, TaskState
from derive.storage.store import Store

CATALOG = """
collections:
  f/numbers:
    schema: {type: object, required: [id, n, at], properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}}
    key: [/id]
  f/counts:
    schema: {type: object, required: [n, times], properties: {n: {type: integer}, times: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}
      transforms:
        - name: count
          source: f/numbers
          shuffle: {key: [/n]}
          lambda: INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING n, times;
"""
BASE = 1_700_000_000_000_000
SECOND = 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)), wall=BASE)
    add(found, 0)
    return found


def add(world: World, batch: int) -> None:
    """Ten more documents, and time enough for them to be processed."""
    numbers = range(10 * batch, 10 * batch + 10)
    world.ingest("f/numbers", [{"id": n, "n": n % 3, "at": format_rfc3339(BASE + n * SECOND // 10)} for n in numbers])
    world.wall = BASE + (batch + 1) * SECOND


def same_folder(world: World) -> World:
    """What another process sees of the same data folder."""
    return World(world.root, world.catalog, wall=world.wall)


def counts(world: World) -> list[str]:
    return [row[3] for row in world.rows("f/counts")]


TWO_BATCHES = [f'{{"n":{n},"times":{times}}}' for n, times in [(1, 3), (2, 3), (0, 4), (2, 6), (0, 7), (1, 7)]]
"""Ten documents a tick; the last of each number says how many there were so far."""


class Interrupted(Store):
    """A store in which something happens just before a capability is acquired."""

    def __init__(self, world: World, before: Callable[[], object]) -> None:
        super().__init__(world.root, wall=lambda: world.wall, durable=False)
        self._before = before

    @override
    def acquire_task(
        self, name: str, shards: int, outputs: Sequence[str] = (), **options: Any
    ) -> tuple[TaskCapability, TaskState]:
        self._before()
        return super().acquire_task(name, shards, outputs, **options)


@pytest.mark.parametrize("shards", [1, 3])
def test_newer_run_sees_commits_before_the_older_run_was_fenced(world: World, shards: int) -> None:
    older = world.run(shards=shards)
    store = Interrupted(world, older.step)

    newer = open_run(world.catalog, store, InProcessExecutor())
    newer.step()
    assert sorted(counts(world)) == sorted(TWO_BATCHES[:3])
    add(world, 1)
    newer.step()

    assert [task.error for task in newer.tasks.values()] == [None]
    assert sorted(counts(world)) == sorted(TWO_BATCHES)
    with pytest.raises(FencedError, match="another flowctl runs"):
        older.step()


def test_split_copies_commits_of_the_fenced_run(world: World) -> None:
    world.step(shards=2)
    add(world, 1)
    older = world.run()

    assert split(Interrupted(world, older.step), "f/counts") == 4
    add(world, 2)
    world.step()

    assert sorted(counts(world)[6:]) == ['{"n":0,"times":10}', '{"n":1,"times":10}', '{"n":2,"times":10}']


@dataclass
class FailsOnceTakenOver(InProcessExecutor):
    """Lets another run take over in the middle of a transaction, whose files then are not there any more."""

    take_over: Callable[[], Run]

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        super().execute(plan, progress)
        self.take_over().step()
        raise StorageError("cannot write a file that was removed as garbage")


def test_fenced_run_does_not_record_a_failure(world: World) -> None:
    older = world.run(FailsOnceTakenOver(same_folder(world).run))

    with pytest.raises(FencedError, match="another flowctl runs 'f/counts'"):
        older.step()
    state = world.task("f/counts")
    assert (state.error, state.documents_in) == (None, 10)


def test_run_of_a_reset_task_reports_the_reset(world: World) -> None:
    run = world.run()
    run.step()
    reset(world.catalog, world.store, ["f/counts"])
    world.wall += 5_000_000  # time moves on, without documents

    with pytest.raises(FencedError, match="'f/counts' was reset, so this process commits nothing more"):
        run.step()

    newer = world.run()
    newer.step()
    with pytest.raises(FencedError, match="another flowctl runs 'f/counts' now, so this process"):
        run.step()
    newer.close()
    with pytest.raises(FencedError, match="another flowctl runs 'f/counts' now, or has reset it, so this process"):
        run.step()


def test_transaction_of_a_fenced_run_does_not_block_the_newer_run(world: World) -> None:
    """The older has prepared state and written segments when it is superseded; none of it stays."""
    newer = None

    class TakenOver(Store):
        @override
        def commit_task(self, *arguments: object, **named: object) -> TaskCapability:
            nonlocal newer
            if newer is None:
                newer = same_folder(world).run()
            return super().commit_task(*arguments, **named)  # type: ignore[arg-type]

    store = TakenOver(world.root, wall=lambda: world.wall, durable=False)
    older = open_run(world.catalog, store, InProcessExecutor(), shards=2)
    with pytest.raises(FencedError):
        older.step()
    assert newer is not None
    newer.step()

    assert sorted(counts(world)) == sorted(TWO_BATCHES[:3])
    newer.close()
    same_folder(world).step()
    stored = {str(path.relative_to(world.root)) for path in world.root.rglob("collections/f/counts@/*.parquet")}
    assert stored == world.store.garbage.known("f/counts")


class SlowlyReset(Store):
    """A store that takes its time between the commit of a reset and what comes after it."""

    def __init__(self, world: World, meanwhile: threading.Thread) -> None:
        super().__init__(world.root, wall=lambda: world.wall, durable=False)
        self._meanwhile = meanwhile

    @override
    def reset(
        self,
        names: Sequence[str],
        parts: Mapping[str, SomeOf[str]] | None = None,
        undone: tuple[str, str] | None = None,
        epochs: Mapping[str, int] | None = None,
        restarts: Mapping[str, str] | None = None,
    ) -> dict[str, ResetTask]:
        done = super().reset(names, parts, undone, epochs, restarts)
        self._meanwhile.start()
        self._meanwhile.join(0.5)
        return done


def test_run_started_during_a_reset_loses_nothing(world: World) -> None:
    world.step(shards=2)
    before = world.digest()
    runs: list[Run] = []

    def begin() -> None:
        runs.append(same_folder(world).run(shards=2))
        runs[0].step()

    meanwhile = threading.Thread(target=begin)
    reset(world.catalog, SlowlyReset(world, meanwhile), ["f/counts"])
    meanwhile.join()

    assert [task.error for task in runs[0].tasks.values()] == [None]
    assert world.digest() == before
    add(world, 1)
    runs[0]._store.timeline.wall = lambda: world.wall
    runs[0].step()
    assert sorted(counts(world)) == sorted(TWO_BATCHES)
    assert task_folder(world.root, "f/counts").exists()


class ReadBeforeReset(Store):
    """A store in which something happens, once, just before the commit of a reset."""

    def __init__(self, world: World, before: Callable[[], object]) -> None:
        super().__init__(world.root, wall=lambda: world.wall, durable=False)
        self._before = [before]

    @override
    def reset(self, *arguments: Any) -> dict[str, ResetTask]:
        while self._before:
            self._before.pop()()
        return super().reset(*arguments)


READER = """
  f/copies:
    schema: {type: object, required: [n], properties: {n: {type: integer}, times: {type: integer}}}
    key: [/n]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: f/counts, shuffle: any, lambda: "SELECT $n, $times;"}]}
"""


@pytest.mark.both_databases
@pytest.mark.parametrize("cascade", [True, False])
def test_reset_finds_a_reader_that_begins_before_its_commit(world: World, tmp_path: Path, *, cascade: bool) -> None:
    """A reader that has read the old documents starts over, too, or the reset is refused."""
    world.step()
    world.catalog = load(write_catalog(tmp_path, CATALOG + READER))
    store = ReadBeforeReset(
        world, lambda: open_run(world.catalog, same_folder(world).store, InProcessExecutor()).step()
    )

    if cascade:
        assert reset(world.catalog, store, ["f/counts"], cascade=True) == ["f/counts", "f/copies"]
        assert world.store.task("f/copies") is None
    else:
        before = counts(world)
        with pytest.raises(UsageError, match="f/copies reads f/counts"):
            reset(world.catalog, store, ["f/counts"])
        assert counts(world) == before
    add(world, 1)
    world.step()
    assert sorted(row[3] for row in world.rows("f/copies")) == sorted(TWO_BATCHES)


@pytest.mark.torture  # test_watching.py fences a run by a second one
def test_fenced_flowctl_run_reports_it_and_fails(tmp_path: Path) -> None:
    """The run needs no Spark without documents; it still commits, as time moves on."""
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    run = ["run", "--source", str(tmp_path / "flow.yaml"), "--data", str(world.root)]
    older = Flowctl(run, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (known := world.store.collection("f/counts")) is None or known.upper == 0:
            assert time.monotonic() < deadline
            assert older.poll() is None
            time.sleep(0.05)
        newer = world.run()
        _, said = older.communicate(timeout=PATIENCE_SECONDS)
    finally:
        older.kill()

    assert older.returncode == 1
    assert "error: another flowctl runs 'f/counts' now, so this process commits nothing more" in said
    assert "Traceback" not in said
    newer.close()


def paused_split(world: World, name: str) -> int:
    """Split in a child that pauses at a failpoint; returns its process id."""
    pid = os.fork()
    if pid == 0:
        failpoint.arm(f"{name}:1:pause")
        try:
            split(same_folder(world).store, "f/counts")
        finally:
            os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_late_split_keeps_shards_of_a_newer_split(world: World) -> None:
    world.step(shards=1)
    late = paused_split(world, "split.copied")
    assert split(world.store, "f/counts") == 2
    add(world, 1)
    world.step()

    wake(late)
    add(world, 2)
    world.step()

    assert sorted(counts(world)[6:]) == ['{"n":0,"times":10}', '{"n":1,"times":10}', '{"n":2,"times":10}']


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_late_split_keeps_shards_of_a_reset_task(world: World) -> None:
    world.step(shards=1)
    late = paused_split(world, "split.committed")
    reset(world.catalog, world.store, ["f/counts"])
    world.step(shards=1)

    wake(late)
    add(world, 1)
    world.step()

    assert sorted(counts(world)) == sorted(TWO_BATCHES)


def test_split_removes_the_former_shards(world: World) -> None:
    world.step(shards=1)

    split(world.store, "f/counts")

    shards = {path.name for path in task_folder(world.root, "f/counts").iterdir()} - {"epochs"}
    assert shards == {"00000000-7fffffff", "80000000-ffffffff"}
