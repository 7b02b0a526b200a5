"""A tick that outgrows memory gives the bytes of one that does not, in every shape of a transaction."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import World, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_catalogs import BASE, SOURCE, catalogs, histories

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.executor import Executor, InProcessExecutor
from derive.errors import DocumentError, FlowError
from derive.materialize.stages import AnyPlan
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.spark.executor import SparkExecutor
from derive.time.extent import Limits, Load

Documents = list[dict[str, object]]


class Frugal:
    """An executor whose tasks have this much memory, and which shuffles however little there is."""

    def __init__(self, inner: Executor, memory: int) -> None:
        self._inner = inner
        self._memory = memory

    def prepare(self, load: Load, limits: Limits) -> Limits:
        return self._inner.prepare(load, limits)

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        assert isinstance(plan, Plan)
        return self._inner.execute(replace(plan, memory=self._memory, is_small=False), progress)

    def cancel(self) -> None:
        self._inner.cancel()

    def close(self) -> None:
        pass


def derived(folder: str, name: str, text: str, documents: Documents, executor: Executor, shards: int) -> World:
    path = Path(folder)
    world = World(path / name, load(write_catalog(path, text)))
    world.ingest(SOURCE, documents)
    world.step(executor, shards=shards)
    return world


def same_at_any_memory(
    text: str, documents: Documents, executor: Executor, shards: list[int], memories: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = derived(folder, "whole", text, documents, InProcessExecutor(), 1)
        for count in shards:
            for memory in memories:
                frugal = Frugal(executor, memory)
                world = derived(folder, f"{count}-{memory}", text, documents, frugal, count)
                assert [world.rows(name) for name in world.catalog.derivations] == [
                    whole.rows(name) for name in whole.catalog.derivations
                ]
                world.store.close()
        whole.store.close()


@settings(
    max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "8")) // 2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(catalogs(), histories(), st.sampled_from([0, 1000, 5000, 20_000]))
def test_random_catalogs_give_the_same_bytes_with_little_memory(text: str, documents: Documents, memory: int) -> None:
    same_at_any_memory(text, documents, InProcessExecutor(), [1, 3], [memory])


SHAPES = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: number}, at: {type: string}}
    key: [/id]
  t/sliced: &derived
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms: [{name: pick, source: t/source, shuffle: any, lambda: "SELECT $k, $v;"}]
  t/log:
    <<: *derived
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, log: {type: array, reduce: {strategy: append}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: pick, source: t/source, shuffle: any, lambda: "SELECT $k, json_array($id) AS log;"}]
  t/apart:
    <<: *derived
    schema:
      type: object
      required: [k]
      reduce: {strategy: lastWriteWins, associative: false}
      properties: {k: {type: string}, v: {type: number}, b: {type: integer}}
    key: [/k, /b]
    projections: {b: {location: /b, partition: true}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: pick, source: t/source, shuffle: any, lambda: "SELECT $k, $v, $id % 2 AS b;"}
        - {name: hot, source: t/source, shuffle: any, lambda: "SELECT 'hot' AS k, $v, 0 AS b;"}
  t/keyed:
    <<: *derived
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n REAL NOT NULL);"]}}
      transforms:
        - name: add
          source: t/source
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, $v) ON CONFLICT DO UPDATE SET n = n + $v RETURNING substr(k, -1) AS k, n AS v;
  t/loop:
    <<: *derived
    schema:
      type: object
      required: [k]
      properties: {k: {type: string}, v: {type: number}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: begin, source: t/source, shuffle: {key: [/k]}, lambda: "SELECT $k || $id AS k, $v;"}
        - {name: again, source: t/loop, shuffle: {key: [/k]}, lambda: "SELECT $k || 'x' AS k, $v / 2 AS v WHERE $v > 1;"}
        - name: later
          source: t/loop
          shuffle: {key: [/k]}
          readDelay: 3s
          lambda: SELECT $k || 'y' AS k, $v - 1 AS v WHERE $v > 0.9;
"""
"""Sums of floats, documents that grow, documents that stay apart in two partitions, shards, and feedback."""


