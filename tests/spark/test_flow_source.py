"""Collections as a data source of Spark, at a time and as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import World, write_catalog

from derive.algebra.types import Row
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import ChosenRows, Reduced, read_reduced, reduced_locally
from derive.contents.rows import contents_at, rows_of_share, shares_at, shares_between, updates_of_share
from derive.errors import FrontierError, UsageError
from derive.protocol.specs import CatalogSpec, SelectorSpec
from derive.relations.table_rows import TableRows
from derive.spark.executor import SparkExecutor, partitions_of, reduced_on_spark
from derive.storage.compaction import compact
from derive.storage.inputs.parquet_rows import parquet_rows
from derive.storage.table_types import TableColumn
from derive.time.positions import Segment, SourceRead

CATALOG = """
collections:
  a/balances:
    schema:
      type: object
      required: [who]
      reduce: {strategy: merge}
      properties: {who: {type: string}, amount: {type: number, reduce: {strategy: sum}}}
    key: [/who]
"""
NAME = "a/balances"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / ".flow", load(write_catalog(tmp_path, CATALOG)), wall=1_000_000)


def ingest(world: World, *documents: dict[str, Any]) -> None:
    world.ingest(NAME, list(documents), None)
    world.wall += 1_000_000
    world.store.seal_now([NAME])


def ask(world: World, **options: str) -> dict[str, str]:
    return {"source": str(world.root.parent / "flow.yaml"), "path": NAME, **options}


@pytest.mark.spark
def test_spark_reads_a_collection_at_a_time(world: World, spark: SparkExecutor) -> None:
    from derive.spark.source import register

    register(spark.session)
    ingest(world, {"who": "ann", "amount": 1.0}, {"who": "bob", "amount": 2.0})
    ingest(world, {"who": "ann", "amount": 0.5})
    ingest(world, {"who": "ann", "amount": 4.0})
    frame = spark.session.read.format("flow").options(**ask(world, asOf="1970-01-01T00:00:02.5Z")).load()
    assert sorted((row.who, row.amount) for row in frame.collect()) == [("ann", 1.5), ("bob", 2.0)]


@pytest.mark.spark
@pytest.mark.torture  # test_stream_keeps_a_capability_at_its_timestamp reads the stream without Spark
def test_spark_follows_a_collection(world: World, spark: SparkExecutor, tmp_path: Path) -> None:
    from derive.spark.source import register

    register(spark.session)
    ingest(world, {"who": "ann", "amount": 1.0}, {"who": "bob", "amount": 2.0})
    ingest(world, {"who": "ann", "amount": 0.5})

    def follow() -> list[tuple[Any, ...]]:
        frame = spark.session.readStream.format("flow").options(**ask(world)).load()
        writer = frame.select("who", "amount").writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
        query.awaitTermination()
        return sorted((row["who"], row["amount"]) for row in pq.read_table(tmp_path / "out").to_pylist())

    first = [("ann", 0.5), ("ann", 1.0), ("bob", 2.0)]
    assert follow() == first
    ingest(world, {"who": "cid", "amount": 3.0})
    assert follow() == [*first, ("cid", 3.0)]


def test_stream_keeps_a_capability_at_its_timestamp(world: World) -> None:
    from derive.spark.source import FlowOptions, FlowStreamReader

    ingest(world, {"who": "ann", "amount": 1.0})
    reader = FlowStreamReader(FlowOptions.of(ask(world, diffs="true")))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["who"], row["flow_diff"]) for row in rows] == [("ann", 1)]
    reader.commit(end)
    assert reader.latestOffset(end, None) == end

    ingest(world, {"who": "bob", "amount": 1.0})
    frontiers = world.store.history.frontiers(NAME)
    assert frontiers is not None
    assert [(hold.frontier, hold.purpose) for hold in frontiers.readers] == [(end["clock"], "spark stream")]
    reader.stop()
    compact(world.store, world.catalog.collections[NAME], since=world.store.upper(NAME), grace=0)
    with pytest.raises(FrontierError, match="the stream is at"):
        reader.latestOffset(end, None)
    reader.stop()


def test_stream_of_a_table_reports_retractions(world: World) -> None:
    from derive.spark.source import FlowOptions, FlowStreamReader

    table = world.store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    for diff in (1, -1):
        changes = TableRows(table).changes([((1,), diff)])
        world.store.tables.append(world.store.timeline.assign(1), {table.id: changes})
    reported = []
    for diffs in ("true", "false"):
        reader = FlowStreamReader(FlowOptions.of(ask(world, path=table.name, diffs=diffs)))
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, None))
        reported.append(lambda reader=reader, parts=parts: [b.to_pylist() for part in parts for b in reader.read(part)])

    assert reported[0]() == [[{"n": 1, "flow_diff": 1}, {"n": 1, "flow_diff": -1}]]
    with pytest.raises(UsageError, match="are retracted"):
        reported[1]()


def test_shares_of_tables_have_all_types(world: World) -> None:
    types = ("integer", "smallint", "timestamp with time zone", "jsonb", "bytea")
    columns = [TableColumn(name, name) for name in types]
    table = world.store.tables.create("sql/public/t", columns)
    row: Row = (1, 2, 1_000_000, '{"a": 1}', b"\0")
    begin = world.store.timeline.assign(1)
    world.store.tables.append(begin, {table.id: TableRows(table).changes([(row, 1)])})
    world.store.tables.flush()
    (share,) = shares_at(world.store, table, begin)
    (published,) = shares_between(world.store, table, begin, begin + 1)

    assert [*rows_of_share(share)] == [[row]]
    assert [*updates_of_share(published)] == [[(row, 1)]]


def test_shares_add_up_to_the_contents(world: World) -> None:
    for number in range(3):
        ingest(world, *({"who": f"w{index}", "amount": number} for index in range(20)))
    spec = world.catalog.collections[NAME]
    time = world.store.upper(NAME) - 1
    (share,) = shares_at(world.store, spec, time)
    rows = Counter(row for batch in rows_of_share(share) for row in batch)
    texts = [
        {text for part in reduced_locally(world.root, spec, share.read, world.root, chosen=ChosenRows((number, 3)))
         for text in part.texts.to_pylist()}
        for number in range(3)
    ]  # fmt: skip

    assert rows == Counter(row for batch in contents_at(world.store, spec, time) for row in batch)
    assert sum(map(len, texts)) == len(set.union(*texts)) == 20
    assert all(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "the collection is not named"),
        ({"when": "now"}, "no option 'when'"),
        ({"asOf": "x"}, "'x' is not a time such as"),
    ],
)
def test_options_are_checked(world: World, options: dict[str, str], message: str) -> None:
    from derive.spark.source import FlowOptions

    with pytest.raises(UsageError, match=message):
        FlowOptions.of(ask(world, **options))


# Reading a collection reduced on Spark gives the same bytes as in this process.


REDUCED = """
collections:
  s/values:
    key: [/k]
    projections: {p: {location: /p, partition: true}}
    schema:
      type: object
      required: [k, p]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, p: {type: string}, sum: {type: number, reduce: {strategy: sum}}}
