"""Segments in an object store: the same bytes as in a folder, few requests, and nothing lost or left by a crash."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from conftest import World, write_catalog
from forked_flowctl import Flowctl, flowctl
from object_server import Fault, ObjectServer

from derive.catalog import load
from derive.protocol.specs import CatalogSpec
from derive.spark.executor import SparkExecutor
from derive.storage.location import ObjectFolder, connected
from derive.storage.metadata.location import choose_location
from derive.time.extent import Limits

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


@pytest.mark.spark
def test_published_bytes_of_spark_in_an_object_store_equal_those_in_a_folder(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer, spark: SparkExecutor
) -> None:
    expected = digest_of(world_at(tmp_path / "folder", catalog, None))
    location = ObjectFolder(f"file://{tmp_path}/elsewhere")  # workers of the session lack the server's variables

    assert digest_of(world_at(tmp_path / "data", catalog, location), spark) == expected


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
        assert object_server.held.wait(120)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    object_server.go.set()  # the request of the process that was killed lands late
    assert object_server.landed.wait(60)
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


def _json(document: dict[str, Any]) -> str:
    return f'{{"id":{document["id"]},"customer":"{document["customer"]}","at":"{document["at"]}"}}'


@pytest.mark.parametrize("segments", [None, "s3://flow/moved"])
def test_backup_of_an_object_store_is_restored_anywhere(
    tmp_path: Path, catalog: CatalogSpec, object_server: ObjectServer, segments: str | None
) -> None:
    from derive.backup import Finding, Verification, back_up, restore, verify_backup

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
    verification = Verification(restored.root, restored.store.location, restored.store.garbage.unknown)
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
