"""Frontiers, capabilities, ingestion and ordered reading, on real files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from conftest import World

from derive.contents.reads import ReadOptions, read_rows
from derive.errors import DocumentError, FencedError, FrontierError, StorageError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import csv_rows, json_lines
from derive.storage.metadata.descriptions import CollectionUpdate

pytestmark = pytest.mark.both_databases

CATALOG = """
collections:
  s/events:
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, at: {type: string}, group: {type: [string, "null"]}}
    key: [/id]
    projections: {group: {location: /group, partition: true}}
"""


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def at(seconds: int) -> str:
    return f"1970-01-01T00:00:{seconds:02d}Z"


def test_loaded_history_numbers_equal_times(world: World) -> None:
    world.ingest("s/events", [{"id": 1, "at": at(5)}, {"id": 2, "at": at(5)}, {"id": 3, "at": at(6)}])

    assert [row[:2] for row in world.rows("s/events")] == [(5_000_000, 0), (5_000_000, 1), (6_000_000, 0)]


def test_history_below_upper_is_refused(world: World) -> None:
    world.ingest("s/events", [{"id": 1, "at": at(5)}])

    with pytest.raises(DocumentError, match="test:1: the time .* is below the upper of 's/events'"):
        world.ingest("s/events", [{"id": 2, "at": at(5)}])
    with pytest.raises(DocumentError, match="are not valid:\n  test:2: .*\n  … and 1 more") as caught:
        world.ingest("s/events", [{"id": 1, "at": at(6)}, {"id": 2, "at": at(5)}, {"id": 3, "at": at(5)}])
    assert str(caught.value.hint).endswith("documents get the present time: leave out --clock")


def test_descending_times_are_refused(world: World) -> None:
    with pytest.raises(DocumentError, match="test:2: .* sort the documents by time"):
        world.ingest("s/events", [{"id": 1, "at": at(5)}, {"id": 2, "at": at(4)}])


def test_a_file_is_loaded_as_a_whole_or_not_at_all(world: World) -> None:
    lines = [b'{"id": 1}', b'{"id": "x"}', b"", b"{", b'{"id": 2}']

    with pytest.raises(DocumentError) as caught:
        Ingestion(world.store, world.catalog.collections["s/events"]).load(
            "bad.jsonl", json_lines(io.BytesIO(b"\n".join(lines)))
        )

    assert "bad.jsonl: 2 documents are not valid" in caught.value.message
    assert "bad.jsonl:2: document [\"x\"] of 's/events' fails its schema at '/id'" in caught.value.message
    assert "bad.jsonl:4: not JSON" in caught.value.message
    known = world.store.collection("s/events")
    assert known is not None
    assert known.documents == 0
    assert not list((world.root / "collections").rglob("*.parquet"))


def test_csv_takes_types_from_the_schema(world: World, tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("id,group\n7,12\n8,\n")
    spec = world.catalog.collections["s/events"]
    with file.open("rb") as stream:
        found = list(csv_rows(stream, spec, "events.csv"))

    assert found == [(2, {"id": 7, "group": "12"}), (3, {"id": 8})]


def test_logical_partitions_are_hive_folders(world: World) -> None:
    world.ingest("s/events", [{"id": 1, "group": "a b"}, {"id": 2, "group": None}, {"id": 3, "group": ".."}], None)

    folders = {file.parent.name for file in (world.root / "collections").rglob("*.parquet")}

    assert folders == {"group=a b", "group=__HIVE_DEFAULT_PARTITION__", "group=%2E%2E"}


def test_l5_a_superseded_writer_commits_nothing(world: World) -> None:
    world.store.create(world.catalog.collections["s/events"])
    older, _ = world.store.acquire_task("s/events", 1, ["s/events"])
    newer, _ = world.store.acquire_task("s/events", 1, ["s/events"])
    update = CollectionUpdate("s/events", [], 5_000_000)

    with pytest.raises(FencedError, match="another flowctl runs 's/events'"):
        world.store.commit_task(older, None, [update])
    assert world.store.commit_task(newer, None, [update]).frontiers == {"s/events": 5_000_000}


def test_read_at_a_future_time_is_refused(world: World) -> None:
    world.ingest("s/events", [{"id": 1, "at": at(5)}])
    spec = world.catalog.collections["s/events"]

    with pytest.raises(FrontierError, match="is known only before 1970-01-01T00:00:05.000001Z, and not yet at"):
        list(read_rows(world.store, spec, ReadOptions(as_of=6_000_000)))
    assert sum(len(rows) for rows in read_rows(world.store, spec, ReadOptions(as_of=5_000_000))) == 1


def other_spec(world: World, catalog_of: Callable[..., CatalogSpec]) -> CollectionSpec:
    text = CATALOG.replace("key: [/id]", "key: [/id, /at]").replace("projections", "# projections")
    return catalog_of(text).collections["s/events"]


def test_key_and_partitions_of_stored_documents_cannot_change(
    world: World, catalog_of: Callable[..., CatalogSpec]
) -> None:
    world.ingest("s/events", [{"id": 1}], None)

    with pytest.raises(StorageError) as caught:
        world.store.create(other_spec(world, catalog_of))
    assert caught.value.message == (
        'collection \'s/events\' was stored with key ["/id"] and with logical partitions [["group","/group"]], and'
        ' the catalog now says ["/id","/at"] and []'
    )
    assert caught.value.hint == "use another name, or remove the data folder to start over"


def test_key_and_partitions_of_an_empty_collection_can_change_without_writers(
    world: World, catalog_of: Callable[..., CatalogSpec]
) -> None:
    world.store.create(world.catalog.collections["s/events"])
    writer = world.store.acquire_write("s/events")
    other = other_spec(world, catalog_of)

    with pytest.raises(StorageError, match="was stored with key"):
        world.store.create(other)
    world.store.capabilities.release(writer)
    world.store.create(other)
    world.store.create(other)
    with pytest.raises(StorageError, match="was stored with key"):
        world.store.acquire_write("s/events")
        world.store.create(world.catalog.collections["s/events"])


def test_documents_are_stored_unchanged(world: World) -> None:
    document = {"id": 1, "group": 'q"\\ü\u2028', "at": at(9)}
    world.ingest("s/events", [document])

    assert [orjson.loads(row[3]) for row in world.rows("s/events")] == [document]
