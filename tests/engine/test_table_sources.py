"""Derivations that read tables: rows are documents, and those that are taken away say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest
from conftest import World, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from derive.algebra.types import Row
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import find_pending
from derive.engine.reset import reset
from derive.errors import FencedError, FlowError, ReductionError, SegmentError, SegmentMissingError, StorageError
from derive.materialize.stages import AnyPlan
from derive.protocol.specs import CatalogSpec, CollectionSpec, SelectorSpec
from derive.relations.table_rows import TableRows
from derive.shard.progress import Message, Progress
from derive.spark.executor import SparkExecutor, reduced_on_spark
from derive.storage.compaction import compact
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn
from derive.time import END_OF_TIME
from derive.time.extent import Enough
from derive.time.positions import Segment

ORDERS = "sql/public/orders"
CATALOG = """
collections:
  sql/public/orders:
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, amount: {type: number}, _meta: {type: object, properties: {op: {type: string}}}}
    key: [/id]
  t/amounts:
    schema:
      type: object
      required: [id, amount]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, amount: {type: number, reduce: {strategy: sum}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: fromOrders
          source: sql/public/orders
          shuffle: {key: [/id]}
          lambda: SELECT $id, CASE WHEN $_meta$op IS 'd' THEN -$amount ELSE $amount END AS amount;
  t/documents:
    schema: {type: object, required: [id], properties: {id: {type: integer}, op: {type: [string, "null"]}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: fromOrders
          source: sql/public/orders
          shuffle: any
          lambda: SELECT $id, json_extract($flow_document, '$._meta.op') AS op;
"""
COLUMNS = (TableColumn("id", "bigint", nullable=False), TableColumn("amount", "double precision"))


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def append(world: World, table: Table, *changes: tuple[Row, int]) -> None:
    world.wall += 1_000_000
    world.store.tables.append(world.store.timeline.assign(1), {table.id: TableRows(table).changes(changes)})
    world.wall += 1_000_000


def reduced(world: World, name: str) -> list[dict[str, object]]:
    scratch = world.root.parent
    parts = read_reduced(
        world.store,
        world.catalog.collections[name],
        ReadOptions(),
        lambda root, spec, read: reduced_locally(root, spec, read, scratch),
    )
    return [document for rows in parts for document in rows.documents()]


def test_table_rows_are_documents_and_deleted_rows_have_a_marker(world: World) -> None:
    world.step()  # the catalog may be run before there is a table
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 2))
    world.step()
    append(world, table, ((1, 2.5), -1), ((1, 3.0), 1))
    append(world, table, ((2, 4.0), -1))
    world.step()

    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 3.0}, {"id": 2, "amount": 4.0}]
    told = [(document["id"], document.get("op")) for document in map(orjson.loads, texts(world, "t/documents"))]
    assert told == [(1, None), (2, None), (1, None), (2, "d")]


def test_deleted_rows_have_a_marker_in_files_that_a_run_has_merged(world: World) -> None:
    """A run merges files by the schema of the catalog, so they have a column of the marker, in which it is missing."""
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 1))
    world.store.tables.flush()
    append(world, table, ((1, 2.5), -1))
    compact(world.store, world.catalog.collections[ORDERS], grace=0)
    world.step()

    assert reduced(world, "t/amounts") == [{"id": 1, "amount": 0.0}, {"id": 2, "amount": 4.0}]


def texts(world: World, name: str) -> list[str]:
    return [text for _, _, _, text in world.rows(name)]


def test_contents_of_a_table_are_its_stored_rows(world: World) -> None:
    table = world.store.tables.create(ORDERS, COLUMNS)
    append(world, table, ((1, 2.5), 1), ((2, 4.0), 1))
    append(world, table, ((1, 2.5), -1))
    assert reduced(world, ORDERS) == [{"id": 2, "amount": 4.0}]

    upper = world.store.upper(ORDERS)
    compact(world.store, world.catalog.collections[ORDERS], since=upper, grace=0)
    assert reduced(world, ORDERS) == [{"id": 2, "amount": 4.0}]


def test_catalog_key_of_a_table_must_match_the_stored_one(world: World) -> None:
    world.store.tables.create(ORDERS, COLUMNS, key=["amount"])

    with pytest.raises(StorageError, match=r'was stored with key \["/amount"\]'):
        world.step()


@settings(max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "6")), deadline=None)
@given(
    commits=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1, 2, -1]))),
            st.integers(1, 2_000_000),
            st.sampled_from(["", "flush", "compact", "step"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_l1_maintenance_of_rows_does_not_change_derived_documents(
    commits: list[tuple[list[tuple[int, float, int]], int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("worlds")
    catalog = load(write_catalog(folder, CATALOG))
    digests = []
    for name, shards in (("plain", 1), ("busy", 3)):
        world = World(folder / name, catalog, wall=1_000_000)
        table = world.store.tables.create(ORDERS, COLUMNS)
        clock = 1_000_000
        for changes, pause, action in commits:
            clock += pause
            world.wall = clock + 1
            rows = TableRows(table).changes(((number, value), diff) for number, value, diff in changes)
            world.store.tables.append(clock, {table.id: rows})
            if name == "busy" and action == "step":
                world.step(shards=shards)
            elif name == "busy" and action == "compact":
                compact(world.store, table.spec, grace=0)
            elif name == "busy" and action == "flush":
                world.store.tables.flush()
        world.wall = clock + 10_000_000
        world.step(shards=shards)
        digests.append(world.digest())
        world.store.close()

    assert digests[0] == digests[1]


# Sources whose files are damaged, or are reset while a run looks at them.


DAMAGED = """
collections:
  d/numbers: {schema: &schema {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  d/middle:
    schema: *schema
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: pass, source: d/numbers, shuffle: any, lambda: SELECT $id;}]}
  d/late:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: later, source: d/middle, shuffle: any, readDelay: 1h, lambda: SELECT $id;}]
  d/other:
    schema: *schema
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: pass, source: d/numbers, shuffle: any, lambda: SELECT $id;}]}
"""
HOUR = 3_600_000_000


def world_of(folder: Path) -> World:
    world = World(folder / "data", load(write_catalog(folder, DAMAGED)))
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


def test_damaged_source_is_found_by_counting_waiting_documents(tmp_path: Path) -> None:
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


def test_source_reset_before_counting_is_read_again(tmp_path: Path) -> None:
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
            end: int = END_OF_TIME,
            until: Enough | None = None,
        ) -> Sequence[Segment]:
            nonlocal looks
            looks += 1
            found = super().segments(spec, selector, begin, relation, end, until)
            if found:
                reset_elsewhere(world)
            return found

    store = Outdated(world.root, wall=lambda: world.wall, durable=False)
    assert find_pending(store, spec, positions) == []
    assert looks == 2


def test_source_reset_during_a_read_is_read_again(tmp_path: Path) -> None:
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
def test_spark_workers_report_damaged_files_as_this_process_does(spark: SparkExecutor, tmp_path: Path) -> None:
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


@pytest.mark.sampled(3)
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
def test_reading_reduced_reports_damaged_files(
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


@pytest.mark.sampled(1)
@pytest.mark.spark
@pytest.mark.parametrize("on_spark", [True, False])
def test_reading_reduced_reports_documents_that_cannot_be_reduced(
    on_spark: bool, spark: SparkExecutor, tmp_path: Path
) -> None:
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
