"""Compaction: fewer files, and the same collection at every time."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from conftest import LATER, World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339
from derive.errors import StorageError
from derive.protocol.specs import SelectorSpec
from derive.storage.capability.table import Capability, TaskCapability
from derive.storage.compaction import Compaction, Forecast, MergeSizes, choose, compact, forecast
from derive.storage.history import History
from derive.storage.metadata.owner import Door
from derive.storage.metadata.sqlite_tables import FORMAT
from derive.storage.store import Store
from derive.time.positions import Segment

CATALOG = """
collections:
  c/events:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, group: {type: string}, at: {type: string}}}
    key: [/id]
    projections: {group: {location: /group, partition: true}}
"""


def world_of(folder: Path) -> World:
    return World(folder / "data", load(write_catalog(folder, CATALOG)))


def ingest(world: World, first: int, count: int) -> None:
    documents = [
        {"id": number, "group": "ab"[number % 2], "at": format_rfc3339(1_000_000 * number)}
        for number in range(first, first + count)
    ]
    world.ingest("c/events", documents, door=Door.TEST)


def files(world: World) -> list[str]:
    return sorted(each.name.partition("-")[0] for each in world.root.rglob("*.parquet"))


@settings(max_examples=examples(40, 6), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8), st.integers(0, 40))
def test_compaction_does_not_change_contents_at_any_time(batches: list[tuple[int, bool]], as_of: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "plain").mkdir()
        (Path(name) / "compacted").mkdir()
        plain, compacted = world_of(Path(name) / "plain"), world_of(Path(name) / "compacted")
        spec = plain.catalog.collections["c/events"]
        first = 0
        for count, merge in batches:
            for world in (plain, compacted):
                ingest(world, first, count)
            first += count
            if merge:
                compact(compacted.store, spec, grace=0)
        for world in (plain, compacted):
            world.store.seal(["c/events"], LATER)

        assert compacted.rows("c/events") == plain.rows("c/events")
        for options in (
            ReadOptions(as_of=as_of * 1_000_000),
            ReadOptions(since=as_of * 1_000_000, selector=SelectorSpec(include={"group": ("a",)})),
        ):
            found = [
                [row for rows in read_rows(world.store, spec, options) for row in rows.tuples()]
                for world in (plain, compacted)
            ]
            assert found[0] == found[1]
        for world in (plain, compacted):
            world.store.close()  # or its lock of the folder is renewed while that is removed


def test_compaction_keeps_one_segment_per_partition_and_removes_old_files(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    spec = world.catalog.collections["c/events"]
    for first in (0, 10, 20):
        ingest(world, first, 10)

    shown: list[tuple[str, int, int]] = []
    assert compact(world.store, spec, progress=lambda *step: shown.append(step)) == Compaction("c/events", 6, 2, 30, 30)
    assert world.store.history.documents() == {"c/events": 30}
    assert (shown[0], sorted(shown) == shown, shown[-1]) == (("merge", 0, 30), True, ("merge", 30, 30))
    assert files(world) == ["compact"] * 2 + ["ingest"] * 6
    assert compact(world.store, spec, grace=0) == Compaction("c/events", 2, 2, 30, 30)
    assert files(world) == ["compact"] * 2


class Killed(History):
    """The process ends before the metadata commit that would replace segments."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._metadata)

    @override
    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment], capability: TaskCapability) -> bool:
        raise KeyboardInterrupt


