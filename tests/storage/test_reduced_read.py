"""Reading a collection reduced in this process: what the oracle of contents gives, whatever memory there is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from conftest import World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction_oracle import contents_in_memory
from test_consolidation import CHANGES, LAST, Change, consolidated, publish
from test_contents_fold import DOCUMENTS, SELECTORS, world_of

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.reduced import is_little, read_reduced, reduced_locally
from derive.document.exact import dump_exact
from derive.errors import FencedError, UsageError
from derive.protocol.specs import CollectionSpec, Document, SelectorSpec
from derive.storage.location import Location, blobs_of
from derive.storage.metadata.owner import Door
from derive.storage.segments.rows import ContentRows
from derive.storage.store import Store
from derive.time.positions import Segment, SourceRead

MEMORY = st.sampled_from([0, 2000, 1 << 20])

Contents = list[tuple[int, int, bytes, str]]
"""Clock, seq, packed key and JSON text."""


def here(store: Store, spec: CollectionSpec, options: ReadOptions, memory: int = 1 << 20) -> Contents:
    with tempfile.TemporaryDirectory() as scratch:
        reduced = partial(reduced_locally, scratch=Path(scratch), memory=memory)
        rows = [row for part in read_reduced(store, spec, options, reduced) for row in part.tuples()]
        assert os.listdir(scratch) == []
    return rows


def oracle(store: Store, spec: CollectionSpec, options: ReadOptions) -> Contents:
    lasts = {key: (clock, seq) for rows in read_rows(store, spec, options) for clock, seq, key, _ in rows.tuples()}
    contents = contents_in_memory(spec, read_rows(store, spec, options))
    return [(*lasts[key], key, dump_exact(document).decode()) for key, document in contents]


@settings(max_examples=examples(60, 10))
@given(st.lists(DOCUMENTS, max_size=9), st.integers(1, 10), st.sampled_from(SELECTORS), MEMORY)
def test_reduced_read_equals_the_oracle(
    documents: list[Document], time: int, selector: SelectorSpec, memory: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = world_of(Path(name), documents)
        spec = world.catalog.collections["f/values"]
        for options in (
            ReadOptions(selector=selector),
            ReadOptions(as_of=min(time, len(documents)), selector=selector),
            ReadOptions(since=time, selector=selector),
        ):
            assert here(world.store, spec, options, memory) == oracle(world.store, spec, options)
        world.store.close()


@settings(max_examples=examples(60, 10))
@given(CHANGES, st.integers(1, LAST), MEMORY)
def test_multiset_read_equals_the_oracle(changes: list[Change], border: int, memory: int) -> None:
    added = [(clock, key, value, abs(diff)) for clock, key, value, diff in changes]
    taken = [(LAST, key, value, -min(diff, 100)) for _, key, value, diff in added[::2]]
    with tempfile.TemporaryDirectory() as name:
        store, spec = consolidated(Path(name))
        publish(store, spec, [*added, *taken], range(border))
        publish(store, spec, [*added, *taken], range(border, LAST + 1))
        for selector in (SelectorSpec(), SelectorSpec(include={"p": ("a",)})):
            for options in (ReadOptions(selector=selector), ReadOptions(as_of=border, selector=selector)):
                assert here(store, spec, options, memory) == oracle(store, spec, options)
        store.close()


CATALOG = """
collections:
  r/plain:
    key: [/k]
    schema: {type: object, required: [k], properties: {k: {type: integer}}}
"""


def plain_world(folder: Path, count: int) -> World:
    world = World(folder / "data", load(write_catalog(folder, CATALOG)))
    world.claim("r/plain")
    for first in (0, count):
        world.ingest("r/plain", [{"k": first + number} for number in range(count)], None, Door.TEST)
        world.wall += 3_000_000
    world.store.seal(["r/plain"], world.wall)
    return world


def test_stopped_reduced_read_leaves_neither_files_nor_capability(tmp_path: Path) -> None:
    world = plain_world(tmp_path, 1000)
    spec = world.catalog.collections["r/plain"]
    scratch = tmp_path / "scratch"

    parts = read_reduced(world.store, spec, ReadOptions(), partial(reduced_locally, scratch=scratch, memory=2000))
    with closing(parts):
        assert next(row for part in parts for row in part.tuples())[3] == '{"k":0}'
        held = world.store.history.frontiers("r/plain")
        assert held is not None
        assert len(held.readers) == 1

    left = world.store.history.frontiers("r/plain")
    assert left is not None
    assert (left.readers, os.listdir(scratch)) == ((), [])
    world.store.close()


def test_collection_reset_during_a_read_is_reported(tmp_path: Path) -> None:
    world = plain_world(tmp_path, 3)
    spec = world.catalog.collections["r/plain"]

    def reduced(location: Location, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
        world.store.reset(["r/plain"])
        blobs_of(location).delete(segment.path for segment in read.segments)
        return reduced_locally(location, spec, read, tmp_path)

    with pytest.raises(FencedError, match="'r/plain' was reset during the read"):
        list(read_reduced(world.store, spec, ReadOptions(), reduced))
    world.store.close()


def test_empty_collections_are_read_as_empty(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    spec = world.catalog.collections["r/plain"]

    with pytest.raises(UsageError, match="nothing is stored in collection 'r/plain' yet"):
        here(world.store, spec, ReadOptions())

    world.store.create(spec)
    assert here(world.store, spec, ReadOptions()) == []
    world.store.close()


@pytest.mark.parametrize(
    ("documents", "most", "cores", "expected"),
    [
        (5_000, None, 2, True),
        (1_000_000, None, 2, True),
        (1_000_000_000, None, 16, False),
        (1_000_000_000, None, None, False),
        (10, 10, 2, True),
        (11, 10, 2, False),
        (1, 0, 2, False),
    ],
)
def test_small_reads_are_recognized(documents: int, most: int | None, cores: int | None, expected: bool) -> None:
    segment = Segment("r/plain", "r/plain/a.parquet", (), 1, documents, documents, 10 * documents)

    assert is_little(SourceRead(0, 0, 0, documents + 1, (segment,)), most, cores, 5.0) is expected
