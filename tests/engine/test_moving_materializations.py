"""Materializations move between machines: every row is stored exactly once, whoever is stopped, and wherever (law L2).

A machine is a data folder of its own, over one PostgreSQL and one object store. The connector serves in this process,
so other machines can take over at any point of a session's work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import World, write_catalog
from crash_client import FENCED, CrashServer
from materialized import CATALOG, folded, ingest, served, tables
from patience import PATIENCE_SECONDS
from postgres_server import server as postgres_server
from sql_databases import DATABASES
from test_late_sessions import POINTS, LateConnector, errors_of, stored
from webhook_server import listening

from connectors.kit.servicer import ConnectorServer
from connectors.materialize_webhook import WebhookConnector
from derive.backup import back_up
from derive.catalog import load
from derive.engine.reset import reset, split
from derive.engine.run import Run
from derive.errors import EndpointError, EndpointGoneError, FencedError, TaskError
from derive.materialize.worker import close_streams
from derive.restore import restore
from derive.shard.state import task_folder
from derive.storage.location import ObjectFolder
from derive.storage.metadata.location import choose_location
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place
from derive.time.extent import Limits

pytest.importorskip("obstore")

VIEW, DAY = "shop/view", 86_400_000_000
SERVED = '{ address: "ADDRESS", config: { path: "PATH" } }'


@dataclass
class Machines:
    """Machines with one data folder.

    Attributes:
        north: a machine.
        south: another one.
        days: number of days with orders.
    """

    north: World
    south: World
    days: int = 0

    def ingest(self, begin: int, end: int) -> None:
        """Ingest orders of a day, which is over then."""
        self.days += 1
        for world in (self.north, self.south):
            world.wall = 1_704_067_200_000_000 + self.days * DAY
        ingest(self.north, begin, end, self.days)


@contextmanager
def machines(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Two machines that run a catalog."""
    monkeypatch.setenv(VARIABLE, postgres_server().metadata_url_by_file)
    catalog = load(write_catalog(folder, text))
    worlds: list[World] = []
    for name in ("north", "south"):
        settle_place(folder / name, place_of(os.environ[VARIABLE]), creates=True)
        if not worlds:
            choose_location(folder / name, ObjectFolder(f"file://{folder}/objects"))
        worlds.append(World(folder / name, catalog, cache=folder / f"{name} cache"))
    try:
        north, south = worlds
        yield Machines(north, south)
    finally:
        close_streams()
        for world in worlds:
            world.store.close()


@contextmanager
def databases(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machines, LateConnector]]:
    """Two machines that materialize into a database, by a connector of this process."""
    connector = LateConnector(DATABASES[kind](folder))
    serving = ConnectorServer(connector, "127.0.0.1:0")
    text = CATALOG.replace(SERVED, json.dumps({"address": serving.address, "config": connector.database.config}))
    try:
        with machines(folder, text, monkeypatch) as both:
            yield both, connector
            connector.act = lambda point: None
    finally:
        serving.stop()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", ["opening", *POINTS])
