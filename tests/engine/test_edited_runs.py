"""Whatever is done to a run: edits, resets, splits, takeovers and kills give what restarts, and in the end a fresh run, give.

A history is played on two data folders. On one, a run goes on, and is brought in line with the catalog in stages; on the
other one each event is followed by a run of its own. Where everything was reset in the end, and was brought in line, the
collections are those of a folder that has only ever seen the last catalog.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson
import postgres_server
import pytest
from conftest import World, examples
from crash_client import CrashServer
from edited_catalogs import BASE, SECOND, catalog_of, changing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from materialized import served
from object_server import ObjectServer, serving
from random_catalogs import catalogs as random_catalogs
from random_catalogs import cyclic_catalogs, histories
from random_places import Places
from random_stories import Story
from stateful_catalogs import Derived, text_of

from derive.engine.inputs import settle
from derive.engine.reset import reset, split
from derive.errors import FencedError
from derive.protocol.specs import CatalogSpec
from derive.storage.location import connected

NAMES = ("copies", "again", "third")


Defined: TypeAlias = dict[str, Derived]


derived = st.builds(
    Derived,
    source=st.sampled_from(["numbers", "numbers", *NAMES]),
    added=st.integers(0, 1),
    other=st.sampled_from(["other", "another"]),
    is_disabled=st.sampled_from([False, False, False, True]),
)
catalogs = st.dictionaries(st.sampled_from(NAMES), derived)


@dataclass(frozen=True)
class Event:
    """Something that is done to a run.

    Attributes:
        what: `edit`, `reset`, `split`, `take over` or `kill`.
        defined: the catalog from then on, if it is an edit or another run.
        name: of a task that is reset or split.
        busy: numbers of cycles that are in the middle of a transaction, if they are affected.
    """

    what: str
    defined: Defined
    name: str
    busy: frozenset[int] = frozenset()


events = st.builds(
    Event,
    what=st.sampled_from(["edit", "edit", "edit", "reset", "split", "take over", "kill"]),
    defined=catalogs,
    name=st.sampled_from(NAMES),
    busy=st.frozensets(st.integers(0, 2)),
)


@dataclass
class History:
    """Two data folders to which the same is done."""

    folder: Path
    defined: Defined
    is_accepted: bool
    stores: list[World] = field(default_factory=list)
    ingested: list[tuple[int, list[dict[str, int]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = self.open("live")
        self.restarted = self.open("restarted")
        self.run, self.reconciler = changing(self.live, self.accepted())
        self.run.is_mended = True

    def catalog(self) -> CatalogSpec:
        return catalog_of(self.folder, text_of(self.defined))

    def accepted(self) -> list[str]:
        """Tasks whose edits somebody accepts."""
        return list(self.catalog().tasks) if self.is_accepted else []

    def open(self, name: str) -> World:
        world = World(self.folder / name, self.catalog(), wall=BASE)
        self.stores.append(world)
        return world

    def go_on(self) -> None:
        """Documents, a run of each until nothing moves any more, and the same came of it."""
        other = self.restarted.run(shards=1, accepted=self.accepted())
        first = 3 * len(self.ingested)
        documents = [{"id": first + n, "n": n % 2} for n in range(3)]
        self.ingested.append((self.live.wall, documents))
        for world, run in ((self.live, self.run), (self.restarted, other)):
            world.ingest("a/numbers", documents, clock=None)
            for _ in range(3):
                world.wall += 6 * SECOND
                run.step()
        assert {name: str(task.error) for name, task in self.run.tasks.items()} == {
            name: str(task.error) for name, task in other.tasks.items()
        }
        other.close()
        assert contents(self.live) == contents(self.restarted)

    def happen(self, event: Event) -> None:
        if event.what in ("edit", "take over"):
            self.defined = event.defined
        self.restarted.catalog = self.catalog()
        if event.what == "take over":
            self.take_over()
        elif event.what == "kill":
            self.begin()
        elif event.what in ("reset", "split") and event.name in self.defined:
            self.command(event.what, f"a/{event.name}")
        self.bring_in_line(event.busy)

    def command(self, what: str, name: str) -> None:
        for world in (self.live, self.restarted):
            if what == "reset":
                settle(world.catalog, world.store)
                reset(world.catalog, world.store, [name], cascade=True)
            elif world.store.task(name) is not None:
                split(world.store, name)
        self.run.step()  # which finds out, or does not

    def begin(self) -> None:
        """Another run, on a connection of its own."""
        wall = self.live.wall
        self.live = self.open("live")
        self.live.wall = wall
        self.run, self.reconciler = changing(self.live, self.accepted())
        self.run.is_mended = True

    def take_over(self) -> None:
        """Another run of another catalog takes over what both have; the first one says so, and does nothing more."""
        first, reconciler, shared = self.run, self.reconciler, set(self.run.tasks)
        self.begin()
        shared &= set(self.run.tasks)
        before = contents(self.live)
        with closing(apsw.Connection(str(self.live.root / "metadata.db"))) as database:
            database.set_busy_timeout(10_000)
            rows = database.execute("SELECT holder FROM capability WHERE kind = 'run'").fetchall()
            database.execute("UPDATE capability SET holder = 'elsewhere:7:x:1' WHERE kind = 'run'")
            if shared:
                with pytest.raises(FencedError, match="another flowctl run"):
                    reconciler.find_superseded(first)
            database.executemany("UPDATE capability SET holder = ? WHERE kind = 'run'", rows[:1])
        first.close()
        assert contents(self.live) == before

    def bring_in_line(self, busy: frozenset[int]) -> None:
        """Apply the catalog: to what is affected and not in the middle of a transaction, and then to the rest."""
        self.live.catalog = self.catalog()
        self.reconciler.find_superseded(self.run)
        affected = self.reconciler.affected(self.run, self.live.catalog)
        at_work = [cycle for number, cycle in enumerate(affected) if number in busy]
        waiting = self.reconciler.waiting(self.run, self.live.catalog, at_work)
        kept = {name: task for name, task in self.run.tasks.items() if name in waiting}
        self.reconciler.accept(self.accepted())
        self.reconciler.apply(self.run, self.live.catalog, waiting)
        assert {name: task for name, task in self.run.tasks.items() if name in waiting} == kept
        now = self.run.seal()
        for cycle in self.run.cycles:
            assert waiting.isdisjoint(cycle) or waiting.issuperset(cycle)
            while waiting.isdisjoint(cycle) and self.run.advance(cycle, now):
                pass
        self.reconciler.find_superseded(self.run)
        self.reconciler.accept(self.accepted())
        self.reconciler.apply(self.run, self.live.catalog)
        wanted = {name for name, task in self.live.catalog.tasks.items() if not task.disabled}
        assert set(self.run.tasks) == wanted
        self.restart()

    def restart(self) -> None:
        """A run of the other folder, and all that there is to do in both: time passes only with the catalog that is there.

        Documents of before an edit come to be at the end of what was there, those of after it at their own time.
        """
        with closing(self.restarted.run(shards=1, accepted=self.accepted())) as other:
            other.step()
        self.run.step()

    def end(self) -> None:
        """Everything starts over, and is what it is in a folder that has only seen this catalog."""
        for world in (self.live, self.restarted):
            settle(world.catalog, world.store)
            names = [name for name in world.catalog.tasks if world.store.task(name) is not None]
            reset(world.catalog, world.store, names)
        self.bring_in_line(frozenset())
        self.go_on()
        fresh = self.open("fresh")
        for fresh.wall, documents in self.ingested:
            fresh.ingest("a/numbers", documents, clock=None)
        run = fresh.run(shards=1)
        for _ in range(4):
            fresh.wall += 6 * SECOND
            run.step()
        assert contents(fresh) == contents(self.live)
        assert {name: str(task.error) for name, task in self.run.tasks.items()} == dict.fromkeys(run.tasks, "None")


def contents(world: World) -> dict[str, Counter[int]]:
    """What all derived documents of a number add up to, in each collection."""
    sums: dict[str, Counter[int]] = {}
    for name in world.catalog.derivations:
        sums[name] = Counter()
        for row in world.rows(name):
            document = orjson.loads(row[3])
            sums[name][document["n"]] += document["times"]
    return sums


def play(first: Defined, history: Sequence[Event], *, is_accepted: bool) -> None:
    """One history."""
    with tempfile.TemporaryDirectory() as name:
        played = History(Path(name), first, is_accepted)
        try:
            played.go_on()
            for event in history:
                played.happen(event)
                played.go_on()
            played.end()
        finally:
            for world in played.stores:
                world.store.close()


FORWARDS = {"copies": Derived("numbers", 0), "again": Derived("copies", 0)}
BACKWARDS = {"again": Derived("numbers", 0), "copies": Derived("again", 0)}


@settings(max_examples=examples(24, 2, 12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=catalogs, history=st.lists(events, min_size=1, max_size=5), is_accepted=st.booleans())
@example(first=FORWARDS, history=[Event("edit", BACKWARDS, "copies")], is_accepted=True)
def test_edited_runs_equal_fresh_runs(first: Defined, history: list[Event], is_accepted: bool) -> None:
    play(first, history, is_accepted=is_accepted)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectServer]:
    """An object server that this process reaches by its environment."""
    with serving() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
        connected.cache_clear()


def live(story: Story, documents: list[dict[str, Any]], most: int) -> None:
    """One life: documents arrive, at most `most` events happen at a time, and everything is compared."""
    try:
        for _ in range(story.draw(st.integers(2, 6))):
            count = story.draw(st.integers(0, 4))
            story.arrive(documents[:count])
            documents = documents[count:]
            for _ in range(story.draw(st.integers(0, most))):
                story.wall += story.draw(st.sampled_from([1, SECOND, 6 * SECOND]))
                story.happen()
                story.step()
            story.wall += story.draw(st.sampled_from([1, SECOND, 6 * SECOND]))
            story.step()
        story.end()
    finally:
        story.close()


@settings(max_examples=examples(200, 2, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.one_of(random_catalogs(wide=True), cyclic_catalogs(wide=True)),
    documents=histories(),
    is_stored=st.booleans(),
    data=st.data(),
)
def test_disturbed_folders_equal_calm_and_fresh_folders(
    text: str,
    documents: list[dict[str, Any]],
    is_stored: bool,
    data: st.DataObject,
    address: str,
    server: CrashServer,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        places = Places(Path(name) / "busy/data")
        live(Story(Path(name), text, data, address if is_stored else "", server, places), documents, 2)


@pytest.mark.torture
@pytest.mark.deno
@pytest.mark.xdist_group("python modules")
@pytest.mark.parametrize("part", range(20))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.one_of(random_catalogs(wide=True, modules=True), cyclic_catalogs(wide=True)),
    documents=histories(),
    is_stored=st.booleans(),
    data=st.data(),
)
def test_disturbed_folders_with_modules_objects_and_postgres_equal_calm_folders(
    part: int,
    text: str,
    documents: list[dict[str, Any]],
    is_stored: bool,
    data: st.DataObject,
    address: str,
    server: CrashServer,
    objects: ObjectServer,
) -> None:
    """Each part has its own examples; together they would take longer than a test may."""
    with tempfile.TemporaryDirectory() as name:
        database = (
            postgres_server.server().metadata_url_by_file.partition("&schema=")[0] if data.draw(st.booleans()) else ""
        )
        places = Places(Path(name) / "busy/data", data.draw(st.booleans()), database, objects.environment)
        live(Story(Path(name), text, data, address if is_stored else "", server, places), documents, 3)
