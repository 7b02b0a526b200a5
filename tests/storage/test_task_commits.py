"""A task is no collection: it has an epoch and positions of its own, and writes several collections, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World

from derive.errors import FencedError, FrontierError
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.descriptions import CollectionUpdate, TaskCommit
from derive.storage.metadata.process import this_process
from derive.time.positions import Place, Segment

pytestmark = pytest.mark.both_databases

CATALOG = """
collections:
  t/source:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
  t/one:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
  t/two:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
"""
TASK = "t/task"
PLACES = {"read": Place("t/source", 0)}


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    world = World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)
    for spec in world.catalog.collections.values():
        world.store.create(spec)
    return world


def commit_of(position: int, *, may_step_back: bool = False) -> TaskCommit:
    needs = {"read": position}
    return TaskCommit({"read": position}, PLACES, {0: f"at-{position}"}, 1, 1, needs, may_step_back)


def test_l2_one_commit_advances_a_task_and_its_collections(world: World) -> None:
    capability, _ = world.store.acquire_task(TASK, 2, ["t/one", "t/two"])
    updates = [CollectionUpdate("t/one", [], 5_000_000), CollectionUpdate("t/two", [], 7_000_000)]

    capability = world.store.commit_task(capability, commit_of(4_000_000), updates)

    state = world.store.task(TASK)
    assert state is not None
    assert (state.shards, state.positions, state.tokens) == (2, {"read": 4_000_000}, {0: "at-4000000"})
    assert capability.frontiers == {"t/one": 5_000_000, "t/two": 7_000_000}
    assert (world.store.upper("t/one"), world.store.upper("t/two")) == (5_000_000, 7_000_000)


def test_l2_if_one_collection_cannot_be_written_nothing_is_committed(world: World) -> None:
    world.store.seal(["t/two"], 9_000_000)
    capability, before = world.store.acquire_task(TASK, 1, ["t/one", "t/two"])
    early = Segment("t/two", "early.parquet", (), 8_000_000, 8_000_000, 1, 1)
    updates = [CollectionUpdate("t/one", [], 10_000_000), CollectionUpdate("t/two", [early], 10_000_000)]

    with pytest.raises(
        FrontierError, match="8000000 to 8000000 cannot be added to 't/two': .* at least 9000000, and before"
    ):
        world.store.commit_task(capability, commit_of(4_000_000), updates)

    assert world.store.task(TASK) == before
    assert world.store.upper("t/one") == 0


def test_task_without_collections_holds_no_upper(world: World) -> None:
    capability, _ = world.store.acquire_task(TASK, 1)
    world.store.commit_task(capability, commit_of(4_000_000))

    assert world.store.task_capabilities.is_running(TASK)
    assert world.store.task_capabilities.runners([TASK, "t/unknown"]) == {this_process()}
    assert world.store.seal(["t/one"], 9_000_000) == {"t/one": 9_000_000}
    world.store.release_task(capability)
    assert not world.store.task_capabilities.is_running(TASK)
    assert world.store.task_capabilities.runners([TASK]) == set()


def test_positions_step_back_only_if_permitted(world: World) -> None:
    capability, _ = world.store.acquire_task(TASK, 1)
    world.store.seal(["t/source"], 9_000_000)
    world.store.task_capabilities.acquire_inputs(TASK, {"read": ("t/source", 0)}, capability)
    world.store.commit_task(capability, commit_of(6_000_000))
    frontiers = world.store.history.frontiers("t/source")
    assert frontiers is not None
    assert frontiers.bound == 6_000_000

    with pytest.raises(FrontierError, match="'read' of 't/task' in 't/source' would decrease"):
        world.store.commit_task(capability, commit_of(5_000_000))
    world.store.commit_task(capability, commit_of(5_000_000, may_step_back=True))

    state = world.store.task(TASK)
    frontiers = world.store.history.frontiers("t/source")
    assert state is not None
    assert frontiers is not None
    assert (state.positions, frontiers.bound) == ({"read": 5_000_000}, 5_000_000)


def test_l5_the_epoch_of_a_task_continues_after_a_reset(world: World) -> None:
    older, _ = world.store.acquire_task(TASK, 3)
    world.store.commit_task(older, commit_of(4_000_000))
    world.store.reset([TASK])
    assert world.store.task(TASK) is None

    with pytest.raises(FencedError, match="'t/task' was reset"):
        world.store.commit_task(older, commit_of(5_000_000))
    newer, state = world.store.acquire_task(TASK, 2)

    assert newer.epoch > older.epoch + 1
    assert (state.shards, state.positions, state.tokens) == (2, {}, {})


def test_l5_two_tasks_do_not_write_one_collection(world: World) -> None:
    first, before = world.store.acquire_task("t/first", 1, ["t/one"])
    second, _ = world.store.acquire_task("t/second", 1, ["t/one"])

    with pytest.raises(FencedError, match="another flowctl runs 't/one'"):
        world.store.commit_task(first, commit_of(4_000_000), [CollectionUpdate("t/one", [], 5_000_000)])
    world.store.commit_task(second, None, [CollectionUpdate("t/one", [], 6_000_000)])

    assert world.store.task("t/first") == before
    assert world.store.upper("t/one") == 6_000_000


def test_release_by_a_fenced_holder_keeps_the_newer_capability(world: World) -> None:
    older, _ = world.store.acquire_task(TASK, 1, ["t/one"])
    newer, _ = world.store.acquire_task(TASK, 1, ["t/one"])

    world.store.release_task(older)

    assert world.store.task_capabilities.is_running(TASK)
    assert world.store.commit_task(newer, commit_of(4_000_000)) == newer


def test_reset_of_an_input_ends_all_capabilities_of_the_run(world: World) -> None:
    """L3: the run is fenced, so its write capability would bound `upper` until another run."""
    capability, _ = world.store.acquire_task("t/one", 1, ["t/one"])
    world.store.commit_task(capability, commit_of(4_000_000))
    world.store.reset([], {"t/one": ["read"]})

    assert world.store.write_frontier("t/one") is None
    with pytest.raises(FencedError):
        world.store.commit_task(capability, commit_of(5_000_000))


@pytest.mark.parametrize("count", [0, 1, 511, 512, 1_025])
def test_commit_of_many_segments_and_shards_stores_all(world: World, count: int) -> None:
    capability, _ = world.store.acquire_task(TASK, 2_000, ["t/one"])
    for position in (1, 2):  # the second commit replaces the token of each shard
        segments = [
            Segment("t/one", f"{position}/{n}.parquet", (), position * 10_000 + n, position * 10_000 + n, 1, 7, "c")
            for n in range(count)
        ]
        tokens = {n: f"at-{position}-{n}" for n in range(count)}
        commit = TaskCommit({"read": position}, PLACES, tokens, count, count, {"read": position})
        update = CollectionUpdate("t/one", segments, (position + 1) * 10_000)
        capability = world.store.commit_task(capability, commit, [update])

        stored = world.store.segments(world.catalog.collections["t/one"], None, position * 10_000)
        assert stored == segments
        assert world.task(TASK).tokens == tokens
        known = world.store.collection("t/one")
        assert known is not None
        assert (known.segments, known.documents, known.bytes) == (
            position * count,
            position * count,
            position * count * 7,
        )
