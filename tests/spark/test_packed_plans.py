"""A transaction that reads many segments, with more shards than cores: workers publish the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.spark.executor import SparkExecutor
from derive.storage.metadata.chain import paths_of
from derive.time.extent import Limits

CATALOG = """
collections:
  m/numbers:
    schema: {type: object, required: [id, n, at], properties: {id: {type: integer}, n: {type: integer}, at: {type: string}}}
    key: [/id]
  m/firsts:
    schema: {type: object, required: [n, id], properties: {n: {type: integer}, id: {type: integer}}}
    key: [/n]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (n INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: first
          source: m/numbers
          shuffle: {key: [/n]}
          lambda: INSERT INTO t VALUES ($n) ON CONFLICT DO NOTHING RETURNING n, $id AS id;
"""


@pytest.mark.torture  # test_packed_segments.py and test_shards_apart.py need no Spark
def test_spark_publishes_the_same_bytes_from_many_segments(tmp_path: Path, spark: SparkExecutor) -> None:
    """Segments travel packed, and the states that travel are stored as one object for each core."""
    catalog = load(write_catalog(tmp_path, CATALOG))
    world = World(tmp_path / "packed", catalog)
    for number in range(520):
        at = format_rfc3339(1_700_000_000_000_000 + number * 500_000)
        world.ingest("m/numbers", [{"id": number, "n": number * number % 101, "at": at}])
    world.store.close()
    shutil.copytree(tmp_path / "packed", tmp_path / "local")
    caches = {"packed": tmp_path / "cache", "local": None}
    worlds = [World(tmp_path / name, catalog, cache=cache) for name, cache in caches.items()]
    assert [world.store.collection("m/numbers").segments for world in worlds] == [520, 520]  # type: ignore[union-attr]

    worlds[0].step(spark, shards=5, limits=Limits(small_documents=1, slice_documents=100))
    worlds[1].step(InProcessExecutor(), shards=2)

    assert worlds[0].digest() == worlds[1].digest()
    assert len(worlds[0].rows("m/firsts")) == 51
    chains = worlds[0].task("m/firsts").chains
    assert (len(chains), len(paths_of(chains.values()))) == (5, min(5, spark.session.sparkContext.defaultParallelism))
