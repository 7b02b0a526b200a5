"""The Spark executor: types of columns, and workers without the data folder or Python."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import World, write_catalog
from pyspark import cloudpickle
from test_spark_jobs import counts

from derive.catalog import load
from derive.errors import WorkerError
from derive.shard.owners import PACKETS
from derive.shard.worker import Stage, Stages
from derive.spark.executor import SparkExecutor, cores_of, spark_columns
from derive.spark.release import packed, release
from derive.spark.worker_checks import find_unfit, in_folder
from derive.storage.segments.rows import StoredRows


def test_columns_of_segments_and_packets_have_types_that_spark_knows() -> None:
    assert spark_columns(StoredRows.SCHEMA) == "clock long, seq int, diff byte, key binary, doc string"
    assert spark_columns(StoredRows.SCHEMA, ["key", "doc"]) == "key binary, doc string"
    assert spark_columns(PACKETS) == "owner int, rank long, content binary"


LOST = "Job aborted due to stage failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "
CATALOG = """
collections:
  u/numbers: &numbers {schema: {type: object, required: [n], properties: {n: {type: integer}}}, key: [/n]}
  u/copies:
    <<: *numbers
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: u/numbers, shuffle: any, lambda: SELECT $n}]}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f'{LOST}java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
            "the Spark worker on host 10.0.0.7 cannot start Python: there is no program python3",
        ),
        (
            f"{LOST}Traceback (most recent call last):\n ...\nModuleNotFoundError: No module named 'derive'\n",
            "the Python of the Spark worker on host 10.0.0.7 has no module 'derive'",
        ),
        (
            (
                f"{LOST}pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has"
                " different version: 3.10 than that in driver: 3.11, PySpark cannot run.\n"
            ),
            (
                "the Spark worker on host 10.0.0.7 has another version of Python than this run: Python in worker has different version:"
                " 3.10 than that in driver: 3.11, PySpark cannot run."
            ),
        ),
        (
            "derive.errors.UnseenFolderError: a Spark worker on host w cannot see the data folder /d: No such file",
            "a Spark worker on host w cannot see the data folder /d: No such file",
        ),
    ],
)
def test_executor_finds_host_and_cause_in_errors_of_spark(text: str, message: str) -> None:
    error = find_unfit(text)

    assert error is not None
    assert error.message == message
    assert error.hint
    assert not error.heals


def test_other_failures_are_not_reported_as_unfit_workers() -> None:
    assert find_unfit(f"{LOST}ExecutorLostFailure (executor 1 exited): Command exited with code 137") is None


@pytest.mark.sampled(1)
@pytest.mark.spark
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("own", [None, "another"])
def test_workers_that_do_not_see_the_data_folder_do_nothing(
    own: str | None, stages: int, spark: SparkExecutor, tmp_path: Path
) -> None:
    if own is not None:
        (tmp_path / "folder-id").write_text(own)
    checked = partial(in_folder, counts(), tmp_path, "the folder's")
    cause = "No such file or directory" if own is None else "this path holds another data folder"

    with pytest.raises(WorkerError) as raised, spark.explained("of 'x'"):
        spark._run(spark.session, replace(Stages(2, 1, ()), stages=(checked,) * stages))

    assert raised.value.message == (
        f"a Spark worker on host {socket.gethostname()} cannot see the data folder {tmp_path}: {cause}"
    )


def sent(opened: Callable[[], Stage]) -> Callable[[], Stage]:
    """Return a function as a worker gets it."""
    received: Callable[[], Stage] = pickle.loads(cloudpickle.dumps(opened))  # type: ignore[no-untyped-call]
    return received


@pytest.mark.parametrize("digest", [release()[1], ""])  # an archive of the package has no digest
def test_worker_of_the_same_release_opens_a_stage(digest: str) -> None:
    opened = sent(packed(counts(), (release()[0], digest)))
    assert [batch.num_rows for batch in opened()(3, iter(()), 0)] == [2]


@pytest.mark.parametrize("own", [("0.1.0", ""), (release()[0], "another")])
def test_worker_of_another_release_opens_no_stage(own: tuple[str, str]) -> None:
    opened = sent(packed(counts(), own))
    with pytest.raises(WorkerError) as raised:
        opened()
    error = find_unfit(f"{LOST}derive.errors.WorkerError: {raised.value.message}\n")

    assert error is not None
    assert error.message == (
        f"a Spark worker on host {socket.gethostname()} has another release of this package than the run:"
        f" {' '.join(release())}, and not {' '.join(own).strip()}"
    )
    assert error.hint == "install the same release of this package on all machines of the cluster"


@pytest.mark.spark
def test_run_with_workers_without_python_stops_with_the_reason(
    spark: SparkExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    world.ingest("u/numbers", [{"n": 1}], None)
    world.wall += 1_000_000
    monkeypatch.setattr(spark.session.sparkContext, "pythonExec", "/nowhere/python3")

    with pytest.raises(WorkerError, match="cannot start Python: there is no program /nowhere/python3"):
        world.step(spark)


@pytest.mark.parametrize(
    ("conf", "registered", "cores"),
    [
        ({}, 2, 2),
        ({"spark.executor.instances": "3"}, 2, 3),  # not all executors have registered yet
        ({"spark.executor.instances": "3", "spark.executor.cores": "4"}, 40, 40),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "3"}, 2, None),
    ],
)
def test_cores_include_executors_that_register_later(conf: dict[str, str], registered: int, cores: int | None) -> None:
    assert cores_of(conf, registered) == cores
