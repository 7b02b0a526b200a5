"""A run begins in its own process, and Spark takes over where that is worth it; the bytes are the same (law L1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import World, examples, write_catalog
from elsewhere import Elsewhere
from forked_flowctl import Flowctl, flowctl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from random_catalogs import BASE, SOURCE, catalogs, histories
from test_laws import Documents, one_go, pieces, world_of
from typing_extensions import override

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import CostModel, Executor, HybridExecutor, InProcessExecutor, LocalLimits
from derive.engine.run import SilentObserver
from derive.engine.transactor import Committed
from derive.errors import LostError, TaskError, UnseenFolderError, WorkerError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress
from derive.spark.executor import SparkExecutor
from derive.storage.location import ObjectFolder
from derive.storage.metadata.location import choose_location
from derive.storage.task_log import recent_entries
from derive.time.extent import Limits, Load, Size

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

CATALOG = """
collections:
  o/source:
    schema: {type: object, required: [id, k, at], properties: {id: {type: integer}, k: {type: string}, at: {type: string}}}
    key: [/id]
  o/counts:
    schema:
      type: object
      required: [k, n]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: count
          source: o/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING substr(k, 1, 1) AS k, n;
"""
TASK = "o/counts"


def loaded(folder: Path, name: str, count: int = 100, apart: int = 200_000, text: str = CATALOG) -> World:
    world = World(folder / name, load(write_catalog(folder, text)))
    documents = [{"id": n, "k": f"{'ab'[n % 2]}{n % 9}", "at": format_rfc3339(BASE + n * apart)} for n in range(count)]
    world.ingest("o/source", documents)
    return world


def add(world: World, batch: int) -> None:
    """Twenty more documents, and time enough for them to be processed."""
    numbers = range(20 * batch, 20 * batch + 20)
    documents = [{"id": n, "k": f"{'ab'[n % 2]}{n % 9}", "at": format_rfc3339(BASE + n * 200_000)} for n in numbers]
    world.wall = BASE + 20 * (batch + 1) * 200_000
    world.ingest("o/source", documents)


def expected(folder: Path, apart: int = 200_000) -> dict[str, str]:
    world = loaded(folder, "expected", apart=apart)
    world.step(shards=1)
    return world.digest()


def assert_no_garbage(world: World) -> None:
    stored = {str(path.relative_to(world.root)) for path in world.root.rglob("collections/o/counts@/*.parquet")}
    assert stored == world.store.garbage.known(TASK)


def takeover(spark: Elsewhere, most: int | None, said: list[str] | None = None, **limits: int) -> HybridExecutor:
    telling = (said if said is not None else []).append
    return HybridExecutor(spark, CostModel(2, local_documents=most), telling, limits=replace(LocalLimits(), **limits))


def test_little_work_does_not_start_spark(tmp_path: Path) -> None:
    world, spark, said = loaded(tmp_path, "data"), Elsewhere(), list[str]()
    world.step(takeover(spark, None, said), shards=2)

    assert world.digest() == expected(tmp_path)
    assert (spark.starting.is_set(), spark.done, said) == (False, [], [])


def test_backlog_is_processed_locally_until_spark_is_ready(tmp_path: Path) -> None:
    world, spark, said = loaded(tmp_path, "data"), Elsewhere(), list[str]()
    executor = takeover(spark, 30, said, first=10)
    here: list[int] = []

    class Observed(SilentObserver):
        @override
        def committed(self, task: str, done: Committed) -> None:
            if spark.done:
                return
            here.append(done.documents_in)
            if sum(here) >= 40:
                spark.may_start.set()
                while not executor._is_up:
                    time.sleep(0.001)

    run = world.run(executor, shards=2, limits=Limits(documents=20))
    run._observer = Observed()
    run.step()
    executor.close()

    assert world.digest() == expected(tmp_path)
    assert said == ["100 waiting documents: starting Spark"]
    assert 40 <= sum(here) < 70
    assert spark.done[0] >= 15
    # What is left at the end is no more than what stays here.
    assert 100 - sum(here) - sum(spark.done) in range(31)


def test_work_stays_local_if_spark_does_not_start(tmp_path: Path) -> None:
    world, spark, said = loaded(tmp_path, "data"), Elsewhere(error=TaskError("there is no Java")), list[str]()
    spark.may_start.set()
    world.step(takeover(spark, 10, said, first=10), shards=2)

    assert world.digest() == expected(tmp_path)
    assert said == ["100 waiting documents: starting Spark", "there is no Java; continuing without Spark"]


def test_unfit_workers_stop_the_task(tmp_path: Path) -> None:
    world, spark, said = loaded(tmp_path, "data"), Elsewhere(error=WorkerError("host w has no Python")), list[str]()
    spark.may_start.set()
    with pytest.raises(WorkerError, match="host w has no Python"):
        world.step(takeover(spark, 10, said, first=10), shards=2, limits=Limits(documents=10))

    assert said == ["100 waiting documents: starting Spark"]


def test_task_whose_files_workers_do_not_see_continues_in_the_driver(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    choose_location(tmp_path / "data", ObjectFolder(f"file://{tmp_path}/objects"))

    class Unseen(Elsewhere):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            raise UnseenFolderError("a worker on host w cannot see the data folder")

    world, spark = loaded(tmp_path, "data"), Unseen()
    spark.may_start.set()
    executor = takeover(spark, 10)
    world.step(executor, shards=2)
    executor.close()

    assert world.digest() == expected(tmp_path)
    entries = [entry["message"] for entry in recent_entries(world.root, TASK) if entry["level"] == "warn"]
    assert [f"'{TASK}' continues in the process of the driver" in entry for entry in entries] == [True]


def test_bound_work_does_not_start_spark() -> None:
    spark = Elsewhere()
    executor = takeover(spark, 10)
    executor.prepare(Load("o/bound", Size(1_000, 100_000), 1, is_bound=True), Limits())
    assert not spark.starting.is_set()
    executor.prepare(Load("o/other", Size(1_000, 100_000), 1), Limits())
    assert spark.starting.wait(PATIENCE_SECONDS)
    spark.may_start.set()
    executor.close()


def test_tick_beyond_the_memory_limit_waits_for_spark(tmp_path: Path) -> None:
    world, spark = loaded(tmp_path, "data", apart=1), Elsewhere()
    spark.may_start.set()
    world.step(takeover(spark, None, documents=40), shards=2)

    assert world.digest() == expected(tmp_path, apart=1)
    assert spark.done == [100]


def test_tick_of_one_shard_is_spilled_instead_of_waiting(tmp_path: Path) -> None:
    world, spark = loaded(tmp_path, "data", apart=1), Elsewhere()
    world.step(takeover(spark, None, documents=40), shards=1)

    assert world.digest() == expected(tmp_path, apart=1)
    assert spark.done == []


def test_spark_runs_transactions_lost_by_this_process(tmp_path: Path) -> None:
    class Forgetful(InProcessExecutor):
        @override
        def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
            return [Message(error=LostError("a worker of 'o/counts' ran out of memory").to_json())]

    world, spark = loaded(tmp_path, "data"), Elsewhere()
    spark.may_start.set()
    executor = takeover(spark, None)
    executor._in_process = Forgetful()
    world.step(executor, shards=2)

    assert world.digest() == expected(tmp_path)
    assert sum(spark.done) == 100


def test_cancelled_local_transaction_ends_with_its_batch(tmp_path: Path) -> None:
    world, spark = loaded(tmp_path, "data"), Elsewhere()
    executor = takeover(spark, None)
    run = world.run(executor, shards=2)

    class Cancels(SilentObserver):
        @override
        def working(self, task: str, documents: int) -> None:
            if documents:
                run.stop()

    run._observer = Cancels()
    run.step()
    run.close()

    state = world.task(TASK)
    assert (state.error, state.documents_in) == (None, 0)
    assert world.rows(TASK) == []
    world.step()
    assert world.digest() == expected(tmp_path)
    assert_no_garbage(world)


def test_close_ends_a_start_in_progress(tmp_path: Path) -> None:
    world, spark, said = loaded(tmp_path, "data"), Elsewhere(), list[str]()
    executor = takeover(spark, 10, said)
    world.step(executor, shards=2)
    executor.close()

    assert world.digest() == expected(tmp_path)
    assert said == ["100 waiting documents: starting Spark"]
    assert spark.done == []
    assert "spark" not in [thread.name for thread in threading.enumerate()]


@settings(max_examples=examples(16, 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(catalogs(), histories(), st.data())
def test_l1_place_of_transactions_does_not_change_bytes(text: str, documents: Documents, data: st.DataObject) -> None:
    """Spark, or what stands for it, comes up whenever it likes: a shard's state goes from one process to another."""
    limits = data.draw(st.sampled_from([Limits(documents=2), Limits(documents=5), Limits()]))
    with tempfile.TemporaryDirectory() as folder:
        whole = one_go(folder, "whole", text, documents, 1)
        world = world_of(folder, "mixed", text)
        for part, now in pieces(documents, data):
            if part:
                world.ingest(SOURCE, part)
            world.wall = now
            spark = Elsewhere()
            if data.draw(st.booleans()):
                spark.may_start.set()
            executor = takeover(spark, data.draw(st.integers(1, 8)), first=data.draw(st.integers(1, 3)))
            world.step(executor, shards=2, limits=limits)
            executor.close()
        assert world.digest() == whole
        world.store.close()


