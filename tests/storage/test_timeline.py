"""Time as the timeline tells it: whatever happens to the wall clock, it never goes back and never stands still."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest
from conftest import World
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import DocumentError, FrontierError
from derive.protocol.specs import CatalogSpec
from derive.storage.store import Store
from derive.storage.timeline import since_boot

CATALOG = """
collections:
  t/events:
    schema: {type: object, required: [id], properties: {id: {type: integer}, at: {type: string}}}
    key: [/id]
  t/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: t/events, shuffle: any, lambda: SELECT $id;}]}
"""
HOUR = 3_600_000_000
BASE = 1_800_000_000_000_000


@dataclass
class Clocks:
    """A wall clock that can be set, and one that cannot."""

    wall: int = BASE
    elapsed: int = 5
    boot: str = "first"

    def go_on(self, micros: int) -> None:
        self.wall += micros
        self.elapsed += micros

    def open(self, folder: Path) -> Store:
        return Store(folder, wall=lambda: self.wall, durable=False, elapsed=lambda: (self.boot, self.elapsed))


def test_jumping_wall_clock_does_not_stop_time(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.open(tmp_path)
    assert store.timeline.read() == BASE
    clocks.wall += 1000 * HOUR
    assert store.timeline.assign(10) == BASE + 1000 * HOUR
    clocks.wall = BASE
    assert (store.timeline.ahead(), store.timeline.present()) == (1000 * HOUR, BASE + 1000 * HOUR + 10)

    clocks.go_on(HOUR)
    assert store.timeline.read() == BASE + 1001 * HOUR - HOUR // 1000
    store.close()

    store = clocks.open(tmp_path)  # another process
    clocks.go_on(HOUR)
    assert store.timeline.read() == BASE + 1002 * HOUR - 2 * HOUR // 1000
    assert store.timeline.ahead() == 1000 * HOUR - 2 * HOUR // 1000
    clocks.go_on(2_000_000 * HOUR)  # in the end the wall has caught up
    assert (store.timeline.read(), store.timeline.ahead()) == (clocks.wall, 0)
    store.close()


def test_time_continues_after_a_restart_of_the_machine(tmp_path: Path) -> None:
    clocks = Clocks()
    with_jump = clocks.open(tmp_path)
    clocks.wall += HOUR
    with_jump.timeline.read()
    clocks.wall, clocks.elapsed, clocks.boot = BASE + 20, 1_000, "second"

    assert with_jump.timeline.read() == BASE + HOUR
    clocks.go_on(1_000)
    assert with_jump.timeline.read() == BASE + HOUR + 999
    with_jump.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["go on", "set"]), st.integers(-2 * HOUR, 2 * HOUR)),
        st.tuples(st.sampled_from(["assign"]), st.integers(1, 5_000)),
        st.tuples(st.sampled_from(["read", "reopen", "restart"]), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS)
def test_l3_timestamps_never_decrease_below_a_read_time(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        clocks = Clocks()
        store = clocks.open(Path(name))
        last = highest = 0  # the last clock that was assigned or passed, and the latest the wall ever showed
        for what, amount in steps:
            highest = max(highest, clocks.wall)
            if what == "go on":
                clocks.go_on(abs(amount))
                highest += abs(amount)
            elif what == "set":
                clocks.wall += amount
            elif what == "reopen":
                store.close()
                store = clocks.open(Path(name))
            elif what == "restart":
                clocks.boot, clocks.elapsed = f"{clocks.boot}'", 0
            elif what == "read":
                now = store.timeline.read()
                assert now > last
                last = now - 1
            else:
                first = store.timeline.assign(amount)
                assert first > last
                last = first + amount - 1
            assert store.timeline.present() >= clocks.wall
            assert store.timeline.ahead() <= max(0, max(highest, clocks.wall) - clocks.wall)
        store.close()


def test_since_boot_advances_and_names_its_clock() -> None:
    (watch, first), (same, second) = since_boot(), since_boot()

    assert (watch, first > 0, second >= first) == (same, True, True)


# Documents that bring their own time


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def test_future_time_is_refused(world: World) -> None:
    documents = [{"id": 1, "at": "1970-01-01T00:00:05Z"}, {"id": 2, "at": "1970-01-01T00:01:01.000001Z"}]

    with pytest.raises(DocumentError) as caught:
        world.ingest("t/events", documents)

    assert "1 document is not valid" in caught.value.message
    assert (
        "test:2: the time 1970-01-01T00:01:01.000001Z is in the future: the time is now 1970-01-01T00:00:01.000000Z, and 't/events'"
        " would be final up to the time of the document" in caught.value.message
    )
    assert world.store.upper("t/events") == 0


def test_documents_after_a_slightly_future_time_are_later(world: World) -> None:
    world.ingest("t/events", [{"id": 1, "at": "1970-01-01T00:01:01Z"}])

    world.ingest("t/events", [{"id": 2}], None)

    assert [row[0] for row in world.rows("t/events")] == [61_000_000, 61_000_001]


def test_collection_final_up_to_a_future_time_is_reported(world: World) -> None:
    """As one that was loaded by an older version."""
    world.store.create(world.catalog.collections["t/events"])
    with apsw.Connection(str(world.root / "metadata.db")) as database:
        database.execute("UPDATE collection SET upper = 2871763200000000 WHERE name = 't/events'")

    with pytest.raises(
        FrontierError,
        match="'t/events' takes documents only from 2061-01-01T00:00:00.000000Z on, but the time is now 1970-",
    ):
        world.ingest("t/events", [{"id": 2}], None)


def test_ticks_end_while_the_wall_clock_is_behind(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog_of(CATALOG))
    clocks = Clocks()
    world.store.close()
    world.store = clocks.open(world.root)
    clocks.wall += 1000 * HOUR
    world.ingest("t/events", [{"id": 1}], None)
    clocks.wall = BASE

    clocks.go_on(5_000_000)
    world.step()

    assert [row[3] for row in world.rows("t/copies")] == ['{"id":1}']


def test_documents_of_a_fast_clock_advance_time_by_at_most_the_skew(world: World) -> None:
    world.ingest("t/events", [{"id": 1, "at": "1970-01-01T00:01:00Z"}])

    with pytest.raises(DocumentError, match="the time 1970-01-01T00:01:50.000000Z is in the future"):
        world.ingest("t/events", [{"id": 2, "at": "1970-01-01T00:01:50Z"}])