@pytest.mark.parametrize("kind", [*DATABASES])
def test_stopped_run_stores_nothing_once_another_machine_has_the_task(
    tmp_path: Path, kind: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that continues after another machine has taken over stores no row, and the other run continues."""
    if (kind, point) == ("postgres", "commit"):
        pytest.skip("a session waits 3 s for the transaction of the other, and then ends its connection")
    with databases(tmp_path, kind, monkeypatch) as (both, connector):
        both.ingest(0, 40)
        both.north.step()
        both.ingest(40, 60)
        stopped, taken = both.north.run(), list[str]()
        run = None

        def act(reached: str) -> None:
            nonlocal run
            if reached == point and not taken:
                taken.append(reached)
                both.ingest(60, 80)
                run = both.south.run()
                run.step()
                assert errors_of(run) == []
                assert stored(connector) == folded(both.south)

        connector.act = act
        with pytest.raises(FencedError):
            stopped.step()
        assert taken
        assert run is not None
        assert stored(connector) == folded(both.south)
        for begin in (80, 100):
            both.ingest(begin, begin + 30)
            run.step()
            assert errors_of(run) == []
            assert stored(connector) == folded(both.south)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [*DATABASES])
def test_session_that_opens_late_stores_nothing(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is stopped before it opens a session, which opens in the middle of the work of another machine."""
    with databases(tmp_path, kind, monkeypatch) as (both, connector):
        both.ingest(0, 40)
        both.north.step()
        both.ingest(40, 80)
        runs, begun, ended = list[Run](), threading.Event(), threading.Event()

        def work() -> None:
            runs.append(both.south.run(limits=Limits(documents=7)))
            runs[0].step()

        other = threading.Thread(target=work)

        def act(reached: str) -> None:
            if reached == "opening" and not other.ident:
                other.start()
                assert begun.wait(PATIENCE_SECONDS)
            if reached == "committed" and not begun.is_set():
                begun.set()
                assert ended.wait(PATIENCE_SECONDS)

        stopped = both.north.run()
        connector.act = act
        with pytest.raises(FencedError):
            stopped.step()
        ended.set()
        other.join()
        assert errors_of(runs[0]) == []
        assert stored(connector) == folded(both.south)


@dataclass
class Course:
    """A random course of events on two machines, each of which may take over at any point of the other's work."""

    both: Machines
    connector: LateConnector
    dice: random.Random
    is_slow: bool
    left: int = 0
    breaks: int = 0
    busy: list[World] = field(default_factory=list)

    def act(self, point: str) -> None:
        """Perhaps let the other machine take over, or the connection break."""
        if len(self.busy) < 2 and self.left and self.dice.random() < 0.15 and not (self.is_slow and point == "commit"):
            self.left -= 1
            self.turn()
        if self.breaks and self.dice.random() < 0.1:
            self.breaks -= 1
            raise EndpointGoneError(f"the connection broke at '{point}'")

    def turn(self) -> None:
        """Let a machine do something, until it is fenced or an error occurs."""
        world = self.dice.choice([one for one in (self.both.north, self.both.south) if one not in self.busy])
        self.busy.append(world)
        choice = self.dice.random()
        try:
            with suppress(FencedError, EndpointGoneError):
                if choice < 0.1:
                    reset(world.catalog, world.store, [VIEW])
                elif choice < 0.2:
                    reset(world.catalog, world.store, ["shop/spending"], cascade=True)
                elif choice < 0.25 and (state := world.store.task(VIEW)) and state.shards < 4:
                    split(world.store, VIEW, is_materialized=True)
                else:
                    self.go(world)
        finally:
            self.busy.remove(world)

    def go(self, world: World) -> None:
        """Run all tasks on a machine."""
        begin = self.dice.randrange(100)
        self.both.ingest(begin, begin + self.dice.randrange(1, 40))
        run = world.run(limits=Limits(documents=self.dice.choice([7, 1000])))
        run.step()
        unexpected = [error for error in errors_of(run) if not isinstance(error, EndpointGoneError)]
        assert unexpected == []

    def finish(self) -> None:
        """Let each machine run once more, undisturbed."""
        self.left = self.breaks = 0
        for world in (self.both.north, self.both.south):
            self.go(world)
            assert stored(self.connector) == folded(world)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("kind", [*DATABASES])
def test_machines_that_take_over_anywhere_store_every_row_exactly_once(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: at any interleaving of runs, resets and splits on two machines, tables equal the collections."""
    with databases(tmp_path, kind, monkeypatch) as (both, connector):
        course = Course(both, connector, random.Random(seed), is_slow=kind == "postgres")
        connector.act = course.act
        for _ in range(5):
            course.left, course.breaks = course.dice.randrange(3), int(course.dice.random() < 0.3)
            course.turn()
        course.finish()


POINTS_OF_DEATH = (
    *(("run", point) for point in ("materialize.committing", "materialize.committed", "metadata.committing")),
    *(("run", point) for point in ("metadata.committed", "refill.applied", "refill.completing", "refill.completed")),
    *(("reset", point) for point in ("reset.committing", "reset.committed")),
    *(("split", point) for point in ("metadata.committing", "split.committed")),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["", ":pause"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("what", "point"), POINTS_OF_DEATH)
def test_machine_continues_what_another_one_has_begun(
    tmp_path: Path, server: CrashServer, what: str, point: str, times: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: a driver is killed or stopped at a failpoint, while tables are refilled; the next one is elsewhere."""
    if (point, way) == ("metadata.committing", ":pause"):
        pytest.skip("the server ends the transaction of a stopped process after 30 s")
    path = tmp_path / "out.db"
    with served() as address:
        text = CATALOG.replace("ADDRESS", address).replace("PATH", str(path))
        with machines(tmp_path, text, monkeypatch) as both:

            def do(world: World, deed: str, *arguments: object, failpoint: str = "") -> int:
                close_streams()
                order = {"source": str(tmp_path / "flow.yaml"), "data": str(world.root), "cache": str(world.cache)}
                return server.attempt(order | {"wall": world.wall, "do": deed, "arguments": arguments}, failpoint)

            both.ingest(0, 40)
            assert do(both.north, "run", 2, 1_000_000) == 0
            assert do(both.south, "reset", "shop/spending") == 0
            both.ingest(30, 60)
            arguments = {"run": (2, 20), "reset": (VIEW,), "split": (VIEW, 4)}[what]
            died = do(both.north, what, *arguments, failpoint=f"{point}:{times}{way}")
            assert died in (0, -signal.SIGSTOP if way else -signal.SIGKILL)
            both.ingest(60, 70)
            assert do(both.south, "run", 2, 20) == 0
            assert tables(path) == folded(both.south)
            if died == -signal.SIGSTOP:
                assert server.resume() in (0, FENCED)
            for world in (both.north, both.south):
                both.ingest(50 + both.days, 80)
                assert do(world, "run", 2, 20) == 0
                assert tables(path) == folded(world)


def test_checkpoint_that_an_endpoint_does_not_store_moves_with_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each document is posted once by whichever machine runs, also after an error within a transaction."""
    with listening() as hook:
        serving = ConnectorServer(WebhookConnector(), "127.0.0.1:0")
        text = CATALOG.replace(SERVED, json.dumps({"address": serving.address, "config": {"address": hook.address}}))
        with machines(tmp_path, text.replace("resource: { table: ", "resource: { path: "), monkeypatch) as both:
            both.ingest(0, 10)
            both.north.step()
            split(both.south.store, VIEW, is_materialized=True)
            both.ingest(10, 20)
            hook.answers.extend([(200, {}), (200, {}), (400, {})])  # one shard has posted both bindings, and one fails
            with pytest.raises(EndpointError, match="400"):
                both.south.step()
            for world in (both.north, both.south):
                both.ingest(both.days * 10, both.days * 10 + 10)
                world.step()
            assert sorted(document["id"] for document in hook.documents("/orders")) == list(range(40))
        serving.stop()


def test_materialization_into_a_file_stays_on_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split elsewhere does not move it; a restored folder continues with the files of its machine."""
    endpoint = {"connector": {"image": "materialize-sqlite", "config": {"path": "north.db"}}}
    with machines(tmp_path, CATALOG.replace(SERVED, json.dumps(endpoint)), monkeypatch) as both:
        both.ingest(0, 10)
        both.north.step()
        back_up(both.north.store, tmp_path / "backup")
        both.ingest(10, 20)
        split(both.south.store, VIEW, is_materialized=True)
        with pytest.raises(TaskError, match="its endpoint is a file or folder there") as refused:
            both.south.step()
        assert refused.value.hint is not None
        assert refused.value.hint.startswith(
            f"run it there: flowctl run --task {VIEW}; or store all rows again on this"
        )
        restore(
            tmp_path / "backup", tmp_path / "restored", segments=ObjectFolder(f"file://{tmp_path}/restored objects")
        )
        restored = World(tmp_path / "restored", both.north.catalog, cache=tmp_path / "restored cache")
        restored.wall = both.north.wall
        restored.step()
        assert len(tables(tmp_path / "north.db")["shop/orders"]) == 10
        restored.store.close()
        both.north.step()
        assert tables(tmp_path / "north.db") == folded(both.north)

        reset(both.south.catalog, both.south.store, [VIEW])
        both.south.step()
        assert tables(tmp_path / "north.db") == folded(both.south)


def test_split_needs_the_files_of_an_earlier_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last reset may be in a file of another machine, whose next run records it."""
    with served() as address:
        path = tmp_path / "out.db"
        text = CATALOG.replace("ADDRESS", address).replace("PATH", str(path))
        with machines(tmp_path, text, monkeypatch) as both:
            both.ingest(0, 10)
            both.north.step()
            reset(both.north.catalog, both.north.store, [VIEW])
            both.north.step()
            restart = both.north.store.materialization(VIEW).restart
            with both.north.store.metadata.transaction() as db:
                db.execute("DELETE FROM materialization")
            (task_folder(both.north.root, VIEW) / "restart").write_text(restart)
            with pytest.raises(TaskError, match="has run with an earlier release on another machine"):
                split(both.south.store, VIEW, is_materialized=True)
            for world in (both.north, both.south):
                both.ingest(both.days * 10, 20)
                world.step()
                assert world.store.materialization(VIEW).restart == restart
                assert tables(path) == folded(world)
