"""A run that is killed while a task follows its source to another relation: rows are taken back once, and added once.

A table is replaced under derivations and materializations with `onSourceReset: follow`. A run is killed wherever one of
its commits is about to be made, and where it is made, and where files of the switch are written or removed. The next
run comes to the documents, tables and rights to which a run comes that nobody has killed; and where the table is replaced again in
between, to what the last table holds.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from materialized import served

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.executor import InProcessExecutor
from derive.engine.run import SilentObserver
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.errors import FencedError
from derive.relations.table_rows import TableRows
from derive.storage.metadata.definitions import Definitions
from derive.storage.table_types import Table, TableColumn

BASE, SECOND = 1_700_000_000_000_000, 1_000_000
ITEMS, OTHER = "sql/public/items", "sql/public/other"
COLUMNS = (TableColumn("id", "bigint"), TableColumn("v", "bigint"))
CATALOG = """
collections:
  sql/public/items:
    schema:
      type: object
      required: [id]
      if: {required: [_meta], properties: {_meta: {required: [op], properties: {op: {const: d}}}}}
      then: {reduce: {strategy: lastWriteWins, delete: true}}
      else: {reduce: {strategy: lastWriteWins}}
      properties: {id: {type: integer}, v: {type: integer}, _meta: {type: object, properties: {op: {type: string}}}}
    key: [/id]
  t/sums:
    schema:
      type: object
      required: [g]
      reduce: {strategy: merge}
      properties:
        g: {type: integer}
        n: {type: integer, reduce: {strategy: sum}}
        v: {type: integer, reduce: {strategy: sum}}
    key: [/g]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: read
          source: sql/public/items
          shuffle: any
          onSourceReset: follow
          lambda: SELECT $v % 2 AS g, iif($_meta$op IS 'd', -1, 1) AS n, iif($_meta$op IS 'd', -$v, $v) AS v;
  t/greatest:
    schema:
      type: object
      required: [g]
      reduce: {strategy: merge}
      properties: {g: {type: integer}, v: {type: integer, reduce: {strategy: maximize}}}
    key: [/g]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: read
          source: sql/public/items
          shuffle: any
          onSourceReset: follow
          lambda: SELECT $v % 2 AS g, $v WHERE $_meta$op IS NOT 'd';
materializations:
  t/stored:
    endpoint: ENDPOINT(stored.db)
    bindings:
      - {source: sql/public/items, resource: {table: items}, onSourceReset: follow}
      - {source: t/sums, resource: {table: sums}}
  t/again:
    endpoint: ENDPOINT(again.db)
    bindings: [{source: t/greatest, resource: {table: greatest}, onSourceReset: follow}]
