"""A run that is killed, or taken over from, at each step of applying an edit: the edit then has been applied once.

A run has a transaction that is carried out and not yet committed, somebody else may reset or split a task, and the
catalog is edited. The run applies the edit to all that the transaction has nothing to do with, then commits that, and
applies the rest. It is killed (or stopped, while another run takes over) where each of its commits is about to be made,
and where it is made. What a run of the edited catalog then comes to is, byte for byte, what it comes to where nobody was
killed, and one run of the catalog as it was is followed by one of the edited catalog.
"""

from __future__ import annotations

import fcntl
import itertools
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson
import pytest
from conftest import World, write_catalog
from crash_client import FENCED, CrashServer
from stateful_catalogs import Derived, text_of

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, split
from derive.engine.task_reconciler import open_run

BASE, SECOND = 1_700_000_000_000_000, 1_000_000
STORED = """
materializations:
  a/stored:
    endpoint: {connector: {image: materialize-sqlite, config: {path: stored.db}}}
    bindings: [BINDINGS]
"""
Outcome: TypeAlias = Mapping[str, Any]
Disturb: TypeAlias = Callable[["Scene", str], bool]


def stored(*sources: str) -> str:
    return STORED.replace(
        "BINDINGS", ", ".join(f"{{source: a/{name}, resource: {{table: of_{name}}}}}" for name in sources)
    )


@dataclass(frozen=True)
class Scenario:
    """An edit.

    Attributes:
        before: the catalog that is edited.
        after: what it is edited to.
        later: of the tasks before, those that may have done what is there, or not, as they are edited: the one whose
            transaction is held comes first.
        command: what somebody else does to the task whose transaction is held, as the catalog is edited.
        is_exact: whether no task comes to read another source from its start. What that gives comes at the end of what
            the task had published, and in which transaction decides about the microsecond.
    """

    before: str
    after: str
    later: tuple[str, ...] = ("copies", "again")
    command: str = ""
    is_exact: bool = True

    @property
    def held(self) -> str:
        return f"a/{self.later[0]}"


CHAIN = {"copies": Derived("numbers", 0), "again": Derived("copies", 0), "third": Derived("numbers", 0)}
CHANGED = {
    "copies": Derived("numbers", 1),
    "again": Derived("copies", 0),
    "fourth": Derived("numbers", 2),
    "fifth": Derived("copies", 3),
}
TURNED = {"again": Derived("numbers", 0), "copies": Derived("again", 0), "fourth": Derived("again", 1)}
CYCLE = {"copies": Derived("again", 1), "again": Derived("copies", 0), "fourth": Derived("numbers", 1)}
ENTERED = {"again": Derived("numbers", 1), "copies": Derived("again", 0), "third": Derived("copies", 0)}
RENAMED = {"other": Derived("numbers", 0), "again": Derived("other", 0), "third": Derived("numbers", 0)}
DISABLED = {**CHAIN, "copies": Derived("numbers", 0, is_disabled=True), "third": Derived("copies", 1)}
SCHEMA = {**CHAIN, "copies": Derived("numbers", 1, "another")}
ALL = {name: Derived(one.source, 1) for name, one in CHAIN.items()}
CALLED = text_of(CHAIN).replace("- name: from\n", "- name: since\n          formerly: from\n")
BOTH = text_of(CHAIN) + stored("copies"), text_of(CHANGED) + stored("copies", "fourth")
SAMPLE = {
    "changed, new and gone": Scenario(text_of(CHAIN), text_of(CHANGED)),
    "a cycle": Scenario(text_of(CHAIN), text_of(CYCLE), is_exact=False),
    "reset": Scenario(text_of(CHAIN), text_of(CHANGED), command="reset"),
    "split": Scenario(text_of(CHAIN), text_of(CHANGED), command="split"),
    "stored": Scenario(*BOTH, ("copies", "again", "stored")),
    "transforms are renamed": Scenario(text_of(CHAIN), CALLED),
}
"""What `make test` has time for."""

SCENARIOS = SAMPLE | {
    "all of a chain": Scenario(text_of(CHAIN), text_of(ALL)),
    "readers of another schema": Scenario(text_of(CHAIN), text_of(SCHEMA)),
    "turned round": Scenario(text_of(CHAIN), text_of(TURNED), is_exact=False),
    "turned round and longer": Scenario(
        text_of(ENTERED),
        text_of({**CHAIN, "fourth": Derived("third", 1)}),
        ("again", "copies", "third"),
        is_exact=False,
    ),
    "renamed": Scenario(text_of(CHAIN), text_of(RENAMED), is_exact=False),
    "disabled": Scenario(text_of(CHAIN), text_of(DISABLED), is_exact=False),
    "stored and reset": Scenario(*BOTH, ("copies", "again", "stored"), "reset"),
    "stored and split": Scenario(*BOTH, ("copies", "again", "stored"), "split"),
}


