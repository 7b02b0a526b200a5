"""Deaths of Spark's workers at failpoints: what one more try cannot mend fails, and running again gives the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import World, write_catalog
from test_hybrid_executor import CATALOG, FLOWCTL, TASK, add, assert_no_garbage

from derive.catalog import load
from derive.errors import LostError
from derive.spark.executor import SparkExecutor
from derive.time.extent import Limits

pytestmark = pytest.mark.spark

SHUFFLED = Limits(small_documents=-1)
"""However little there is to read, it is shuffled."""


@contextmanager
def failing_workers(spark: SparkExecutor, failpoint: str) -> Iterator[None]:
    """Let every worker that Spark starts die at a failpoint."""
    environment = spark.session.sparkContext.environment
    environment["FLOW_FAILPOINT"] = failpoint
    try:
        yield
    finally:
        del environment["FLOW_FAILPOINT"]


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    """Two data folders with the same documents; the first is not disturbed."""
    catalog = load(write_catalog(tmp_path, CATALOG))
    found = World(tmp_path / "expected", catalog), World(tmp_path / "disturbed", catalog)
    for world in found:
        add(world, 0)
    found[0].step(shards=2)
    return found


@pytest.mark.torture  # test_quarantine_kills.py kills workers of Spark at one of these failpoints or another
@pytest.mark.parametrize("failpoint", ["segment.closed", "state.committed"])
def test_l2_worker_killed_anywhere_does_not_change_results(
    failpoint: str, spark: SparkExecutor, worlds: tuple[World, World]
) -> None:
    expected, world = worlds
    add(expected, 1)
    expected.step()

    world.step(spark, shards=2, limits=SHUFFLED)
    before = world.digest()
    add(world, 1)
    with failing_workers(spark, failpoint), pytest.raises(LostError, match=f"the Spark job of '{TASK}' failed"):
        world.step(spark, limits=SHUFFLED)
    assert world.digest() == before
    assert world.task(TASK).error is not None

    world.step(spark, limits=SHUFFLED)
    assert world.digest() == expected.digest()
    assert_no_garbage(world)


@pytest.mark.torture
def test_l2_a_failpoint_of_a_worker_ends_flowctl_and_the_next_run_continues(worlds: tuple[World, World]) -> None:
    expected, world = worlds
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
    command += ["--source", str(world.root.parent / "flow.yaml"), "--data", str(world.root)]
    statuses = []
    for failpoint in ("state.committed", ""):
        environment = os.environ | {"FLOW_FAILPOINT": failpoint}
        statuses.append(subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False))

    assert [each.returncode for each in statuses] == [1, 0]
    assert f"the Spark job of '{TASK}' failed" in statuses[0].stderr
    assert [row[3] for row in world.rows(TASK)] == [row[3] for row in expected.rows(TASK)]
    assert not list((world.root / "tmp").rglob("*shard*"))