"""
Rows = dict[int, int]


@dataclass
class Scene:
    """A data folder, and what the table in it holds.

    Attributes:
        address: of a connector that outlives runs.
        copied: clock at which the folder was copied; a run of the copy makes a switch later.
    """

    folder: Path
    server: CrashServer
    address: str
    wall: int = BASE
    copied: int = BASE
    rows: Rows = field(default_factory=dict)
    greatest: Rows = field(default_factory=dict)

    def copy(self, name: str) -> Scene:
        """Another one, that is as far."""
        folder = self.folder.with_name(name)
        shutil.copytree(self.folder, folder)
        scene = Scene(folder, self.server, self.address, self.wall, self.wall, dict(self.rows), dict(self.greatest))
        scene.write()
        return scene

    def write(self) -> None:
        """Write the catalog, with databases in this folder."""
        endpoint = rf"{{address: '{self.address}', config: {{path: {self.folder}/\1}}}}"
        write_catalog(self.folder, re.sub(r"ENDPOINT\((.*)\)", endpoint, CATALOG))

    def world(self) -> World:
        return World(self.folder / "data", load(self.folder / "flow.yaml"), wall=self.wall)

    def run(self) -> None:
        """Run all tasks until they are at rest."""
        assert self.kill("") == 0
        assert self.kill("") == 0

    def kill(self, failpoint: str) -> int:
        """Run all tasks in a process of its own, for some seconds, and kill it; the exit status."""
        source = {"source": str(self.folder / "flow.yaml"), "data": str(self.folder / "data"), "wall": self.wall}
        status = self.server.attempt(source | {"do": "run_twice", "arguments": [2]}, failpoint)
        assert status in (0, -signal.SIGKILL)
        self.wall += 4 * SECOND
        return status

    # Statements of people

    def change(self, **changes: int | None) -> None:
        """Give rows of the table, by id, other values; or delete them."""
        with closing((world := self.world()).store):
            self._change(world, {int(key[1:]): value for key, value in changes.items()})

    def _change(self, world: World, changes: dict[int, int | None]) -> None:
        for key, value in changes.items():
            table = world.store.tables.find(ITEMS)
            assert table is not None
            world.wall = self.wall = self.wall + SECOND
            before = self.rows.pop(key, None)
            updates = [] if before is None else [((key, before), -1)]
            if value is not None:
                updates.append(((key, value), 1))
                self.rows[key] = value
                self.greatest[value % 2] = max(value, self.greatest.get(value % 2, value))
            clock = world.store.timeline.assign(1)
            world.store.tables.append(clock, {table.id: TableRows(table).changes(updates)})
        self.wall += 6 * SECOND

    def replace(self, **changes: int) -> None:
        """Have another table take the place of this one."""
        with closing((world := self.world()).store):
            former = world.store.tables.find(ITEMS)
            assert former is not None
            world.define(Definitions(dropped=(former.id,)))
            world.store.tables.create(ITEMS, COLUMNS)
            self._take(world, changes)

    def change_places(self, **changes: int) -> None:
        """Have another table take the place of this one, which is kept, and changes later."""
        with closing((world := self.world()).store):
            former = world.store.tables.find(ITEMS)
            assert former is not None
            other = world.store.tables.create(OTHER, COLUMNS)
            world.define(Definitions(renamed={former.id: OTHER, other.id: ITEMS}))
            self._take(world, changes)
            world.wall = self.wall
            rows = TableRows(former).changes([((77, 77), 1)])
            world.store.tables.append(world.store.timeline.assign(1), {former.id: rows})

    def _take(self, world: World, changes: dict[str, int]) -> None:
        self.rows, self.greatest = {}, {}
        self._change(world, {int(key[1:]): value for key, value in changes.items()})

    # Outcomes

    def check(self) -> None:
        """All that is derived and stored follows from the table that has the name now, and from nothing else."""
        values = list(self.rows.values())
        sums = {g: (len(of), sum(of)) for g in (0, 1) if (of := [v for v in values if v % 2 == g])}
        with closing((world := self.world()).store):
            groups = {row["g"]: (row["n"], row["v"]) for row in self._reduced(world, "t/sums")}
            assert {g: group for g, group in groups.items() if group != (0, 0)} == sums
            assert {row["g"]: row["v"] for row in self._reduced(world, "t/greatest")} == self.greatest
        tables = self.tables()
        assert {row[0]: row[1] for row in tables["items"]} == self.rows
        assert {row[0]: row[1:] for row in tables["sums"] if row[1:] != (0, 0)} == sums
        assert self.greatest.items() <= dict(tables["greatest"]).items()

    def _reduced(self, world: World, name: str) -> list[dict[str, int]]:
        parts = read_reduced(
            world.store,
            world.catalog.collections[name],
            ReadOptions(),
            lambda root, spec, read: reduced_locally(root, spec, read, self.folder),
        )
        return [document for rows in parts for document in rows.documents()]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of the materialized tables."""
        tables = {}
        queries = {"items": "id, v", "sums": "g, n, v", "greatest": "g, v"}
        for name, columns in queries.items():
            file = self.folder / ("again.db" if name == "greatest" else "stored.db")
            with closing(apsw.Connection(str(file))) as database:  # the connector's library, which may be served here
                database.set_busy_timeout(30_000)
                tables[name] = list(database.execute(f"SELECT {columns} FROM {name} ORDER BY 1"))
        return tables

    def outcome(self) -> dict[str, Any]:
        """All that a run leaves: documents, frontiers, what is known of tasks, who may do what, and tables.

        The time of a switch is the last one before the run that has noted it, which may be the second one. So clocks
        from the last one before the copy on are numbered: documents of one time have one number.
        """
        outcome: dict[str, Any] = {**self.tables()}
        with closing((world := self.world()).store):
            for name in world.catalog.derivations:
                known = world.store.collection(name)
                outcome[name] = (known and (known.since, known.upper, known.relation), self._numbered(world.rows(name)))
            for name in world.catalog.tasks:
                state = world.store.task(name)
                outcome[f"task {name}"] = state and (state.shards, state.positions, state.error, state.places)
        with closing(apsw.Connection(str(self.folder / "data" / "metadata.db"))) as database:
            rows = database.execute("SELECT kind, collection, task, transform, frontier, at FROM capability").fetchall()
        return outcome | {"rights": sorted(rows, key=repr), "files": self.files()}

    def _numbered(self, rows: list[tuple[int, int, bytes, str]]) -> list[tuple[Any, ...]]:
        later = sorted({row[0] for row in rows if row[0] >= self.copied - 1})
        return [(later.index(row[0]) if row[0] in later else row[0], *row[1:]) for row in rows]

    def files(self) -> list[str]:
        """Return the names of the files of switches."""
        return sorted(path.name for path in (self.folder / "data").rglob("*.parquet") if "@switch" in str(path))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as address:
        yield address


