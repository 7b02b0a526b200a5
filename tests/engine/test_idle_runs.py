"""A continuous run looks for work when a commit or a tick may bring some, and uses almost no time otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.scheduler import Scheduler
from derive.engine.task_reconciler import open_run
from derive.engine.wakeups import IDLE, Cycle
from derive.errors import FencedError
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

SCHEMA = "{type: object, required: [id], properties: {id: {type: integer}}}"
CATALOG = f"""
collections:
  n/left: {{key: [/id], schema: {SCHEMA}}}
  n/right: {{key: [/id], schema: {SCHEMA}}}
  n/copies:
    key: [/id]
    schema: {SCHEMA}
    derive:
      using: {{sqlite: {{}}}}
      transforms: [{{name: copy, source: n/left, shuffle: any, lambda: SELECT $id}}]
  n/late:
    key: [/id]
    schema: {SCHEMA}
    derive:
      using: {{sqlite: {{}}}}
      transforms: [{{name: wait, source: n/copies, shuffle: any, readDelay: 3s, lambda: SELECT $id}}]
  n/both:
    key: [/id]
    schema: {SCHEMA}
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - {{name: copies, source: n/copies, shuffle: any, lambda: SELECT $id}}
        - {{name: right, source: n/right, shuffle: any, lambda: SELECT $id}}
      shards: {{maxTxnDuration: 2s}}
