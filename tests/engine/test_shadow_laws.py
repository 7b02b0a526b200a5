"""Law: a swapped group is, byte for byte, that of a folder in which only the new catalog ever ran.

Replays explain the live derivations beside their shadows, the shadows, and the swapped group.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from conftest import LATER, World, write_catalog
from explained import assert_explained
from hypothesis import given
from hypothesis import strategies as st
from random_catalogs import SOURCE, catalogs, cyclic_catalogs, histories
from test_laws import SLOW, Documents, pieces, run_tasks

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import reduced_documents
from derive.engine.executor import InProcessExecutor
from derive.engine.shadow import begin_shadow, find_group
from derive.engine.swapping import Swapping
from derive.engine.task_reconciler import open_changing_run
from derive.protocol.specs import CatalogSpec
from derive.storage.compaction import compact

Contents = dict[tuple[str, int], list[tuple[bytes, str]]]


def contents(world: World, name: str, at: int) -> list[tuple[bytes, str]]:
    parts = reduced_documents(world.store, world.catalog.collections[name], ReadOptions(as_of=at))
    return [(key, text) for part in parts for _, _, key, text in part.tuples()]


def seen(world: World, catalog: CatalogSpec) -> Contents:
    """The contents of each derived collection at its last final time, and somewhat earlier."""
    found = {}
    for name in catalog.derivations:
        known = world.store.collection(name)
        for at in {known.upper - 1, known.upper - 700_000} if known and known.upper > 1_000_000 else ():
            found[name, at] = contents(world, name, at)
    return found


class Played:
    """A folder whose catalog is edited, and that derives a shadow of the edited group."""

    def __init__(self, world: World, edited: CatalogSpec, shards: int) -> None:
        group = find_group(world.store, edited)
        running = begin_shadow(world.store, group, is_held=False) if group else edited
        self.world, self.edited = world, edited
        self.before: Contents = {}
        self.run, reconciler = open_changing_run(running, world.store, InProcessExecutor(), shards=shards)
        self.swapping = Swapping(world.store, self.run, reconciler, group) if group else None
        world.catalog = running

    @property
    def at(self) -> int | None:
        return self.swapping.swapped if self.swapping else 0

    def step(self) -> None:
        self.run.step()
        assert [task.error for task in self.run.tasks.values() if task.error] == []
        if self.swapping is None or self.at is not None:
            return
        if not self.before:
            assert_explained(self.world)  # the live derivations and the shadows
        self.before |= seen(self.world, self.edited)
        while self.swapping.advance():
            if not self.run.step():
                break
        if self.at is not None:
            self.world.catalog = self.edited


@SLOW
@given(
    text=st.one_of(catalogs(), cyclic_catalogs()),
    other=st.one_of(catalogs(), cyclic_catalogs()),
    documents=histories(),
    shards=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_swapped_groups_equal_fresh_folders(
    text: str, other: str, documents: Documents, shards: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        world = World(path / "data", load(write_catalog(path, text)))
        edited = load(write_catalog(path, other))
        schedule = pieces(documents, data)
        begin = data.draw(st.integers(1, len(schedule)))
        for part, now in schedule[:begin]:
            world.ingest(SOURCE, part) if part else None
            world.wall = now
            run_tasks(world, None, shards)
        before = seen(world, world.catalog)
        played = Played(world, edited, shards)
        for part, now in [*schedule[begin:], ([], LATER), ([], LATER + 2_000_000), ([], LATER + 4_000_000)]:
            world.ingest(SOURCE, part) if part else None
            world.wall = max(world.wall, now)
            played.step()
        assert played.at is not None
        played.run.step()
        played.run.close()

        fresh = World(path / "fresh", edited)
        fresh.ingest(SOURCE, documents)
        fresh.wall = world.wall
        fresh.step(shards=1)
        assert world.digest() == fresh.digest()
        assert_explained(world)
        members = set(played.swapping._group.live) if played.swapping else set()
        for (name, at), rows in {**before, **played.before}.items():
            if name in members:
                assert contents(world, name, at) == (rows if at < played.at else contents(fresh, name, at)), (name, at)
        for name in members:
            compact(world.store, edited.collections[name], since=played.at, grace=0)
            assert contents(world, name, played.at) == contents(fresh, name, played.at)
        world.store.close()
        fresh.store.close()