FILES = (
    "materialize.committing",
    "materialize.committed",
    "segment.closed",
    "segment.closing",
    "switch.written",
    "switch.removed",
    "reset.committing",
    "reset.committed",
    "reset.removed",
)
COMMITS = ("metadata.committing", "metadata.committed")


def begun(folder: Path, server: CrashServer, address: str) -> Scene:
    """A scene in which all is derived and stored of a first table."""
    folder.mkdir()
    scene = Scene(folder, server, address)
    scene.write()
    with closing((world := scene.world()).store):
        world.store.tables.create(ITEMS, COLUMNS)
    scene.change(k1=10, k2=21, k3=30)
    scene.run()
    scene.check()
    return scene


def one_that_has_changed(scene: Scene) -> None:
    scene.change(k2=23, k3=None, k4=40)


def one_created_again(scene: Scene) -> None:
    scene.change(k2=23, k3=None)  # which nobody has read when it goes
    scene.replace(k1=10, k2=20, k5=51)


def one_that_changes_places(scene: Scene) -> None:
    scene.change(k4=44)
    scene.change_places(k1=11, k4=44, k6=61)


def nothing(scene: Scene) -> None: ...


def yet_another(scene: Scene) -> None:
    scene.replace(k1=12, k5=51, k7=70)


Act = Callable[[Scene], None]
SCENARIOS = {
    "created again": (one_created_again, nothing),
    "changes places": (one_that_changes_places, nothing),
    "and created again": (one_created_again, yet_another),
    "changed and created again": (one_that_has_changed, one_created_again),
    "changed and changes places": (one_that_has_changed, one_that_changes_places),
}


def sweep(folder: Path, server: CrashServer, scenario: str, point: str, step: int, address: str) -> int:
    """Kill a run at a failpoint each time, or each so many times, that it comes there; how often it was killed."""
    before, after = SCENARIOS[scenario]
    template = begun(folder / "begun", server, address)
    before(template)
    expected = template.copy("expected")
    expected.run()
    expected.check()
    outcome = expected.outcome()
    for kills, times in enumerate(itertools.count(1, step)):
        scene = template.copy("killed")
        if scene.kill(f"{point}:{times}") == 0:
            return kills
        go_on(scene, after, outcome)
        shutil.rmtree(scene.folder, ignore_errors=True)  # its connector may still be closing it
    raise AssertionError


def go_on(scene: Scene, after: Act, outcome: dict[str, Any]) -> None:
    """Require that a scene whose run was killed comes to what is right, then and later."""
    after(scene)
    if after is nothing:
        assert scene.kill("") == 0
        scene.check()
        assert scene.outcome() == outcome
    else:
        scene.run()
        scene.check()
    scene.change(k1=99, k8=80)
    scene.run()
    scene.check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("scenario", "point", "step"),
    [
        ("created again", "switch.written", 1),
        ("created again", "materialize.committing", 4),
        ("changed and created again", "materialize.committed", 3),
    ],
)
def test_switch_is_made_once_after_any_kill(
    scenario: str, point: str, step: int, server: CrashServer, address: str, tmp_path: Path
) -> None:
    assert sweep(tmp_path, server, scenario, point, step, address) > 1


