"""Reading a collection reduced on Spark gives the same bytes as in this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.protocol.specs import SelectorSpec
from derive.spark.executor import SparkExecutor
from derive.spark.reduced_read import partitions_of, reduced_on_spark
from derive.storage.contents import ReadOptions
from derive.storage.reduced_read import Reduced, read_reduced, reduced_locally
from derive.time.source_read import Segment, SourceRead

CATALOG = """
collections:
  s/values:
    key: [/k]
    projections: {p: {location: /p, partition: true}}
    schema:
      type: object
      required: [k, p]
      reduce: {strategy: merge}
      properties:
        k: {type: integer}
        p: {type: string}
        sum: {type: number, reduce: {strategy: sum}}
"""


@pytest.mark.spark
def test_spark_and_this_process_give_the_same_bytes(spark: SparkExecutor, tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    spec = world.catalog.collections["s/values"]
    for number in range(3):
        documents = [{"k": place % 70 - 9, "p": "ab"[place % 2], "sum": place / 10} for place in range(100 * number)]
        world.ingest("s/values", documents, clock=None)
        world.wall += 3_000_000
    world.store.seal(["s/values"], world.wall)
    middle = world.wall - 4_000_000

    def read(options: ReadOptions, reduced: Reduced) -> list[tuple[int, int, bytes, str]]:
        return [row for part in read_reduced(world.store, spec, options, reduced) for row in part.tuples()]

    for options, count in (
        (ReadOptions(), 70),
        (ReadOptions(as_of=middle), 70),
        (ReadOptions(since=middle), 70),
        (ReadOptions(selector=SelectorSpec(include={"p": ("a",)})), 35),
    ):
        on_spark = read(options, partial(reduced_on_spark, spark))
        assert on_spark == read(options, partial(reduced_locally, scratch=tmp_path))
        assert len(on_spark) == count
    world.store.close()


@pytest.mark.parametrize(
    ("documents", "size", "cores", "expected"),
    [(5_000, 1 << 20, 2, 2), (1_000_000, 64 << 20, 2, 4), (1_000, 320 << 20, 2, 10), (1_000_000, 64 << 20, 16, 16)],
)
def test_partitions_follow_from_what_is_read(documents: int, size: int, cores: int, expected: int) -> None:
    segment = Segment("s/values", "s/values/a.parquet", (), 1, documents, documents, size)

    assert partitions_of(SourceRead(0, 0, 0, documents + 1, (segment,)), cores) == expected
