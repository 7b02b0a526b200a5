"""Sources whose files are damaged, or are reset while a run looks at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import World, write_catalog
from typing_extensions import override

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import find_pending
from derive.engine.reset import reset
from derive.errors import FencedError, FlowError, ReductionError, SegmentError, SegmentMissingError
from derive.materialize.stages import AnyPlan
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.shard.progress import Message, Progress
from derive.spark.executor import SparkExecutor
from derive.spark.reduced_read import reduced_on_spark
from derive.storage.contents import ReadOptions
from derive.storage.reduced_read import read_reduced, reduced_locally
from derive.storage.store import Store
from derive.time.source_read import Segment

CATALOG = """
collections:
  d/numbers:
    schema: &schema {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  d/middle:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: pass, source: d/numbers, shuffle: any, lambda: SELECT $id;}]
  d/late:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: later, source: d/middle, shuffle: any, readDelay: 1h, lambda: SELECT $id;}]
  d/other:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: pass, source: d/numbers, shuffle: any, lambda: SELECT $id;}]
"""
HOUR = 3_600_000_000


def world_of(folder: Path) -> World:
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    for first in (0, 10, 20):
        world.ingest("d/numbers", [{"id": first + place} for place in range(10)], clock=None)
        world.wall += 3_000_000
    return world


def files_of(world: World, collection: str) -> list[Path]:
    return [world.root / each.path for each in world.store.segments(world.catalog.collections[collection])]


def reset_elsewhere(world: World) -> None:
    store = Store(world.root, wall=lambda: world.wall, durable=False)
    reset(world.catalog, store, ["d/middle"], cascade=True)
    store.close()


def _with_other_digits(content: bytes) -> bytes:
    """Still a Parquet file of JSON texts, but of other ones: only a checksum tells."""
    assert content.count(b"123456789}") == 1
    return content.replace(b"123456789}", b"923456789}")


class ResetsFirst(InProcessExecutor):
    """Another process resets what is about to be read."""

    def __init__(self, world: World) -> None:
        self.world = world

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        if plan.spec.name == "d/late":
            reset_elsewhere(self.world)
        return super().execute(plan, progress)


def test_a_task_whose_source_is_damaged_stops_alone(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.step()
    for file in files_of(world, "d/middle"):
        file.write_bytes(b"garbage")
    world.wall += 2 * HOUR
    world.ingest("d/numbers", [{"id": 99}], clock=None)
    world.wall += 3_000_000
    run = world.run()
    run.step()

    errors = {name: type(task.error) for name, task in run.tasks.items()}
    assert errors == {"d/middle": type(None), "d/late": SegmentError, "d/other": type(None)}
    assert len(world.rows("d/other")) == 31
    assert [each.task for each in run.waiting()] == []


def test_a_damaged_source_is_found_by_looking_at_what_waits(tmp_path: Path) -> None:
    """The delay keeps anything from being processed, so that only counting reads the file."""
    world = world_of(tmp_path)
    world.step()
    [middle] = files_of(world, "d/middle")
    middle.write_bytes(b"garbage")
    run = world.run()
    late = run.tasks["d/late"]
    positions = {late.spec.inputs[0].state_key: world.wall + HOUR - 5_000_000}
    late._checkpoint = replace(late._checkpoint, positions=positions)

    assert run.waiting() == []
    assert isinstance(run.tasks["d/late"].error, SegmentError)


def test_a_source_that_is_reset_before_it_is_counted_is_looked_at_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.step()
    spec = world.catalog.derivations["d/late"]
    positions = {spec.inputs[0].state_key: world.wall + HOUR - 5_000_000}
    looks = 0

    class Outdated(Store):
        """Says what was there until then."""

        @override
        def segments(
            self,
            spec: CollectionSpec,
            selector: SelectorSpec | None = None,
            begin: int = 0,
            relation: int | None = None,
        ) -> list[Segment]:
            nonlocal looks
            looks += 1
            found = super().segments(spec, selector, begin, relation)
            if found:
                reset_elsewhere(world)
            return found

    store = Outdated(world.root, wall=lambda: world.wall, durable=False)
    assert find_pending(store, spec, positions) == []
    assert looks == 2


def test_a_source_that_is_reset_while_it_is_read_is_looked_at_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.step()
    world.wall += 2 * HOUR
    run = world.run(ResetsFirst(world))
    late = run.tasks["d/late"]

    assert run.advance(("d/late",), run.seal()) is False
    assert late.error is None
    # The reset took both derivations with it, and what this run would commit for them is refused.
    with pytest.raises(FencedError):
        run.advance(("d/middle",), run.seal())


@pytest.mark.spark
def test_spark_workers_tell_of_damaged_files_what_this_process_tells(spark: SparkExecutor, tmp_path: Path) -> None:
    world = world_of(tmp_path)
    file = files_of(world, "d/numbers")[1]
    file.write_bytes(file.read_bytes()[:-50])
    run = world.run(spark, shards=2)
    run.step()

    error = run.tasks["d/middle"].error
    assert isinstance(error, SegmentError)
    assert error.message.startswith(f"a file of collection 'd/numbers' is damaged: {file.relative_to(world.root)}: ")
    assert error.hint
    assert "flowctl reset" in error.hint


def read_through(world: World, collection: str, spark: SparkExecutor | None) -> None:
    """Read a collection reduced, on Spark or in this process."""
    spec = world.catalog.collections[collection]
    reduced = partial(reduced_on_spark, spark) if spark else partial(reduced_locally, scratch=world.root)
    assert list(read_reduced(world.store, spec, ReadOptions(), reduced))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("damage", "kind", "told"),
    [
        (lambda content: content[:-50], SegmentError, "a file of collection 'd/numbers' is damaged: "),
        (_with_other_digits, SegmentError, "a file of collection 'd/numbers' is damaged: "),
        (None, SegmentMissingError, "a file of collection 'd/numbers' is missing: "),
    ],
)
@pytest.mark.parametrize("on_spark", [True, False])
def test_reading_reduced_tells_of_damaged_files(
    damage: Callable[[bytes], bytes] | None,
    kind: type[FlowError],
    told: str,
    on_spark: bool,
    spark: SparkExecutor,
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path)
    world.store.seal(["d/numbers"], world.wall)
    file = files_of(world, "d/numbers")[1]
    content = file.read_bytes()
    if damage:
        file.write_bytes(damage(content))
    else:
        file.unlink()

    with pytest.raises(kind) as caught:
        read_through(world, "d/numbers", spark if on_spark else None)
    assert caught.value.message.startswith(told)


@pytest.mark.spark
@pytest.mark.parametrize("on_spark", [True, False])
def test_reading_reduced_tells_what_cannot_be_reduced(on_spark: bool, spark: SparkExecutor, tmp_path: Path) -> None:
    text = """
    collections:
      d/sums:
        key: [/id]
        schema:
          type: object
          required: [id]
          reduce: {strategy: merge}
          properties: {id: {type: integer}, n: {type: number, reduce: {strategy: sum}}}
    """
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
    world.ingest("d/sums", [{"id": 1, "n": 1e308}, {"id": 1, "n": 1e308}], clock=None)
    world.wall += 3_000_000
    world.store.seal(["d/sums"], world.wall)

    with pytest.raises(ReductionError, match=r"documents of \[1\] in 'd/sums' cannot be reduced.*numeric overflow"):
        read_through(world, "d/sums", spark if on_spark else None)
