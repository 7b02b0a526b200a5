"""Segments in an object store: the same bytes as in a folder, few requests, and nothing lost or left by a crash."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import Any

import pyarrow as pa
import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl, flowctl
from object_server import Fault, Kind, ObjectServer, Stored
from patience import PATIENCE_SECONDS

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_documents
from derive.errors import SegmentError, WorkerError
from derive.protocol.specs import CatalogSpec
from derive.spark.executor import SparkExecutor, reduced_on_spark
from derive.spark.worker_checks import at_location
from derive.storage.location import ObjectFolder, claim, connected
from derive.storage.metadata.location import choose_location
from derive.storage.segments.partition import NO_PARTITION
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ContentRows, WrittenRows
from derive.storage.segments.writer import SegmentWriter, WriteSizes
from derive.time import BEGINNING, END_OF_TIME
from derive.time.extent import Limits
from derive.time.positions import SourceRead

pytest.importorskip("obstore")

CATALOG = """
collections:
  k/orders:
    key: [/id]
    schema:
      type: object
      required: [id, customer, at]
      properties: { id: { type: integer }, customer: { type: string }, at: { type: string }, amount: { type: number } }
  k/marks:
    key: [/id]
    schema:
      type: object
      required: [id, odd]
      properties: { id: { type: integer }, odd: { type: integer }, customer: { type: string } }
    projections: { odd: { location: /odd, partition: true } }
    derive:
      using: { sqlite: {} }
      transforms:
        - { name: mark, source: k/orders, shuffle: any, lambda: "SELECT $id, $id % 2 AS odd, $customer;" }
  k/totals:
    key: [/customer]
    schema:
      type: object
      required: [customer]
      reduce: { strategy: merge }
      properties: { customer: { type: string }, count: { type: integer, reduce: { strategy: sum } } }
    derive:
      using: { sqlite: {} }
      transforms:
        - { name: count, source: k/marks, shuffle: { key: [/customer] }, lambda: "SELECT $customer, 1 AS count;" }