"""


@pytest.mark.spark
def test_spark_and_this_process_give_the_same_bytes(spark: SparkExecutor, tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, REDUCED)))
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
def test_partitions_follow_from_the_size_of_a_read(documents: int, size: int, cores: int, expected: int) -> None:
    segment = Segment("s/values", "s/values/a.parquet", (), 1, documents, documents, size)

    assert partitions_of(SourceRead(0, 0, 0, documents + 1, (segment,)), cores) == expected


# Parquet that Spark writes: its times are INT96 by default.


TIMES = """
collections:
  p/rows: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}
"""
QUERY = """
SELECT timestamp_micros(253402300799999999) AS last, timestamp_micros(-62135596800000000) AS first,
       array(timestamp_micros(253402300799000000), NULL) AS list, named_struct('t', timestamp_micros(0)) AS struct,
       map('far', timestamp_micros(32503680000000000)) AS map
"""


@pytest.mark.torture  # test_times_of_int96_are_exact needs no Spark
@pytest.mark.spark
def test_timestamps_of_spark_options_are_parsed(
    spark: SparkExecutor, catalog_of: Callable[..., CatalogSpec], tmp_path: Path
) -> None:
    session, folder = spark.session, tmp_path / "written"
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        session.sql(QUERY).coalesce(1).write.parquet(str(folder))
    finally:
        session.conf.unset("spark.sql.parquet.outputTimestampType")
    (path,) = folder.glob("*.parquet")

    assert list(parquet_rows(str(path), catalog_of(TIMES).collections["p/rows"])) == [
        (
            1,
            {
                "last": "9999-12-31T23:59:59.999999000",
                "first": "0001-01-01T00:00:00.000000000",
                "list": ["9999-12-31T23:59:59.000000000", None],
                "struct": {"t": "1970-01-01T00:00:00.000000000"},
                "map": {"far": "3000-01-01T00:00:00.000000000"},
            },
        )
    ]