"""
BASE = 1_700_000_000_000_000
DERIVED = ["n/copies", "n/late", "n/both"]
POLL = 100_000
SECOND = 1_000_000


@dataclass
class Life:
    """A run that polls ten times a second, and somebody else who ingests, on one data folder."""

    folder: Path
    watches: bool
    tasks: Sequence[str] | None = None
    wall: int = BASE
    looks: list[int] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        catalog = load(write_catalog(self.folder, CATALOG))
        self.other = World(self.folder / "data", catalog, wall=self.wall)
        self.store = Store(
            self.folder / "data", wall=lambda: self.wall, durable=False, elapsed=lambda: ("this", self.wall - BASE)
        )
        self.run = open_run(catalog, self.store, InProcessExecutor(), tasks=self.tasks, shards=1)
        self.reader = apsw.Connection(str(self.folder / "data" / "metadata.db"))
        self.version = 0

    def poll(self, seconds: float) -> None:
        poll([self], seconds)

    def turn(self) -> None:
        self.wall += POLL
        if not self.watches or self.run.find_woken() is not None:
            self.looks.append(self.wall - BASE)
            self.run.step()
        version = self.reader.execute("PRAGMA data_version").get
        if version != self.version:
            self.version = version
            self.commits.append(self.wall - BASE)
        self.seen.append([self.documents(name) for name in DERIVED])

    def ingest(self, collection: str, number: int) -> None:
        self.other.wall = self.wall
        self.other.ingest(collection, [{"id": number}], None)

    def documents(self, name: str) -> int:
        """How many there are; to read them would be to commit the right to."""
        known = self.other.store.collection(name)
        return known.documents if known else 0

    def outcome(self) -> dict[str, list[str]]:
        return {name: [f"{row[0] - BASE}: {row[3]}" for row in self.other.rows(name)] for name in DERIVED}

    def close(self) -> None:
        self.reader.close()
        self.run.close()
        self.store.close()
        self.other.store.close()


def poll(lives: Sequence[Life], seconds: float) -> None:
    """Let time pass for runs that live at the same time."""
    for _ in range(round(seconds * SECOND / POLL)):
        for life in lives:
            life.turn()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[tuple[Life, Life]]:
    watching, always = Life(tmp_path / "watching", watches=True), Life(tmp_path / "always", watches=False)
    yield watching, always
    watching.close()
    always.close()


def test_an_idle_run_commits_every_five_seconds(lives: tuple[Life, Life]) -> None:
    watching, always = lives
    for life in lives:
        life.ingest("n/left", 1)
        life.poll(10)
        life.looks.clear()
        life.commits.clear()
        life.poll(30)

    assert (len(always.looks), len(always.commits)) == (300, 300)
    assert len(watching.looks) == len(watching.commits) == 30 * SECOND // IDLE == 6


def test_l1_waiting_run_derives_as_early_as_a_polling_run(lives: tuple[Life, Life]) -> None:
    for life in lives:
        life.poll(7.3)
        for number, (collection, seconds) in enumerate(
            [("n/left", 0.4), ("n/right", 0.3), ("n/left", 6.2), ("n/right", 2.9), ("n/right", 11), ("n/left", 0.1)]
        ):
            life.ingest(collection, number)
            life.poll(seconds)
        life.poll(12)

    watching, always = lives
    assert watching.seen == always.seen
    assert watching.outcome() == always.outcome()
    assert len(watching.outcome()["n/both"]) == 6
    assert len(watching.looks) < len(always.looks) / 4


def test_waiting_tasks_resume_once_an_ingestion_ends(lives: tuple[Life, Life]) -> None:
    watching, _ = lives
    capability = watching.other.store.acquire_write("n/left")
    watching.ingest("n/left", 1)
    watching.poll(4)
    assert watching.documents("n/copies") == 0

    watching.other.store.capabilities.release(capability)
    watching.poll(0.1)

    assert watching.outcome()["n/copies"] == ['0: {"id":1}']


def test_watching_scheduler_reports_that_it_is_fenced(lives: tuple[Life, Life]) -> None:
    watching, _ = lives
    with Scheduler(watching.run, threads=1) as scheduler:
        scheduler.watch()
        watching.other.wall = watching.wall
        newer = watching.other.run()
        watching.wall += 2 * SECOND
        with pytest.raises(FencedError, match="another flowctl runs"):
            for _ in range(1_000):
                scheduler.watch()
                watching.wall += 10_000
                threading.Event().wait(0.01)
    newer.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Life, Life]]:
    """Two runs of one data folder, of which the second reads what the first derives."""
    first = Life(tmp_path / "one", watches=True, tasks=["n/copies"])
    second = Life(tmp_path / "one", watches=True, tasks=["n/both", "n/late"])
    yield first, second
    first.close()
    second.close()


def test_idle_runs_do_not_wake_each_other(pair: tuple[Life, Life]) -> None:
    pair[0].ingest("n/left", 1)
    poll(pair, 12)
    for life in pair:
        life.looks.clear()
    poll(pair, 60)

    assert [len(life.looks) for life in pair] == [12, 12]


def test_run_advances_time_for_another_waiting_run(pair: tuple[Life, Life]) -> None:
    _, second = pair
    poll(pair, 6.4)
    second.ingest("n/right", 1)
    poll(pair, 1.5)
    assert second.documents("n/both") == 0

    poll(pair, 0.5)  # a tick of two seconds has ended, for both of them

    assert second.outcome()["n/both"] == ['6400000: {"id":1}']


def test_documents_of_another_run_are_read_when_their_tick_ends(pair: tuple[Life, Life]) -> None:
    first, second = pair
    poll(pair, 8.4)
    first.ingest("n/left", 1)
    poll(pair, 0.8)
    assert second.outcome()["n/copies"] == ['8400000: {"id":1}']
    poll(pair, 1.2)
    assert second.outcome()["n/both"] == ['8400000: {"id":1}']


def test_scheduler_examines_only_cycles_with_work(lives: tuple[Life, Life]) -> None:
    watching, _ = lives
    looked: list[Sequence[Cycle]] = []

    class Noting(Scheduler):
        def look(self, cycles: Sequence[Cycle] | None = None, resting: Collection[Cycle] = ()) -> None:
            looked.append(cycles or self._run.cycles)
            super().look(cycles, resting)

    with Noting(watching.run, threads=1) as scheduler:
        scheduler.watch()
        watching.wall = BASE + 1_950_000
        watching.ingest("n/right", 1)
        scheduler.watch()
        watching.wall = BASE + 2_000_000
        scheduler.watch()

    assert looked == [watching.run.cycles, [("n/copies",), ("n/both",)]]


def test_a_scheduler_wakes_when_a_tick_ends(tmp_path: Path) -> None:
    catalog = load(write_catalog(tmp_path, CATALOG))
    world = World(tmp_path / "data", catalog)
    store = Store(tmp_path / "data", durable=False)
    run = open_run(catalog, store, InProcessExecutor(), shards=1)
    ingesting = Store(tmp_path / "data", durable=False)
    begun = time.monotonic()
    with Scheduler(run, threads=1) as scheduler:
        for number in range(3):
            Ingestion(ingesting, catalog.collections["n/left"]).load("test", [(1, {"id": number})])
            while len(world.rows("n/copies")) <= number:
                scheduler.watch()
                run.wait(60)
                assert time.monotonic() - begun < 60
    run.close()
    for opened in (store, ingesting, world.store):
        opened.close()


def test_run_without_derivations_advances_time(tmp_path: Path) -> None:
    life = Life(tmp_path / "one", watches=True, tasks=[])
    with Scheduler(life.run, threads=1) as scheduler:
        scheduler.watch()
        before = life.store.upper("n/left")
        life.wall += IDLE
        scheduler.watch()
    assert (before, life.store.upper("n/left")) == (BASE, BASE + IDLE)
    life.close()
