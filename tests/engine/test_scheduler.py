"""Several tasks at once: the same bytes as one after the other, and what goes wrong in a thread is not lost."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from conftest import World, write_catalog
from patience import PATIENCE_SECONDS, wait_until
from typing_extensions import override

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run, SilentObserver
from derive.engine.scheduler import Scheduler
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.errors import FencedError, TaskError
from derive.materialize.stages import AnyPlan
from derive.protocol.collection import retried_name
from derive.shard.progress import Message, Progress
from derive.storage.task_log import recent_entries
from derive.storage.timeline import since_boot

SCHEMA = "{type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}"
CATALOG = f"""
collections:
  s/numbers:
    schema: {SCHEMA}
    key: [/id]
  s/left:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: half, source: s/numbers, shuffle: any, lambda: "SELECT $id, $n / 2 AS n;"}}
  s/right:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY, times INTEGER);"]}}}}
      transforms:
        - name: nth
          source: s/numbers
          shuffle: {{key: [/n]}}
          lambda: |
            INSERT INTO t VALUES ($n, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING $id, times AS n;
  s/both:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{migrations: ["CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER);"]}}}}
      transforms:
        - name: fromLeft
          source: s/left
          shuffle: {{key: [/id]}}
          lambda: INSERT INTO t VALUES ($id, $n) ON CONFLICT DO UPDATE SET n = n + $n RETURNING id, n;
        - name: fromRight
          source: s/right
          shuffle: {{key: [/id]}}
          lambda: INSERT INTO t VALUES ($id, -$n) ON CONFLICT DO UPDATE SET n = n * 3 - $n RETURNING id, n;
"""


def world_of(folder: Path, name: str, text: str = CATALOG) -> World:
    world = World(folder / name, load(write_catalog(folder, text)))
    world.ingest("s/numbers", [{"id": number % 70, "n": number % 7} for number in range(300)], clock=None)
    world.wall += 10_000_000
    return world


@dataclass
class Meets(InProcessExecutor):
    """Holds the first transaction until a second one is at work beside it."""

    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=PATIENCE_SECONDS))
    seen: set[str] = field(default_factory=set)

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        first = plan.spec.name in ("s/left", "s/right") and plan.spec.name not in self.seen
        self.seen.add(plan.spec.name)
        if first:
            self.both.wait()
        return super().execute(plan, progress)


def test_parallel_tasks_publish_the_same_bytes(tmp_path: Path) -> None:
    one = world_of(tmp_path, "one")
    one.step()

    other = world_of(tmp_path, "other")
    executor = Meets()
    run = other.run(executor)
    with Scheduler(run, threads=3) as scheduler:
        assert run.until_idle(scheduler.step) == []
    run.close()

    assert executor.seen == {"s/left", "s/right", "s/both"}
    assert not executor.both.broken
    assert other.digest() == one.digest()
    assert len(one.rows("s/both")) == 70


def test_idle_derivations_move_to_the_present_in_one_commit(tmp_path: Path) -> None:
    """Their uppers are those of moves one after the other; documents that come meanwhile are derived as usual."""
    one, other = world_of(tmp_path, "one"), world_of(tmp_path, "other")
    for world in (one, other):
        world.step()
        world.wall += 10_000_000
    one.step()
    run = other.run(InProcessExecutor())
    with Scheduler(run, threads=3) as scheduler:
        before = other.store.metadata.notifications
        scheduler.look(resting=run.cycles)
        assert other.store.metadata.notifications - before == 2  # the sources, and all derivations
        names = ["s/left", "s/right", "s/both"]
        assert [other.store.upper(name) for name in names] == [one.store.upper(name) for name in names]

        for world in (one, other):
            world.ingest("s/numbers", [{"id": 500, "n": 3}], clock=None)
            world.wall += 10_000_000
        scheduler.look(resting=run.cycles)
        while scheduler.step():
            pass
    run.close()
    one.step()
    assert other.digest() == one.digest()
    assert len(other.rows("s/both")) == 71


def test_idle_derivations_wait_for_documents_that_are_retried_meanwhile(tmp_path: Path) -> None:
    """Otherwise a retried document, whose time is that of the begin of the retry, would be missed."""
    text = CATALOG.replace("lambda: INSERT", "onViolation: quarantine\n          lambda: INSERT", 1)
    world = world_of(tmp_path, "data", text)
    world.step()
    run = world.run(InProcessExecutor())
    spec = world.catalog.derivations["s/both"]
    target = replace(spec.sources["s/left"], name=retried_name("s/both", "fromLeft"))
    world.store.create(target)
    world.wall += 5_000_000
    retrying = world.store.acquire_write(target.name)
    with Scheduler(run, threads=3) as scheduler:
        for _ in range(2):
            world.wall += 5_000_000
            scheduler.look(resting=run.cycles)
            assert world.store.upper("s/both") <= retrying.frontier < world.store.upper("s/left")
        world.store.capabilities.release(retrying)
        scheduler.look(resting=run.cycles)
        # A thread may still be in the middle of the look before, and then looks again.
        wait_until(lambda: world.store.upper("s/both") == world.store.upper("s/left"))
    run.close()


def test_long_transaction_delays_no_other_task(tmp_path: Path) -> None:
    """A run until idle processes what becomes due for other tasks while one transaction is at work."""
    text = f"""
collections:
  s/slow: {{schema: {SCHEMA}, key: [/id]}}
  s/fast: {{schema: {SCHEMA}, key: [/id]}}
  s/ofSlow:
    schema: {SCHEMA}
    key: [/id]
    derive: {{using: {{sqlite: {{}}}}, transforms: [{{name: t, source: s/slow, shuffle: any, lambda: "SELECT $id, $n;"}}]}}
  s/ofFast:
    schema: {SCHEMA}
    key: [/id]
    derive: {{using: {{sqlite: {{}}}}, transforms: [{{name: t, source: s/fast, shuffle: any, lambda: "SELECT $id, $n;"}}]}}