@pytest.mark.spark
def test_l1_state_moves_between_this_process_and_spark(spark: SparkExecutor, tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    executors: list[Executor] = [InProcessExecutor(), spark]
    undisturbed = World(tmp_path / "undisturbed", world.catalog)
    for part in range(3):
        for either, executor in ((world, executors[part % 2]), (undisturbed, None)):
            add(either, part)
            either.step(executor, shards=2, limits=Limits(small_documents=-1))

    assert world.digest() == undisturbed.digest()
    assert world.task(TASK).documents_in == 60


FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


def run_of(world: World, *more: str) -> list[str]:
    return ["run", "--until-idle", "--shards", "2", "--data", str(world.root), *more]


def test_run_over_few_documents_loads_no_spark_modules(tmp_path: Path) -> None:
    world = loaded(tmp_path, "data")
    loads = FLOWCTL.replace(
        "main()", "try: main()\nfinally: print(sorted({'pyspark', 'py4j'} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", loads.replace("; try", "\ntry"), *run_of(world)]
    said = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=True).stderr

    assert said.splitlines()[-1] == "[]"
    assert said.startswith("o/counts                                    100 documents")
    assert world.digest() == expected(tmp_path)
    assert not (world.root / "logs" / "spark.log").exists()
    assert not (world.root / "tmp").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "failpoint", ["segment.closed", "state.committing", "state.committed:2", "metadata.committing:6"]
)
def test_l2_driver_killed_during_a_local_transaction_resumes(failpoint: str, tmp_path: Path) -> None:
    world = loaded(tmp_path, "data")
    command = run_of(world, "--limits", '{"documents": 30}')

    assert flowctl(tmp_path, *command, env={**os.environ, "FLOW_FAILPOINT": failpoint})[0] == -signal.SIGKILL
    assert flowctl(tmp_path, *command)[0] == 0
    assert world.digest() == expected(tmp_path)
    assert_no_garbage(world)