"""
URL = "s3://flow/data"
LOCATION = ObjectFolder(URL)


def documents(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": number, "customer": f"c{number % 7}", "at": f"2023-11-14T22:{13 + number // 60:02}:{number % 60:02}Z"}
        for number in range(first, first + count)
    ]


@pytest.fixture
def catalog(tmp_path: Path) -> CatalogSpec:
    return load(write_catalog(tmp_path, CATALOG))


def world_at(folder: Path, catalog: CatalogSpec, location: ObjectFolder | None) -> World:
    if location is not None:
        choose_location(folder, location)
    return World(folder, catalog)


def digest_of(world: World, executor: SparkExecutor | None = None) -> dict[str, str]:
    """The digest after several transactions with two shards, as another process reads it."""
    for first in (0, 200):
        world.ingest("k/orders", documents(200, first))
    world.step(executor, shards=2, limits=Limits(documents=70))
    world.store.close()
    connected.cache_clear()
    reader = World(world.root, world.catalog)
    digest = reader.digest()
    reader.store.close()
    return digest


FAULTS = [
    Fault("PUT", "lost", times=2, after=3),
    Fault("PUT", "503", after=9),
    Fault("PUT", "refused", after=12),
    Fault("PUT", "409", after=14),
    Fault("GET", "cut", after=2),
    Fault("GET", "503"),
    Fault("LIST", "503"),
]


def test_published_bytes_in_an_object_store_equal_those_in_a_folder(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer
) -> None:
    expected = digest_of(world_at(tmp_path / "folder", catalog, None))
    object_server.faults += FAULTS

    assert digest_of(world_at(tmp_path / "objects", catalog, LOCATION)) == expected
    assert object_server.faults == []
    assert not (tmp_path / "objects" / "collections").exists()

    file = ObjectFolder(f"file://{tmp_path}/elsewhere")
    assert digest_of(world_at(tmp_path / "file", catalog, file)) == expected
    assert (tmp_path / "elsewhere" / "collections" / "k").is_dir()
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(30))
def test_published_bytes_are_equal_after_random_faults(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer, seed: int
) -> None:
    random = Random(seed)
    expected = digest_of(world_at(tmp_path / "folder", catalog, None))
    kinds: dict[str, list[Kind]] = {
        "PUT": ["503", "409", "lost", "refused"],
        "GET": ["503", "cut", "refused"],
        "LIST": ["503", "cut", "refused"],
        "HEAD": ["503", "refused"],
    }
    for _ in range(40):
        method = random.choice(list(kinds))
        object_server.faults.append(Fault(method, random.choice(kinds[method]), after=random.randrange(30)))

    assert digest_of(world_at(tmp_path / "objects", catalog, LOCATION)) == expected


@pytest.mark.torture  # test_shards_apart.py has workers without a folder
@pytest.mark.spark
def test_published_bytes_of_spark_in_an_object_store_equal_those_in_a_folder(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer, spark: SparkExecutor
) -> None:
    expected = digest_of(world_at(tmp_path / "folder", catalog, None))
    location = ObjectFolder(f"file://{tmp_path}/elsewhere")  # workers of the session lack the server's variables

    world = world_at(tmp_path / "data", catalog, location)
    assert digest_of(world, spark) == expected

    reader = World(world.root, catalog)
    spec, options = catalog.collections["k/totals"], ReadOptions()
    on_spark = read_reduced(reader.store, spec, options, partial(reduced_on_spark, spark))
    assert texts_of(on_spark) == texts_of(reduced_documents(reader.store, spec, options))
    reader.store.close()


def test_worker_needs_the_segments_of_its_data_folder(tmp_path: Path, object_server: ObjectServer) -> None:
    claim(LOCATION, "one")

    def stage(number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        return packets

    before = object_server.requests.total()
    for number in range(3):
        assert list(at_location(stage, LOCATION, "one", number, iter(()), 0)) == []
    assert object_server.requests.total() == before + 1  # a process checks once
    for location, identifier, cause in (
        (LOCATION, "another", "has the segments of another data folder"),
        (ObjectFolder("s3://flow/empty"), "one", "has no segments of flowctl"),
    ):
        with pytest.raises(WorkerError, match=f"on host .* cannot read the segments at {location}: .*{cause}"):
            at_location(stage, location, identifier, 0, iter(()), 0)


def texts_of(parts: Iterable[ContentRows]) -> list[str]:
    return [text for rows in parts for text in rows.texts.to_pylist()]


def test_next_segments_are_read_while_the_caller_works(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer
) -> None:
    world = world_at(tmp_path / "data", catalog, LOCATION)
    for first in range(0, 120, 10):
        world.ingest("k/orders", documents(10, first))
    segments = world.store.segments(catalog.collections["k/orders"])
    read = SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(segments))
    connected.cache_clear()
    object_server.requests.clear()
    object_server.meeting = threading.Event()  # the first request is answered when another one has come

    assert sum(map(len, read_sorted(LOCATION, [read]))) == 120
    assert object_server.requests == {"GET": 12}

    object_server.meeting = None
    object_server.objects[f"data/{segments[5].path}"] = Stored(b"damaged", {})
    connected.cache_clear()
    with pytest.raises(SegmentError, match="it has 7 bytes instead of"):
        list(read_sorted(LOCATION, [read]))
    world.store.close()


def test_writer_holds_few_bytes_of_objects(tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer) -> None:
    spec = catalog.collections["k/orders"]
    writer = SegmentWriter(LOCATION, spec, "few", WriteSizes(row_group=10, held_bytes=20_000))
    for first in range(0, 200, 10):
        keys, noise = [bytes([first])] * 10, [f'{{"id":1,"noise":"{os.urandom(500).hex()}"}}' for _ in range(10)]
        clocks = list(range(first + 1, first + 11))
        writer.write(WrittenRows.from_columns(clocks, [0] * 10, [1] * 10, keys, noise, [NO_PARTITION] * 10))
    segments = writer.close()

    assert len(segments) > 2
    assert sum(segment.documents for segment in segments) == 200
    assert max(segment.bytes for segment in segments) < 80_000
    writer.abort()
    assert object_server.objects == {}


@pytest.mark.both_databases
def test_transaction_stores_each_segment_with_one_request(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer
) -> None:
    world = world_at(tmp_path / "data", catalog, LOCATION)
    world.ingest("k/orders", documents(100))
    run = world.run(shards=2)
    object_server.requests.clear()
    before = len(object_server.objects)

    run.step()
    run.close()

    written = len(object_server.objects) - before
    assert written >= 3  # two logical partitions, and the totals
    assert object_server.requests["PUT"] == written
    assert object_server.requests["GET"] == 0  # this process has written all that it reads
    world.store.close()


def read(folder: Path, collection: str, environment: dict[str, str]) -> str:
    status, out, err = flowctl(folder, "collections", "read", "--collection", collection, env=environment)
    assert (status, err) == (0, "")
    return out


def test_run_that_is_killed_in_a_creation_goes_on(tmp_path: Path, object_server: ObjectServer) -> None:
    write_catalog(tmp_path, CATALOG)
    environment, lines = dict(os.environ), "".join(f"{line}\n" for line in map(_json, documents(50)))
    load_all = ("ingest", "--collection", "k/orders", "--clock", "/at", "--format", "json", "-")
    assert flowctl(tmp_path, *load_all, "--segments", URL, text=lines, env=environment)[0] == 0
    object_server.holds = "k/totals@"

    with Flowctl(
        ["run", "--until-idle"], stdout=PIPE, stderr=PIPE, encoding="utf-8", cwd=tmp_path, env=environment
    ) as run:
        assert object_server.held.wait(PATIENCE_SECONDS)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    object_server.go.set()  # the request of the process that was killed lands late
    assert object_server.landed.wait(PATIENCE_SECONDS)
    late = {key for key in object_server.objects if "k/totals@" in key}
    assert len(late) == 1

    assert flowctl(tmp_path, "run", "--until-idle", env=environment)[0] == 0
    assert flowctl(tmp_path, "verify", env=environment) == (0, "", "nothing is wrong\n")
    assert late.isdisjoint(object_server.objects)
    clean = tmp_path / "clean"
    clean.mkdir()
    write_catalog(clean, CATALOG)
    assert flowctl(clean, *load_all, text=lines, env=environment)[0] == 0
    assert flowctl(clean, "run", "--until-idle", env=environment)[0] == 0
    for collection in ("k/marks", "k/totals"):
        assert read(tmp_path, collection, environment) == read(clean, collection, environment)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("presses", [1, 2])
def test_interrupted_run_gives_up_a_request_that_hangs(
    tmp_path: Path, object_server: ObjectServer, presses: int
) -> None:
    write_catalog(tmp_path, CATALOG)
    environment, lines = dict(os.environ), "".join(f"{line}\n" for line in map(_json, documents(50)))
    load_all = ("ingest", "--collection", "k/orders", "--clock", "/at", "--format", "json", "-", "--segments", URL)
    assert flowctl(tmp_path, *load_all, text=lines, env=environment)[0] == 0
    object_server.holds = "k/totals@"
    try:
        with Flowctl(
            ["run", "--until-idle"], stdout=PIPE, stderr=PIPE, encoding="utf-8", cwd=tmp_path, env=environment
        ) as run:
            assert object_server.held.wait(PATIENCE_SECONDS)
            for _ in range(presses):
                os.kill(run.pid, signal.SIGINT)
            _, said = run.communicate(timeout=PATIENCE_SECONDS)
        assert (run.returncode, "Traceback" in said) == (130, False)
    finally:
        object_server.go.set()


def _json(document: dict[str, Any]) -> str:
    return f'{{"id":{document["id"]},"customer":"{document["customer"]}","at":"{document["at"]}"}}'


@pytest.mark.sampled(1)
@pytest.mark.parametrize("segments", [None, "s3://flow/moved"])
def test_backup_of_an_object_store_is_restored_anywhere(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer, segments: str | None
) -> None:
    from derive.backup import Finding, Verification, back_up, verify_backup
    from derive.restore import restore

    world = world_at(tmp_path / "data", catalog, LOCATION)
    expected = digest_of(world)
    world = World(tmp_path / "data", catalog)
    back_up(world.store, tmp_path / "backup")
    world.store.close()
    assert list(verify_backup(tmp_path / "backup")) == []

    restore(tmp_path / "backup", tmp_path / "restored", segments=ObjectFolder(segments) if segments else None)

    restored = World(tmp_path / "restored", catalog)
    assert restored.store.location == (ObjectFolder(segments) if segments else tmp_path / "restored")
    object_server.objects = {key: stored for key, stored in object_server.objects.items() if key.startswith("moved/")}
    assert restored.digest() == expected
    verification = Verification(restored.store)
    assert list(verification.run()) == []
    if segments:
        key = next(key for key in object_server.objects if "k/totals@" in key)
        del object_server.objects[key]
        path = key.removeprefix("moved/")
        assert list(verification.run()) == [Finding("missing", path, "the object is missing", "k/totals")]
    restored.store.close()


def test_garbage_of_a_crashed_writer_is_found_by_its_name(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer
) -> None:
    world = world_at(tmp_path / "data", catalog, LOCATION)
    world.ingest("k/orders", documents(40))
    world.step(shards=1)
    capability, _ = world.store.acquire_task("k/totals", 1, ["k/totals"])
    for key in ("k/totals@", "k/totals@quarantine@"):
        object_server.objects[f"data/collections/{key}/{capability.id}.1-0-slice-0-0.parquet"] = next(
            iter(object_server.objects.values())
        )
    before = Counter(object_server.requests)

    assert world.store.garbage.collect_uncommitted("k/totals") == 2

    assert (object_server.requests - before)["DELETE"] == 1
    assert world.store.garbage.unknown() == []
    assert not any(capability.id in key for key in object_server.objects)
    world.store.close()