@pytest.mark.torture
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("point", FILES)
def test_switch_is_made_once_after_a_kill_at_any_file(
    scenario: str, point: str, server: CrashServer, address: str, tmp_path: Path
) -> None:
    sweep(tmp_path, server, scenario, point, 1, address)


@pytest.mark.torture
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("point", COMMITS)
def test_switch_is_made_once_after_a_kill_at_any_commit(
    scenario: str, point: str, server: CrashServer, address: str, tmp_path: Path
) -> None:
    assert sweep(tmp_path, server, scenario, point, int(os.environ.get("FLOW_KILL_STEP", "1")), address) > 1


def test_l5_switch_retracts_rows_of_a_fenced_run(server: CrashServer, address: str, tmp_path: Path) -> None:
    """A superseded run commits nothing to the data folder, but may still store rows in an endpoint that has not heard."""
    scene = begun(tmp_path / "begun", server, address)
    with closing((first := scene.world()).store), closing((second := scene.world()).store):
        tables = first.store.tables
        former, other = tables.find(ITEMS), tables.create(OTHER, COLUMNS)
        assert former is not None

        def insert(table: Table, keys: range) -> None:
            later(1)
            rows = TableRows(table).changes([((key, key), 1) for key in keys])
            tables.append(first.store.timeline.assign(1), {table.id: rows})

        def later(seconds: int) -> None:
            first.wall = second.wall = first.wall + seconds * SECOND

        older = open_run(first.catalog, first.store, InProcessExecutor(), tasks=["t/stored"])
        insert(former, range(100, 120))
        later(3)
        older.step()  # which has streams of all shards open from now on
        newer = second.run()
        insert(other, range(300, 302))
        insert(former, range(200, 220))
        later(3)
        with pytest.raises(FencedError):
            older.step()
        assert (219, 219) in scene.tables()["items"]
        first.define(Definitions(renamed={former.id: "sql/public/former", other.id: ITEMS}))
        for _ in range(3):
            later(2)
            newer.step()
        assert not any(task.error for task in newer.tasks.values())
        assert scene.tables()["items"] == [(300, 300), (301, 301)]
        newer.close()
        older.close()


def test_l5_fenced_run_keeps_the_files_of_a_switch(server: CrashServer, address: str, tmp_path: Path) -> None:
    scene = begun(tmp_path / "begun", server, address)
    one_created_again(scene)
    with closing((first := scene.world()).store), closing((second := scene.world()).store):
        former = first.run()
        former.seal()
        former.tasks["t/sums"].follow()  # it notes the switch
        older, newer = first.run(), second.run()
        newer.tasks["t/sums"].follow()
        files = scene.files()
        older.tasks["t/sums"].follow()
        assert set(files) <= set(scene.files())
        for _ in range(3):
            second.wall += 2 * SECOND
            newer.step()
        assert not any(task.error for task in newer.tasks.values())
        for run in (newer, older, former):
            run.close()
    scene.check()


class Slow(SilentObserver):
    """Lets time pass with each transaction."""

    def __init__(self, world: World) -> None:
        self.world = world

    def committed(self, task: str, done: Committed) -> None:
        self.world.wall += SECOND


def test_a_run_until_idle_completes_refills(server: CrashServer, address: str, tmp_path: Path) -> None:
    scene = begun(tmp_path / "begun", server, address)
    one_created_again(scene)
    with closing((world := scene.world()).store):

        def sleep(seconds: float) -> None:
            world.wall += int(seconds * SECOND)

        tasks, executor = ["t/greatest", "t/again"], InProcessExecutor()
        with closing(open_run(world.catalog, world.store, executor, tasks=tasks, observer=Slow(world))) as run:
            run.until_idle(sleep=sleep)
    assert dict(scene.tables()["greatest"]) == scene.greatest