SLOW = CATALOG.replace(
    "lambda: INSERT",
    "lambda: INSERT INTO seen WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 60000)"
    " SELECT 'x', count(*) FROM s WHERE true ON CONFLICT DO NOTHING; INSERT",
)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_transaction_of_the_driver_soon(ending: signal.Signals, tmp_path: Path) -> None:
    world = loaded(tmp_path, "data", count=30_000, apart=1_000, text=SLOW)
    command = ["run", "--until-idle", "--shards", "1", "--data", str(world.root)]
    process = Flowctl(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not list((world.root / "state").rglob("state.db*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(ending)
    begun = time.monotonic()
    said = process.communicate(timeout=PATIENCE_SECONDS)[1]

    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "stopped; the next run continues after the last commit"
    assert time.monotonic() - begun < 30  # of SQL the batch has for a minute
    state = world.task(TASK)
    assert (state.error, state.documents_in) == (None, 0)


def test_local_transactions_are_short_only_while_spark_starts_or_rates_are_unknown(tmp_path: Path) -> None:
    """Where much state is kept, many short transactions would take longer than a few long ones."""
    world, spark = loaded(tmp_path, "data"), Elsewhere(error=TaskError("there is no Java"))
    executor = takeover(spark, 50, first=10, telling=5, documents=40, seconds=0)
    taken: list[int] = []

    class Observed(SilentObserver):
        @override
        def committed(self, task: str, done: Committed) -> None:
            taken.append(done.documents_in)
            if len(taken) == 4:
                spark.may_start.set()
                while executor._failure is None:
                    time.sleep(0.001)

    run = world.run(executor, shards=2)
    run._observer = Observed()
    run.step()

    assert world.digest() == expected(tmp_path)
    # The first one, those that take as little as they may while Spark starts, and those after its failure.
    assert taken[0] in range(8, 16)
    assert all(count in range(4, 11) for count in taken[1:4])
    assert taken[4] in range(30, 46)
