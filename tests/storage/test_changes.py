"""Whoever waits for a commit is told, by this store and by others, and no call is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import World, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive.contents.reads import ReadOptions, subscribe_at
from derive.protocol.specs import CatalogSpec
from derive.storage.ingest import Ingestion
from derive.storage.metadata.commit_signal import FileSignal
from derive.storage.store import Store

CATALOG = """
collections:
  c/events:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
"""
NAME = "c/events"

pytestmark = pytest.mark.both_databases

ANSWERS = """
import sys
from pathlib import Path
from derive.storage.store import Store

store = Store(Path(sys.argv[1]), durable=False)
wakes = store.changes.wakes()
for _ in range(int(sys.argv[2])):
    store.reset([])
    assert store.changes.wait_for_wake(wakes, 60)
    wakes = store.changes.wakes()
"""
"""Wakes the other process each time it is woken."""


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)
    world.store.create(world.catalog.collections[NAME])
    return world


class Unheard(FileSignal):
    """A signal on a kernel that cannot watch files."""

    @override
    @contextmanager
    def listener(self) -> Iterator[None]:
        yield None


def another(world: World) -> Store:
    """What another process has of the same data folder."""
    return Store(world.root, wall=lambda: world.wall, durable=False)


@pytest.mark.parametrize("is_own", [True, False])
def test_commit_ends_a_wait(world: World, *, is_own: bool) -> None:
    writer = world.store if is_own else another(world)
    mark = world.store.changes.mark()
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(world.store.changes.wait(mark, PATIENCE_SECONDS)))
    waiting.start()

    writer.seal([NAME], 2_000_000)
    waiting.join(PATIENCE_SECONDS / 2)

    assert told == [True]


def test_wait_returns_at_once_for_commits_since_the_mark(world: World) -> None:
    mark = world.store.changes.mark()
    assert not world.store.changes.wait(mark, 0)

    world.store.seal([NAME], 2_000_000)

    assert world.store.changes.wait(mark, PATIENCE_SECONDS)
    assert not world.store.changes.wait(world.store.changes.mark(), 0)


def test_run_wakes_for_commits_to_its_sources(world: World) -> None:
    wakes = world.store.changes.wakes()
    spec, other = world.catalog.collections[NAME], another(world)

    other.seal_now([NAME])
    other.capabilities.release(
        world.store.acquire_write(NAME)
    )  # which wakes others: they may have waited for the capability
    wakes = world.store.changes.wakes()
    world.ingest(NAME, [{"id": 1}], None)
    other.seal_now([NAME])
    other.renew_tasks()
    assert not world.store.changes.wait_for_wake(wakes, 0)

    Ingestion(other, spec).load("test", [(1, {"id": 2})])
    assert world.store.changes.wait_for_wake(wakes, PATIENCE_SECONDS)
    assert world.store.changes.wakes() == (wakes.others + 1, wakes.own)


@settings(max_examples=examples(60, 10))
@given(steps=st.lists(st.sampled_from(["own", "other", "quiet", "wake", "look"]), max_size=30))
def test_waiter_is_woken_by_every_change(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = [Store(Path(folder), wall=lambda: 1_000_000, durable=False) for _ in range(2)]
        changes, is_woken = stores[0].changes, False
        wakes = changes.wakes()
        for step in steps:
            if step == "look":
                assert changes.wait_for_wake(wakes, 0) is is_woken
                wakes, is_woken = changes.wakes(), False
            elif step == "wake":
                changes.wake()
            elif step == "quiet":
                stores[1].seal_now([])
            else:
                stores[step == "other"].reset([])
            is_woken |= step in ("wake", "other")
        assert changes.wait_for_wake(wakes, 0) is is_woken
        for store in stores:
            store.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hears", [True, False])
def test_processes_receive_notifications_of_each_other(world: World, *, hears: bool) -> None:
    rounds, changes = 40, world.store.changes
    if not hears:
        world.store._metadata.commit_signal = Unheard(world.root / "metadata.db")
    before = sorted(path.name for path in world.root.iterdir())
    wakes = changes.wakes()
    answering = subprocess.Popen([sys.executable, "-c", ANSWERS, str(world.root), str(rounds)])
    try:
        begun = time.monotonic()
        for _ in range(rounds):
            assert changes.wait_for_wake(wakes, PATIENCE_SECONDS)
            wakes = changes.wakes()
            world.store.reset([])
        assert time.monotonic() - begun < PATIENCE_SECONDS  # a lost wake-up costs a second
        answering.send_signal(signal.SIGKILL)
    finally:
        answering.kill()
        answering.wait()

    assert sorted(path.name for path in world.root.iterdir()) == before


def test_threads_that_wait_at_the_same_time_are_all_woken(world: World) -> None:
    wakes = world.store.changes.wakes()
    told: list[bool] = []

    def wait() -> None:
        told.append(world.store.changes.wait_for_wake(wakes, PATIENCE_SECONDS))

    waiting = [threading.Thread(target=wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    another(world).reset([])
    for thread in waiting:
        thread.join(PATIENCE_SECONDS)

    assert told == [True] * 4


def test_wait_without_a_data_folder_times_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "none", reading=True)

    assert not store.changes.wait(store.changes.mark(), 0)


def test_subscription_polls_only_after_commits(world: World) -> None:
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