def test_files_of_an_unfinished_compaction_are_removed(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    spec = world.catalog.collections["c/events"]
    ingest(world, 0, 2)
    ingest(world, 2, 2)

    history = world.store.history
    world.store.history = Killed(world.store)
    with pytest.raises(KeyboardInterrupt):
        compact(world.store, spec)
    world.store.history = history
    before = world.rows("c/events")
    assert "compact" in files(world)
    compact(world.store, spec, grace=0)

    assert files(world) == ["compact"] * 2
    assert world.rows("c/events") == before


class Unknown(History):
    """The metadata database is lost after the commit, so its outcome is unknown."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._metadata)

    @override
    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment], capability: TaskCapability) -> bool:
        super().replace(name, old, new, capability)
        raise StorageError("the outcome is unknown")


def test_files_of_a_compaction_with_an_unknown_outcome_stay(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    spec = world.catalog.collections["c/events"]
    ingest(world, 0, 2)
    ingest(world, 2, 2)
    before, history = world.rows("c/events"), world.store.history

    world.store.history = Unknown(world.store)
    with pytest.raises(StorageError, match="the outcome is unknown"):
        compact(world.store, spec)
    world.store.history = history
    compact(world.store, spec, grace=0)

    assert world.rows("c/events") == before


class ResetFirst(History):
    """Another process resets the collection before its segments are replaced."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._metadata)
        self._store = store

    @override
    def replace(self, name: str, old: Sequence[Segment], new: Sequence[Segment], capability: TaskCapability) -> bool:
        self._store.reset([name])
        return super().replace(name, old, new, capability)


def test_collection_reset_during_compaction_stays_empty(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.claim("c/events")
    spec = world.catalog.collections["c/events"]
    ingest(world, 0, 2)
    ingest(world, 2, 2)

    world.store.history = ResetFirst(world.store)
    done = compact(world.store, spec)

    assert done is not None
    assert done.after == 0
    assert files(world) == ["ingest"] * 4


def test_large_segments_are_not_compacted() -> None:
    sizes = MergeSizes(small_documents=10, large_documents=15)
    segments = [
        Segment("c/events", str(place), (), place, place, size, 1)
        for place, size in enumerate([5, 5, 9, 9, 10, 1, 20, 1, 1, 1])
    ]

    assert [[each.path for each in group] for group in choose(segments, 2, sizes)] == [["0", "1", "2"], ["7", "8", "9"]]
    assert choose(segments, 4, sizes) == []


def test_newer_metadata_is_refused(tmp_path: Path) -> None:
    """Older ones go on: tests/engine/test_formats.py."""
    Store(tmp_path).close()
    db = apsw.Connection(str(tmp_path / "metadata.db"))
    db.execute("UPDATE format SET version = ?", (FORMAT + 1,))
    db.close()
    with pytest.raises(StorageError, match=f"has format {FORMAT + 1}, and this flowctl reads format {FORMAT}"):
        Store(tmp_path)


# What `compact --dry-run` says is what `compact` does, and saying it changes nothing.


FORECAST = """
collections:
  c/events:
    schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
"""


def forecast_world(folder: Path, *counts: int) -> World:
    """A segment for each count, a document each second."""
    world = World(folder / "data", load(write_catalog(folder, FORECAST)))
    first = 1
    for count in counts:
        times = [(second, format_rfc3339(1_000_000 * second)) for second in range(first, first + count)]
        world.ingest("c/events", [{"id": second % 3, "at": at} for second, at in times])
        first += count
    return world


def snapshot(world: World) -> tuple[object, ...]:
    files = sorted(str(each) for each in world.root.rglob("*.parquet"))
    return files, world.store.collection("c/events"), world.store.history.frontiers("c/events")


def test_forecast_reports_merges_and_reductions(tmp_path: Path) -> None:
    world = forecast_world(tmp_path, 5, 5, 5)
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
def test_forecast_equals_compaction(counts: list[int], since: int, held: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = forecast_world(Path(name), *counts)
        spec = world.catalog.collections["c/events"]
        if held is not None:
            world.read_capability("c/events", held * 1_000_000)
        reported = forecast(world.store, spec, since=since * 1_000_000)
        done = compact(world.store, spec, since=since * 1_000_000)

        assert reported is not None
        assert done is not None
        assert (reported.segments, reported.documents, reported.since) == (
            done.before,
            done.documents_before,
            done.since,
        )
        assert reported.held_by == done.held_by
        assert done.documents_before - done.documents_after == max(0, reported.reduced - 3)
