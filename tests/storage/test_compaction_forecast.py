"""What `compact --dry-run` says is what `compact` does, and saying it changes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from conftest import World, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.storage.capability.table import Capability
from derive.storage.compaction import compact
from derive.storage.forecast import Forecast, forecast

CATALOG = """
collections:
  c/events:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
"""


def world_of(folder: Path, *counts: int) -> World:
    """A segment for each count, a document each second."""
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    first = 1
    for count in counts:
        times = [(second, format_rfc3339(1_000_000 * second)) for second in range(first, first + count)]
        world.ingest("c/events", [{"id": second % 3, "at": at} for second, at in times])
        first += count
    return world


def snapshot(world: World) -> tuple[object, ...]:
    files = sorted(str(each) for each in world.root.rglob("*.parquet"))
    return files, world.store.collection("c/events"), world.store.history.frontiers("c/events")


def test_what_would_be_merged_and_reduced_is_told(tmp_path: Path) -> None:
    world = world_of(tmp_path, 5, 5, 5)
    spec = world.catalog.collections["c/events"]
    before = snapshot(world)

    assert forecast(world.store, spec) == Forecast("c/events", 3, 3, 15, 0, 0)
    # Seven of the documents are before the eighth second, and the third segment is merged by itself: with none.
    assert forecast(world.store, spec, since=8_000_000) == Forecast("c/events", 3, 2, 15, 7, 8_000_000)
    capability = world.read_capability("c/events", 4_000_000)
    held = forecast(world.store, spec, since=8_000_000)
    assert held is not None
    assert (held.reduced, held.since) == (3, 4_000_000)
    assert [type(each) for each in held.held_by] == [Capability]
    world.store.capabilities.release(capability)
    assert snapshot(world) == before


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 20), st.none() | st.integers(0, 12))
def test_what_is_told_is_what_is_done(counts: list[int], since: int, held: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = world_of(Path(name), *counts)
        spec = world.catalog.collections["c/events"]
        if held is not None:
            world.read_capability("c/events", held * 1_000_000)
        told = forecast(world.store, spec, since=since * 1_000_000)
        done = compact(world.store, spec, since=since * 1_000_000)

        assert told is not None
        assert done is not None
        assert (told.segments, told.documents, told.since) == (done.before, done.documents_before, done.since)
        assert told.held_by == done.held_by
        assert done.documents_before - done.documents_after == max(0, told.reduced - 3)