class Scene:
    """A data folder, the catalog and what it is edited to, and orders to a crash server."""

    def __init__(self, folder: Path, scenario: Scenario, server: CrashServer) -> None:
        self.folder, self.scenario, self.server = folder, scenario, server
        self.wall = BASE

    @classmethod
    def begin(cls, folder: Path, scenario: Scenario, server: CrashServer) -> Scene:
        """One that has done the documents of a first time, and has those of a second one."""
        folder.mkdir()
        scene = cls(folder, scenario, server)
        write_catalog(folder, scenario.before)
        shutil.copy(folder / "flow.yaml", folder / "before.yaml")
        write_catalog(folder, scenario.after)
        scene.go_on("before.yaml")
        scene.ingest("before.yaml")
        return scene

    def copy(self, name: str) -> Scene:
        """Another one, that is as far."""
        folder = self.folder.with_name(name)
        shutil.copytree(self.folder, folder)
        scene = Scene(folder, self.scenario, self.server)
        scene.wall = self.wall
        return scene

    def world(self, name: str = "flow.yaml") -> World:
        return World(self.folder / "data", load(self.folder / name), wall=self.wall)

    def ingest(self, name: str) -> None:
        world = self.world(name)
        known = world.store.collection("a/numbers")
        first = known.documents if known else 0
        world.ingest("a/numbers", [{"id": first + n, "n": n % 2} for n in range(3)], clock=None)
        world.store.close()
        self.wall += 6 * SECOND

    def go_on(self, name: str = "flow.yaml") -> None:
        self.ingest(name)
        world = self.world(name)
        world.step(shards=2)
        world.store.close()

    def do(self, what: str, *arguments: Any, name: str = "flow.yaml") -> int:
        order = {"source": str(self.folder / name), "data": str(self.folder / "data"), "wall": self.wall}
        return self.server.attempt(order | {"do": what, "arguments": list(arguments)})

    def edit(self, armed: str) -> int:
        """Have a run apply the edit, until it is killed or stopped."""
        scenario = self.scenario
        edited = str(self.folder / "flow.yaml")
        return self.do("edit", edited, scenario.held, scenario.command, scenario.held, armed, name="before.yaml")

    def restart(self, done: Collection[str]) -> None:
        """A run of the catalog as it was, of some tasks; what somebody does; and a run of the edited catalog."""
        world, name = self.world("before.yaml"), self.scenario.held
        with closing(open_run(world.catalog, world.store, InProcessExecutor(), tasks=sorted(done), shards=2)) as run:
            run.step()
        if self.scenario.command == "reset":
            reset(world.catalog, world.store, [name], cascade=True)
        elif self.scenario.command == "split":
            split(world.store, name)
        world.store.close()
        assert self.do("run", 2, 1_000_000) == 0

    def outcome(self) -> Outcome:
        """All that a run leaves: documents, frontiers, what is known of tasks, who may do what, and tables."""
        world = self.world()
        outcome: dict[str, Any] = {}
        for name in world.catalog.collections:
            known = world.store.collection(name)
            outcome[name] = known and (known.since, self.tick(known.upper)), self.documents(world, name)
        for name in world.catalog.derivations:
            state = world.store.task(name)
            if state is not None:
                edits = [(edit.message, edit.at and self.tick(edit.at)) for edit in state.edits]
                parts = state.shards, state.positions, state.error, state.places, state.fingerprints
                outcome[f"task {name}"] = *parts, edits
        world.store.close()
        return outcome | self.rights() | self.tables()

    def documents(self, world: World, name: str) -> object:
        """Those of a collection; or what those of each tick and number add up to."""
        rows = world.rows(name)
        if self.scenario.is_exact or name == "a/numbers":
            return rows
        sums: Counter[tuple[int, int]] = Counter()
        for row in rows:
            document = orjson.loads(row[3])
            sums[self.tick(row[0]), document["n"]] += document["times"]
        return sums

    def tick(self, clock: int) -> int:
        return clock if self.scenario.is_exact else clock // SECOND

    def rights(self) -> dict[str, Any]:
        """Who may read, write or run what."""
        with closing(apsw.Connection(str(self.folder / "data" / "metadata.db"))) as database:
            rows = database.execute("SELECT kind, collection, task, transform, frontier, at FROM capability").fetchall()
        return {"rights": sorted(rows, key=repr)}

    def tables(self) -> dict[str, Any]:
        """The rows of the materialized tables."""
        if not (self.folder / "stored.db").exists():
            return {}
        with closing(sqlite3.connect(self.folder / "stored.db")) as database:
            names = database.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'of_%'").fetchall()
            return {
                f"table {name}": database.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for (name,) in names
            }

    def is_locked(self) -> bool:
        """Whether a process that is stopped has a lock for which others wait."""
        data = self.folder / "data"
        for path in data.glob("state/**/lock"):
            with path.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        return False