def one_tick(count: int) -> Documents:
    """Documents of a tick and a bit, of some keys; their sums depend on the order they are added in."""
    return [
        {
            "id": n,
            "k": f"key {n * 7919 % (count // 4)}",
            "v": n % 17 / 10,
            "at": format_rfc3339(BASE + n * 1_200_000 // count),
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("memory", [pytest.param(20_000, marks=pytest.mark.torture), 100_000])
def test_every_shape_gives_the_same_bytes_with_little_memory(memory: int) -> None:
    same_at_any_memory(SHAPES, one_tick(400), InProcessExecutor(), [1, 3], [memory])


def test_tick_within_the_memory_limit_is_not_spilled(tmp_path: Path) -> None:
    for memory, is_spilled in ((0, True), (1 << 27, False)):
        world = derived(str(tmp_path), f"{memory}", SHAPES, one_tick(40), Frugal(InProcessExecutor(), memory), 1)
        world.store.close()

        folder = tmp_path / f"{memory}" / "tmp"
        assert folder.exists() == is_spilled
        assert not is_spilled or list(folder.iterdir()) == []


@pytest.mark.torture  # test_every_shape_gives_the_same_bytes_with_little_memory
@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "shards"),
    [(SHAPES[: SHAPES.index("  t/loop:")], 1), (SHAPES, 1), (SHAPES, 2)],  # each pass of a loop is a Spark job
    ids=["without a loop", "1", "2"],
)
def test_spark_gives_the_same_bytes_with_little_memory(text: str, shards: int, spark: SparkExecutor) -> None:
    same_at_any_memory(text, one_tick(400), spark, [shards], [10_000])


@pytest.mark.parametrize(
    "shape", [*(pytest.param(shape, marks=pytest.mark.torture) for shape in ("sliced", "loop")), "single"]
)
def test_memory_does_not_grow_with_the_tick(shape: str) -> None:
    script = Path(__file__).with_name("peak_memory.py")
    found = subprocess.run([sys.executable, str(script), shape], capture_output=True, text=True, check=True)

    # Without a bound the second tick, of 60,000 documents, takes at least 65 MiB more than the first, of 10,000.
    assert int(found.stdout) < 45


def test_memory_does_not_grow_with_the_length_of_ingested_documents() -> None:
    script = Path(__file__).with_name("peak_memory.py")
    found = subprocess.run([sys.executable, str(script), "ingest"], capture_output=True, text=True, check=True)

    # 200 MB are ingested. Counted by documents and not by bytes, all of them would be in memory, several times.
    assert int(found.stdout) < 250


# Integers beyond what a key can hold are errors that name the document, wherever they turn up.


HUGE = 1 << 255 * 8
CATALOG = """
collections:
  l/source:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}, n: {type: integer}}}
  l/target:
    key: [/n]
    schema: {type: object, required: [n], properties: {n: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: fromSource, source: l/source, shuffle: SHUFFLE, lambda: "SELECT json($flow_document)"}]
"""


@pytest.mark.parametrize(
    ("shuffle", "shards", "message"),
    [
        ("any", 1, "transform 'fromSource' of 'l/target' published a document without a key: an integer of 256 bytes"),
        ("{key: [/id]}", 2, "transform 'fromSource' of 'l/target' published a document without a key: an integer of"),
        ("{key: [/n]}", 2, "transform 'fromSource' of 'l/target' cannot shuffle a document: an integer of 256 bytes"),
    ],
)
def test_a_derived_key_that_is_too_large_is_reported_with_its_document(
    shuffle: str, shards: int, message: str, tmp_path: Path
) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG.replace("SHUFFLE", shuffle))))
    world.ingest("l/source", [{"id": 1, "n": 1}, {"id": 2, "n": HUGE}], clock=None)
    world.wall += 10_000_000
    with pytest.raises(FlowError) as caught:
        world.step(shards=shards)
    assert caught.value.message.startswith(message)
    assert '{"id":2,"n":1262383049' in caught.value.message
    assert caught.value.position is not None


def test_an_ingested_key_that_is_too_large_is_reported_with_its_line(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG.replace("SHUFFLE", "any"))))
    with pytest.raises(DocumentError) as caught:
        world.ingest(
            "l/source", [{"id": 1}, {"id": HUGE}, {"id": HUGE - 1}, {"id": HUGE, "n": "no number"}], clock=None
        )
    assert caught.value.message.split("\n")[0] == "test: 2 documents are not valid:"
    # Both are named, the invalid one without its key.
    assert "  test:2: an integer of 256 bytes cannot be part of a key: the limit is 255 bytes" in caught.value.message
    assert "  test:4: document of 'l/source' fails its schema at '/n'" in caught.value.message
