"""Segments that a transform cannot need are not opened: here they are removed before the run, which does not notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.errors import StorageError
from derive.time.source_read import Segment

BASE = 1_700_000_000_000_000
SECOND = 1_000_000

CATALOG = """
collections:
  s/source:
    schema:
      type: object
      required: [id, p, at]
      properties: {id: {type: integer}, p: {type: [string, "null"]}, at: {type: string}}
    key: [/id]
    projections: {p: {location: /p, partition: true}}
  s/seen:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: see
          source: {name: s/source, OPTIONS}
          shuffle: any
          lambda: INSERT INTO seen VALUES ($id) RETURNING id;
"""
NOTHING = "partitions: {}"


def world_of(folder: Path, options: str) -> World:
    return World(folder / "data", load(write_catalog(folder, CATALOG.replace("OPTIONS", options))))


def load_batch(world: World, first: int) -> None:
    """Three documents, one of each logical partition and so of each segment, at `first` seconds."""
    documents = [
        {"id": 10 * first + place, "p": p, "at": format_rfc3339(BASE + first * SECOND + place)}
        for place, p in enumerate(["x", "y", None])
    ]
    world.ingest("s/source", documents)
    world.wall = BASE + (first + 1) * SECOND


def segments(world: World) -> list[Segment]:
    return world.store.segments(world.catalog.collections["s/source"])


def remove(world: World, kept: list[int]) -> int:
    """Remove every segment of the source that holds none of these ids; returns how many."""
    keep = {BASE + each // 10 * SECOND + each % 10 for each in kept}
    gone = [each for each in segments(world) if each.clock_min not in keep and (world.root / each.path).exists()]
    for each in gone:
        (world.root / each.path).unlink()
    return len(gone)


def seen(world: World) -> list[int]:
    return [json.loads(row[3])["id"] for row in world.rows("s/seen")]


AT_1 = format_rfc3339(BASE + SECOND)
AT_2 = format_rfc3339(BASE + 2 * SECOND)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("options", "read"),
    [
        ("partitions: {include: {p: [x]}}", [0, 10, 20]),
        ("partitions: {include: {p: [x, null]}}", [0, 2, 10, 12, 20, 22]),
        ("partitions: {exclude: {p: [x, null]}}", [1, 11, 21]),
        ("partitions: {include: {p: [x, y]}, exclude: {p: [y]}}", [0, 10, 20]),
        # `notBefore` is the first moment that is read
        (f"notBefore: {AT_1}", [10, 11, 12, 20, 21, 22]),
        # and `notAfter` the first that is not
        (f"notAfter: {AT_1}", [0, 1, 2]),
        (f"notBefore: {AT_1}, notAfter: {AT_2}, partitions: {{exclude: {{p: [y]}}}}", [10, 12]),
        ("partitions: {include: {p: [z]}}", []),
    ],
)
def test_only_segments_with_selected_documents_are_opened(
    options: str, read: list[int], shards: int, tmp_path: Path
) -> None:
    world = world_of(tmp_path, options)
    for first in range(3):
        load_batch(world, first)

    assert remove(world, read) == 9 - len(read)
    world.step(shards=shards)

    assert seen(world) == read


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_processed_is_not_opened_again(shards: int, tmp_path: Path) -> None:
    world = world_of(tmp_path, NOTHING)
    for first in range(3):
        load_batch(world, first)
        new = [10 * first, 10 * first + 1, 10 * first + 2]
        assert remove(world, new) == (3 if first else 0)
        world.step(shards=shards)

    assert seen(world) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_a_segment_that_is_needed_is_missed(tmp_path: Path) -> None:
    world = world_of(tmp_path, "partitions: {include: {p: [x]}}")
    load_batch(world, 0)
    assert remove(world, [1, 2]) == 1

    with pytest.raises(StorageError, match=r"p=x/ingest-.*\.parquet"):
        world.step()