class Expected:
    """What there may be after an edit, depending on which of the tasks that it meets had done what was there."""

    def __init__(self, scene: Scene) -> None:
        names = [name.removeprefix("a/") for name in load(scene.folder / "before.yaml").tasks]
        later = scene.scenario.later
        self.first, self.then = [], []
        for number in range(len(later) + 1):
            expected = scene.copy(f"expected-{number}")
            expected.restart({f"a/{name}" for name in names if name not in later[number:]})
            self.first.append(expected.outcome())
            expected.go_on()
            self.then.append(expected.outcome())

    def require(self, scene: Scene) -> None:
        """A scene after the edit is as one of those, and goes on as that one does."""
        outcome = scene.outcome()
        assert outcome in self.first
        scene.go_on()
        assert scene.outcome() == self.then[self.first.index(outcome)]


def kill(scene: Scene, failpoint: str) -> bool:
    """Kill the run there; whether it came there before the edit was applied."""
    status = scene.edit(failpoint)
    if status == 0:
        return False
    assert status == -signal.SIGKILL
    assert scene.do("run", 2, 1_000_000) == 0
    return True


def take_over(scene: Scene, failpoint: str) -> bool:
    """Stop the run there, and let it go on while another one has taken over; whether it came there."""
    status = scene.edit(f"{failpoint}:pause")
    if status == 0:
        return False
    assert status == -signal.SIGSTOP
    if scene.is_locked():
        assert scene.server.resume() == 0
        return True
    assert scene.do("run_and_stop", 2) == -signal.SIGSTOP
    # One that has come to its end has nothing more to commit, and need not find out.
    assert scene.server.resume() in (FENCED, 0)
    assert scene.server.resume() == 0
    return True


def sweep(scenario: Scenario, server: CrashServer, disturb: Disturb, failpoints: Iterable[str]) -> None:
    """Disturb a run at one failpoint after the other, until one is not reached before the edit is applied."""
    with tempfile.TemporaryDirectory() as folder:
        begun = Scene.begin(Path(folder) / "begun", scenario, server)
        expected = Expected(begun)
        for number, failpoint in enumerate(failpoints):
            scene = begun.copy(failpoint)
            is_reached = disturb(scene, failpoint)
            expected.require(scene)
            shutil.rmtree(scene.folder)
            if not is_reached:
                assert number, "nothing was disturbed"
                return
        raise AssertionError("the edit has no end")


KILLS = (kill, ("metadata.committing", "metadata.committed"))
TAKEOVERS = (
    take_over,
    ("metadata.committed",),
)  # a process that is stopped before a commit has the database for itself
DISTURBED = [pytest.param(*KILLS, id="killed"), pytest.param(*TAKEOVERS, id="taken over")]


def every(step: int, points: Sequence[str]) -> Iterator[str]:
    """Each of these points each time that it is reached; or some of all that."""
    times = (f"{point}:{number}" for number in itertools.count(1) for point in points)
    return itertools.islice(times, 0, 300, step)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", range(len(SAMPLE)), ids=[*SAMPLE])
def test_interrupted_edit_is_applied_once(place: int, server: CrashServer) -> None:
    """Half of the edits are killed, and the others are taken over from."""
    disturb, points = (KILLS, TAKEOVERS)[place % 2]
    sweep([*SAMPLE.values()][place], server, disturb, every(97, points))


@pytest.mark.torture
@pytest.mark.parametrize(("disturb", "points"), DISTURBED)
@pytest.mark.parametrize("name", SCENARIOS)
def test_edit_interrupted_at_any_step_is_applied_once(
    name: str, disturb: Disturb, points: Sequence[str], server: CrashServer
) -> None:
    sweep(SCENARIOS[name], server, disturb, every(1, points))
