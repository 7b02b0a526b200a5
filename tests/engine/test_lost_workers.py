"""After workers are lost a task takes on less, so that what does not fit into memory ends in progress or in an error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from conftest import World, write_catalog
from typing_extensions import override

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.errors import InternalError, LostError, SegmentMissingError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress
from derive.shard.worker import run_alone
from derive.storage.task_log import recent_entries
from derive.time.extent import size_of

CATALOG = """
collections:
  p/numbers:
    schema: &schema {type: object, required: [n], properties: {n: {type: integer}, at: {type: string}}}
    key: [/n]
  p/copies:
    schema: *schema
    key: [/n]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: p/numbers, shuffle: any, lambda: SELECT $n}]}
"""
BASE = 1_700_000_000_000_000


@dataclass
class LosesWorkers(InProcessExecutor):
    """Loses its workers over every transaction of more than so many documents."""

    most: int
    sizes: list[int] = field(default_factory=list)

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        documents = size_of(plan.reads).documents
        self.sizes.append(documents)
        if documents > self.most:
            raise LostError("the Spark job failed: a worker was killed", hint="see the log")
        return super().execute(plan, progress)


def world_of(folder: Path, apart: int) -> World:
    """A hundred documents, so many microseconds apart."""
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    world.ingest("p/numbers", [{"n": n, "at": format_rfc3339(BASE + n * apart)} for n in range(100)])
    return world


def test_attempt_after_a_loss_has_half_the_size(tmp_path: Path) -> None:
    world = world_of(tmp_path, apart=1_000_000)
    executor = LosesWorkers(most=30)
    run = world.run(executor)
    run.step()

    assert [task.error for task in run.tasks.values()] == [None]
    assert len(world.rows("p/copies")) == 100
    assert executor.sizes[:3] == [100, 49, 25]  # a tick is never cut
    assert max(executor.sizes[3:]) <= 55
    said = [entry["message"] for entry in recent_entries(world.root, "p/copies") if entry["level"] == "warn"]
    assert said[0].endswith("; retrying with half as many documents")


def test_tick_that_exceeds_worker_memory_is_reported(tmp_path: Path) -> None:
    world = world_of(tmp_path, apart=1)
    executor = LosesWorkers(most=30)
    run = world.run(executor)
    run.step()

    (error,) = (task.error for task in run.tasks.values())
    assert isinstance(error, LostError)
    assert error.message.startswith(
        "the Spark job failed: a worker was killed; the transaction had the smallest possible size, about 100 documents of"
    )
    assert error.hint == "give workers more memory, or use a shorter tick; see the log"
    assert executor.sizes == [100]


@dataclass
class MissesFiles(InProcessExecutor):
    """Does not see a file of a source, a number of times."""

    times: int

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        if self.times:
            self.times -= 1
            path = plan.reads[0].segments[0].path
            raise SegmentMissingError(f"a file of collection 'p/numbers' is missing: {path}", path=path)
        return super().execute(plan, progress)


def test_missing_file_is_looked_up_again_once(tmp_path: Path) -> None:
    """The source may have been reset since the task looked at the source."""
    world = world_of(tmp_path, apart=1)
    run = world.run(MissesFiles(1))
    run.step()
    run.step()

    assert [task.error for task in run.tasks.values()] == [None]
    assert len(world.rows("p/copies")) == 100


def test_file_missing_on_workers_stops_the_task_with_a_hint(tmp_path: Path) -> None:
    world = world_of(tmp_path, apart=1)
    executor = MissesFiles(2)
    run = world.run(executor)
    run.step()
    run.step()

    (error,) = (task.error for task in run.tasks.values())
    assert isinstance(error, LostError)
    assert error.message.startswith("a file of collection 'p/numbers' is missing: ")
    assert error.message.endswith("; this machine has the file, but a worker cannot read it")
    assert executor.times == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_internal_error_fails_its_task_and_names_its_traceback(tmp_path: Path, shards: int) -> None:
    class Defective(InProcessExecutor):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            raise KeyError("unforeseen")

    world = world_of(tmp_path, apart=1)
    run = world.run(Defective(), shards=shards)
    run.step()

    (error,) = (task.error for task in run.tasks.values())
    assert str(error) == (
        "a defect of flowctl has stopped 'p/copies': KeyError: 'unforeseen'"
        " (nothing is lost; please report it with what 'flowctl logs --task p/copies' says)"
    )
    assert error is not None
    assert not error.heals
    (entry, reported) = recent_entries(world.root, "p/copies")
    assert "Traceback (most recent call last)" in entry["message"]
    assert reported["message"] == str(error)


class Corrupts(InProcessExecutor):
    """Hands workers plans that no worker can make sense of."""

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        return run_alone(replace(plan, clamp="yesterday"), 0, 0)  # type: ignore[arg-type]


def test_internal_error_of_a_worker_is_not_retried(tmp_path: Path) -> None:
    world = world_of(tmp_path, apart=1)
    run = world.run(Corrupts())
    run.step()

    (error,) = (task.error for task in run.tasks.values())
    assert isinstance(error, InternalError)
    assert error.message.startswith("a defect of flowctl has stopped 'p/copies': ")
    assert "_written" in recent_entries(world.root, "p/copies")[0]["message"]
    assert [path for path in world.root.rglob("*.parquet") if "copies" in str(path)] == []
