"""Late attempts: a worker that was given up and wakes up afterwards destroys nothing of what others have committed.

Real processes are stopped (SIGSTOP) wherever they are, a retry wins, later transactions are committed, and then the
stopped ones go on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import World, write_catalog
from typing_extensions import override

from derive import failpoint
from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.errors import OutdatedError
from derive.materialize.stages import AnyPlan
from derive.shard import state
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.shard.worker import run_alone

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
  l/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: l/source, shuffle: any, lambda: SELECT $id}]}
"""
BASE = 1_700_000_000_000_000
BATCHES = 4


def world_of(folder: Path, name: str) -> World:
    return World(folder / name, load(write_catalog(folder, CATALOG)), wall=BASE)


def add(world: World, batch: int) -> None:
    """Twenty more documents, and time enough for them to be processed."""
    numbers = range(20 * batch, 20 * batch + 20)
    world.ingest("l/source", [{"id": n, "k": "abc"[n % 3], "at": format_rfc3339(BASE + n * 100_000)} for n in numbers])
    world.wall = BASE + (batch + 1) * 2_000_000


class Late(InProcessExecutor):
    """Lets a process of its own make the first attempt at a part of a transaction, and takes what a second one says."""

    def __init__(self, fork: Callable[[Plan, int, int], int]) -> None:
        self._fork = fork
        self.late: list[int] = []
        self._numbers = iter(range(0, 1_000_000, 2))

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        assert isinstance(plan, Plan)
        messages = []
        for number in range(plan.tasks):
            attempt = next(self._numbers)
            self.late.append(self._fork(plan, number, attempt))
            messages += run_alone(plan, number, attempt + 1)
        return messages


def paused_at(name: str, times: int) -> Callable[[Plan, int, int], int]:
    """Make an attempt in a child that pauses at a failpoint, or comes to its end; returns its process id."""

    def fork(plan: Plan, number: int, attempt: int) -> int:
        pid = os.fork()
        if pid == 0:
            failpoint.arm(f"{name}:{times}:pause")
            try:
                run_alone(plan, number, attempt)
            except OutdatedError:
                pass
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(pid, os.WUNTRACED)
        return pid

    return fork


@pytest.fixture
def digest(tmp_path: Path) -> dict[str, str]:
    world = world_of(tmp_path, "undisturbed")
    for batch in range(BATCHES):
        add(world, batch)
        world.step(shards=1)
    return world.digest()


def wake(pids: list[int]) -> Iterator[int]:
    """Let stopped children go on to their end; yields the signal that ended each."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
            _, status = os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue  # it had come to its end
        yield os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


UNLOCKED = ["segment.closing", "segment.closed", "segment.synced", "state.committing", "state.committed"]
LOCKED = ["state.folding", "state.folded", "state.linked", "state.discarding", "state.forgotten"]
"""While they hold the lock of their shard, which the retry takes from them by killing them."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill holders of locks at once, and not after five seconds."""
    monkeypatch.setattr(state, "_EVICTION_SECONDS", 0.0)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", UNLOCKED + LOCKED)
@pytest.mark.parametrize("wakes", ["at once", "at the end"])
def test_l2_late_worker_does_not_change_results(name: str, wakes: str, tmp_path: Path, digest: dict[str, str]) -> None:
    world = world_of(tmp_path, "disturbed")
    executor = Late(paused_at(name, 1))
    ends: list[int] = []
    for batch in range(BATCHES):
        add(world, batch)
        world.step(executor, shards=1)
        if wakes == "at once":
            ends += wake(executor.late)
            executor.late.clear()
    ends += wake(executor.late)

    assert world.digest() == digest
    assert ends, name
    # Another run finds everything where the metadata says it is.
    world.store.close()
    again = World(world.root, world.catalog, wall=world.wall + 10_000_000)
    again.ingest("l/source", [{"id": 1000, "k": "a", "at": format_rfc3339(again.wall - 5_000_000)}])
    again.step()
    assert again.rows("l/counts")[-1][3] == '{"k":"a","n":28}'
    stored = {str(path.relative_to(world.root)) for path in world.root.glob("collections/l/c*/**/*.parquet")}
    assert stored == again.store.garbage.known("l/counts") | again.store.garbage.known("l/copies")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["l/counts", "l/copies"])
def test_a_late_attempt_that_fails_removes_only_its_own_files(
    task: str, tmp_path: Path, digest: dict[str, str]
) -> None:
    plans: list[Plan] = []

    class Noted(InProcessExecutor):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            assert isinstance(plan, Plan)
            if plan.spec.name == task:
                plans.append(plan)
            return super().execute(plan, progress)

    world = world_of(tmp_path, "disturbed")
    for batch in range(BATCHES):
        add(world, batch)
        world.step(Noted(), shards=1)
    refused = []
    for plan in plans:
        for number in range(plan.tasks):
            try:
                refused += [message.error["kind"] for message in run_alone(plan, number, -1) if message.error]
            except OutdatedError as error:
                refused.append(type(error).__name__)

    assert world.digest() == digest
    # Each batch was the work of another run; without state there is nothing that a late attempt could spoil.
    assert refused == (["FencedError"] * (BATCHES - 1) + ["OutdatedError"] if task == "l/counts" else [])
