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

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.errors import LostError
from derive.spark.executor import SparkExecutor
from derive.time.extent import Limits

pytestmark = pytest.mark.spark

BASE = 1_700_000_000_000_000

CATALOG = """
collections:
  w/source:
    schema:
      type: object
      required: [id, k, at]
      properties: {id: {type: integer}, k: {type: string}, at: {type: string}}
    key: [/id]
  w/counts:
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
          source: w/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING substr(k, 1, 1) AS k, n;
"""
SHUFFLED = Limits(small_documents=-1)
"""However little there is to read, it is shuffled."""
FLOWCTL = "import sys; sys.argv[0] = 'flowctl'; from derive.cli.main import main; main()"


@contextmanager
def failing_workers(spark: SparkExecutor, failpoint: str) -> Iterator[None]:
    """Let every worker that Spark starts die at a failpoint."""
    environment = spark.session.sparkContext.environment
    environment["FLOW_FAILPOINT"] = failpoint
    try:
        yield
    finally:
        del environment["FLOW_FAILPOINT"]


def loaded(folder: Path, name: str, batch: int = 0, world: World | None = None) -> World:
    world = world or World(folder / name, load(write_catalog(folder, CATALOG)))
    numbers = range(40 * batch, 40 * batch + 40)
    documents = [{"id": n, "k": f"{'ab'[n % 2]}{n % 9}", "at": format_rfc3339(BASE + n * 100_000)} for n in numbers]
    world.ingest("w/source", documents)
    world.wall = BASE + (batch + 1) * 4_000_000
    return world


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", ["segment.closed", "state.committed"])
def test_l2_worker_killed_anywhere_does_not_change_results(
    failpoint: str, spark: SparkExecutor, tmp_path: Path
) -> None:
    expected = loaded(tmp_path, "expected")
    expected.step(shards=2)
    loaded(tmp_path, "", 1, expected).step()

    world = loaded(tmp_path, "disturbed")
    world.step(spark, shards=2, limits=SHUFFLED)
    before = world.digest()
    loaded(tmp_path, "", 1, world)
    with failing_workers(spark, failpoint), pytest.raises(LostError, match="the Spark job of 'w/counts' failed"):
        world.step(spark, limits=SHUFFLED)
    assert world.digest() == before
    task = world.store.task("w/counts")
    assert task is not None
    assert task.error is not None

    world.step(spark, limits=SHUFFLED)
    assert world.digest() == expected.digest()
    stored = {str(path.relative_to(world.root)) for path in world.root.rglob("collections/w/counts@/*.parquet")}
    assert stored == world.store.garbage.known("w/counts")


@pytest.mark.torture
def test_l2_a_failpoint_of_a_worker_ends_flowctl_and_the_next_run_continues(tmp_path: Path) -> None:
    expected = loaded(tmp_path, "expected")
    expected.step(shards=2)
    world = loaded(tmp_path, "disturbed")
    command = [sys.executable, "-c", FLOWCTL, "run", "--until-idle", "--shards", "2", "--local-documents", "0"]
    statuses = [
        subprocess.run(
            [*command, "--source", str(tmp_path / "flow.yaml"), "--data", str(world.root)],
            env=os.environ | {"FLOW_FAILPOINT": failpoint},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        for failpoint in ("state.committed", "")
    ]

    assert [each.returncode for each in statuses] == [1, 0]
    assert "the Spark job of 'w/counts' failed" in statuses[0].stderr
    assert [row[3] for row in world.rows("w/counts")] == [row[3] for row in expected.rows("w/counts")]
    assert not list((world.root / "tmp").rglob("*shard*"))
