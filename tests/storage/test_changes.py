"""Whoever waits for a commit is told: at once by this store, and soon by another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World

from derive.protocol.specs import CatalogSpec
from derive.storage.contents import ReadOptions
from derive.storage.store import Store
from derive.storage.subscription import subscribe_at

CATALOG = """
collections:
  c/events:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
"""
NAME = "c/events"
LONG = 60.0
"""Seconds that no test is meant to take."""


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)
    world.store.create(world.catalog.collections[NAME])
    return world


def another(world: World) -> Store:
    """What another process has of the same data folder."""
    return Store(world.root, wall=lambda: world.wall, durable=False)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_commit_ends_the_wait(world: World, *, is_own: bool) -> None:
    writer = world.store if is_own else another(world)
    mark = world.store.changes.mark()
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(world.store.changes.wait(mark, LONG)))
    waiting.start()

    writer.seal([NAME], 2_000_000)
    waiting.join(LONG / 2)

    assert told == [True]


def test_what_was_committed_since_the_mark_is_not_waited_for(world: World) -> None:
    mark = world.store.changes.mark()
    assert not world.store.changes.wait(mark, 0)

    world.store.seal([NAME], 2_000_000)

    assert world.store.changes.wait(mark, LONG)
    assert not world.store.changes.wait(world.store.changes.mark(), 0)


def test_a_run_waits_for_others_only(world: World) -> None:
    mark = world.store.changes.mark()

    world.store.seal([NAME], 2_000_000)
    assert not world.store.changes.wait(mark, 0, own=False)
    another(world).seal([NAME], 3_000_000)
    assert world.store.changes.wait(mark, LONG, own=False)


def test_a_reader_without_a_data_folder_waits_in_vain(tmp_path: Path) -> None:
    store = Store(tmp_path / "none", reading=True)

    assert not store.changes.wait(store.changes.mark(), 0)


def test_a_subscription_looks_again_when_another_process_commits_and_not_before(world: World) -> None:
    idle: list[str] = []
    other = World(world.root, world.catalog, wall=world.wall)

    def is_idle() -> None:
        idle.append("idle")
        other.ingest(NAME, [{"id": len(idle)}], None)
        other.wall += 1_000_000
        other.store.seal([NAME], other.wall)

    updates = subscribe_at(world.store, world.catalog.collections[NAME], ReadOptions(), is_idle)
    texts = [
        row[3] for update in (next(updates) for _ in range(4)) if not isinstance(update, int) for row in update.tuples()
    ]

    assert texts == ['{"id":1}', '{"id":2}']
    assert idle == ["idle", "idle"]


def test_who_must_rest_is_not_told_before(world: World) -> None:
    mark = world.store.changes.mark()
    world.store.seal([NAME], 2_000_000)

    begun = time.monotonic()
    assert world.store.changes.wait(mark, LONG, least=0.05)
    assert time.monotonic() - begun >= 0.05