"""
    is_begun, may_end, is_fast_done = threading.Event(), threading.Event(), threading.Event()

    class Slow(InProcessExecutor):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            if plan.spec.name == "s/ofSlow":
                is_begun.set()
                assert may_end.wait(PATIENCE_SECONDS)
            return super().execute(plan, progress)

    class Told(SilentObserver):
        @override
        def committed(self, task: str, done: Committed) -> None:
            if task == "s/ofFast" and done.documents_in:
                is_fast_done.set()

    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
    world.store.timeline.elapsed = since_boot  # the clock of looks, which stands still beside a wall clock of a test
    world.ingest("s/slow", [{"id": 1, "n": 1}], clock=None)
    world.wall += 10_000_000
    run = open_run(world.catalog, world.store, Slow(), shards=1, observer=Told())
    with Scheduler(run, threads=2) as scheduler:
        runner = threading.Thread(target=run.until_idle, args=(scheduler.step,))
        runner.start()
        try:
            assert is_begun.wait(PATIENCE_SECONDS)
            other = World(world.root, world.catalog, wall=world.wall)
            other.ingest("s/fast", [{"id": 2, "n": 2}], clock=None)
            world.wall += 10_000_000
            assert is_fast_done.wait(PATIENCE_SECONDS)
        finally:
            may_end.set()
            runner.join(PATIENCE_SECONDS)
    run.close()
    assert len(world.rows("s/ofFast")) == len(world.rows("s/ofSlow")) == 1


def test_tasks_take_turns_with_one_thread(tmp_path: Path) -> None:
    @dataclass
    class Alone(InProcessExecutor):
        at_work: int = 0

        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            self.at_work += 1
            time.sleep(0.02)
            assert self.at_work == 1
            self.at_work -= 1
            return super().execute(plan, progress)

    one = world_of(tmp_path, "one")
    one.step()
    other = world_of(tmp_path, "other")
    run = other.run(Alone())
    with Scheduler(run, threads=1) as scheduler:
        run.until_idle(scheduler.step)
    assert other.digest() == one.digest()


def test_a_task_that_fails_stops_alone_and_the_run_ends(tmp_path: Path) -> None:
    world = world_of(tmp_path, "data", CATALOG.replace("times AS n", "'x' AS n"))
    run = world.run()
    with Scheduler(run, threads=4) as scheduler:
        waiting = run.until_idle(scheduler.step)

    assert [name for name, task in run.tasks.items() if task.error] == ["s/right"]
    assert len(world.rows("s/left")) == 70
    assert [(each.task, each.transform, each.documents) for each in waiting] == [("s/both", "fromLeft", 70)]
    assert [each["level"] for each in recent_entries(world.root, "s/right")] == ["error"]
    assert recent_entries(world.root, "s/right")[0]["message"].startswith(str(run.tasks["s/right"].error))


def test_fenced_run_stops_all_tasks(tmp_path: Path) -> None:
    world = world_of(tmp_path, "data")
    run = world.run()
    world.store.acquire_task("s/left", 1)
    fenced = pytest.raises(FencedError, match="another flowctl runs 's/left'")
    with fenced, Scheduler(run, threads=4) as scheduler:
        run.until_idle(scheduler.step)


def test_stopping_fails_transactions_without_recording_errors(tmp_path: Path) -> None:
    @dataclass
    class Hangs(InProcessExecutor):
        at_work: threading.Event = field(default_factory=threading.Event)
        cancelled: threading.Event = field(default_factory=threading.Event)

        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            self.at_work.set()
            assert self.cancelled.wait(PATIENCE_SECONDS)
            raise TaskError("cancelled")

        @override
        def cancel(self) -> None:
            self.cancelled.set()

    world = world_of(tmp_path, "data")
    executor = Hangs()
    run = world.run(executor)
    with pytest.raises(KeyboardInterrupt), Scheduler(run, threads=4) as scheduler:
        scheduler.look()
        assert executor.at_work.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    assert executor.cancelled.is_set()
    states = [world.store.task(name) for name in world.catalog.derivations]
    assert [state.error for state in states if state] == [None, None, None]
    world.step()  # nothing was lost
    assert len(world.rows("s/left")) == 70


CYCLE = f"""
collections:
  s/numbers:
    schema: {SCHEMA}
    key: [/id]
  s/upstream:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: pass, source: s/numbers, shuffle: any, lambda: "SELECT $id, $n;"}}
  s/ping:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: begin, source: s/upstream, shuffle: any, lambda: "SELECT $id, $n;"}}
        - {{name: again, source: s/pong, shuffle: any, lambda: "SELECT $id, $n - 1 AS n WHERE $n > 0;"}}
  s/pong:
    schema: {SCHEMA}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: back, source: s/ping, shuffle: any, lambda: "SELECT $id, $n;"}}
"""


def test_cycle_waits_for_documents_from_outside(tmp_path: Path) -> None:
    def rest(world: World, run: Run) -> None:
        for _ in range(40):
            world.wall += 1_000_000
            run.step()
        run.close()

    undisturbed = world_of(tmp_path, "one", CYCLE)
    rest(undisturbed, undisturbed.run())

    world = world_of(tmp_path, "other", CYCLE)
    rest(world, open_run(world.catalog, world.store, InProcessExecutor(), tasks=["s/ping", "s/pong"]))
    assert world.rows("s/ping") == []
    rest(world, world.run())

    assert world.digest() == undisturbed.digest()
    assert len(world.rows("s/pong")) > 70
