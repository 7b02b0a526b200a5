"""A run that ends between an endpoint's commit and its own, with the source of the rows replaced meanwhile.

An endpoint commits before the data folder. A run is killed at each place around the two commits, and around the swap of
a refill; then the source of the binding is replaced, the shards are split, or the catalog loses the binding and gets it
back. Once a later run has come to its end, the endpoint has the rows of the present source and no others. A binding
with `onSourceReset: stop` gets there by the command of its error's hint.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import TypeAlias

import orjson
import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from sql_databases import DATABASES, Database

from connectors.kit.servicer import ConnectorServer
from derive.algebra.types import Row
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.reset import start_over
from derive.errors import FlowError, SourceReplacedError
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door
from derive.storage.table_types import RowUpdate, Table, TableColumn, TableUpdate

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
VIEW, ITEMS, EVENTS, SUMS = "shop/view", "sql/public/items", "shop/events", "shop/sums"
COLUMNS = (TableColumn("id", "bigint"), TableColumn("v", "bigint"))
CATALOG = """
collections:
  sql/public/items:
    key: [/id]
    schema:
      type: object
      required: [id]
      if: {required: [_meta], properties: {_meta: {required: [op], properties: {op: {const: d}}}}}
      then: {reduce: {strategy: lastWriteWins, delete: true}}
      else: {reduce: {strategy: lastWriteWins}}
      properties: {id: {type: integer}, v: {type: integer}, _meta: {type: object, properties: {op: {type: string}}}}
  shop/events:
    key: [/number]
    schema:
      type: object
      required: [number, id, v]
      properties: {number: {type: integer}, id: {type: integer}, v: {type: integer}}
  shop/sums:
    key: [/id]
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, v: {type: integer, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: read, source: shop/events, shuffle: any, lambda: "SELECT $id, $v WHERE $id % 10 >= LEAST;"}]
materializations:
  shop/view:
    endpoint: ENDPOINT
    bindings:
      - {source: shop/events, resource: {table: events}}
      BINDING
"""
BINDING = "- {source: SOURCE, resource: {table: stored}, onSourceReset: RESET, backfill: BACKFILL}"


@dataclass
class Scene:
    """A data folder, an endpoint, and the contents of the source that is replaced.

    Attributes:
        folder: folder of the catalog and of the data.
        database: the database of the endpoint.
        address: address of the connector, which outlives runs.
        server: executes runs in processes of their own.
        kind: kind of the source, and of its replacement.
        resets: value of `onSourceReset`.
    """

    folder: Path
    database: Database
    address: str
    server: CrashServer
    kind: str
    resets: str
    wall: int = BASE
    backfill: int = 0
    least: int = 0
    is_bound: bool = True
    is_compacted: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    replaced: int = 0
    catalogs: dict[str, CatalogSpec] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return SUMS if self.kind == "derived" else ITEMS

    def write(self) -> CatalogSpec:
        endpoint = orjson.dumps({"address": self.address, "config": self.database.config}).decode()
        binding = BINDING.replace("SOURCE", self.source).replace("BACKFILL", str(self.backfill))
        binding = binding.replace("onSourceReset: RESET, ", "onSourceReset: follow, " * (self.resets == "follow"))
        text = CATALOG.replace("BINDING", binding if self.is_bound else "").replace("ENDPOINT", endpoint)
        text = text.replace("LEAST", str(self.least))
        if text not in self.catalogs:
            self.catalogs = {text: load(write_catalog(self.folder, text))}
        return self.catalogs[text]

    @contextmanager
    def world(self) -> Iterator[World]:
        with closing((world := World(self.folder / "data", self.write(), wall=self.wall)).store):
            yield world

    # Sources

    def begin(self) -> None:
        with self.world() as world:
            world.store.create(*world.catalog.collections.values())
            if self.kind != "derived":
                self.create(world)
        self.change(1, 2, 3, 4, 5, 6, 7)

    def create(self, world: World) -> None:
        if self.kind == "view":
            world.store.tables.create(ITEMS, COLUMNS, view_of=[EVENTS])
        else:
            world.store.tables.create(ITEMS, COLUMNS)

    def change(self, *keys: int) -> None:
        """Ingest an event of each key, and give a row of the table another value."""
        with self.world() as world:
            for key in keys:
                world.wall = self.wall = self.wall + SECOND
                known = world.store.collection(EVENTS)
                number = known.documents if known else 0
                world.ingest(EVENTS, [{"number": number, "id": key, "v": number + 1}], clock=None)
                if self.kind != "derived":
                    self.append(world, {key: self.rows.get(key, 0) + 100})
        self.wall += 3 * SECOND

    def append(self, world: World, rows: dict[int, int]) -> None:
        table = world.store.tables.find(ITEMS)
        assert table is not None
        others = [None] * (len(table.columns) - 2)
        updates = [((key, self.rows[key], *others), -1) for key in rows if key in self.rows]
        updates += [((key, value, *others), 1) for key, value in rows.items()]
        self.commit(world, table, [*updates])
        self.rows |= rows

    def commit(self, world: World, table: Table, rows: Sequence[tuple[Row, int]]) -> None:
        """Write rows, and advance the table; only its dataflow advances a materialized view."""
        clock = world.store.timeline.assign(1)
        updates = tuple(RowUpdate(clock, *change) for change in TableRows(table).changes(rows))
        door = Door.DATAFLOW if self.kind == "view" else Door.SERVER
        world.store.tables.commit([TableUpdate(table.id, None, clock + 1, updates)], door)

    def replace(self) -> None:
        """Replace the source by another one that lacks a key; an altered table keeps its rows."""
        self.replaced += 1
        with self.world() as world:
            if self.kind == "derived":
                start_over(world.store, [SUMS], [])
                self.least += 2
                return
            table = world.store.tables.find(ITEMS)
            assert table is not None
            if self.kind == "altered":
                columns = (*table.columns, TableColumn(f"c{len(table.columns)}", "text"))
                world.define(Definitions(altered={table.id: columns}))
                return
            if self.kind == "renamed":
                world.define(Definitions(renamed={table.id: f"sql/public/former{self.replaced}"}))
                self.create(world)
                self.commit(world, table, [((77, 77), 1)])
            else:
                world.define(Definitions(dropped=(table.id,)))
                self.create(world)
        self.rows = {}
        self.change(*range(1 + self.replaced, 8))

    def compact(self) -> None:
        """Compact the history of the source up to its end."""
        self.is_compacted = True
        with self.world() as world:
            known = world.store.collection(self.source)
            assert known is not None
            compact(world.store, world.catalog.collections[self.source], since=known.upper - 1, grace=0)

    # Runs

    def do(self, what: str, *arguments: object, failpoint: str = "") -> int:
        self.wall += 3 * SECOND
        with self.world() as world:
            table = world.store.tables.find(ITEMS)
            if table is not None:
                self.commit(world, table, ())
        order = {"source": str(self.folder / "flow.yaml"), "data": str(self.folder / "data"), "wall": self.wall}
        return self.server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)

    def run(self, tasks: list[str] | None = None, failpoint: str = "") -> int:
        return self.do("run", 2, 3, "", tasks, failpoint=failpoint)

    def settle(self) -> None:
        """Run everything to the end; a materialization that stops as its source was replaced is reset, as told."""
        for _ in range(3):
            if self.do("run_twice", 2, ITEMS * (self.kind == "view")) == 0:
                break
            error = self.error()
            is_compacted = "was compacted while the input was not in the catalog" in error.message
            assert is_compacted or isinstance(error, SourceReplacedError), error
            assert self.is_compacted or self.resets == "stop" or self.backfill
            assert "flowctl reset" in (error.hint or "")
            assert self.do("reset", VIEW) == 0
        assert self.do("run_twice", 2, ITEMS * (self.kind == "view")) == 0
        self.check()

    def error(self) -> FlowError:
        with self.world() as world:
            state = world.task(VIEW)
        assert state.error is not None
        return FlowError.from_json(orjson.loads(state.error))

    # Outcomes

    def check(self) -> None:
        with self.world() as world:
            for table, key, name in (("stored", "id", self.source), ("events", "number", EVENTS)):
                assert self.stored(table, key) == self.contents(world, name, key), table
        if self.kind != "derived":
            assert self.stored() == self.rows

    def check_refilled(self, moment: str, before: dict[int, int]) -> None:
        """Require that readers see the rows from before a refill, or the source at a time that is not earlier."""
        with self.world() as world:
            now = self.contents(world, self.source, "id")
        allowed = [before, now]
        if moment == "backfill":
            allowed.append(before | {3: now[3]})  # after the first of two changes
        elif self.kind not in ("derived", "altered"):  # the new table has only later rows
            allowed += [dict(sorted(now.items())[:count]) for count in range(1, len(now))]
        assert self.stored() in allowed

    def stored(self, table: str = "stored", key: str = "id") -> dict[int, int]:
        return dict(self.database.query(f'SELECT "{key}", "v" FROM "{table}"'))

    def contents(self, world: World, name: str, key: str) -> dict[int, int]:
        scratch = self.folder / "scratch"
        spec = world.catalog.collections[name]
        parts = read_reduced(world.store, spec, ReadOptions(), partial(reduced_locally, scratch=scratch))
        return {row[key]: row["v"] for rows in parts for row in rows.documents()}


@contextmanager
def opened(endpoint: str, kind: str, resets: str, server: CrashServer, folder: Path) -> Iterator[Scene]:
    """A scene whose connector serves in this process."""
    database = DATABASES[endpoint](folder)
    connector = ConnectorServer(database.connector, "127.0.0.1:0")
    yield Scene(folder, database, connector.address, server, kind, resets)
    connector.stop()


REFILL = ("refill.applied:1", "refill.completing:1", "refill.completed:1")
COMMITS = (
    *(f"materialize.{name}:{times}" for name in ("committing", "committed") for times in (1, 3)),
    *(f"metadata.{name}:{times}" for name in ("committing", "committed") for times in (4, 6)),
)
FEW = ("materialize.committed:1",)
ELSEWHERE = ("duckdb", "postgres")
AFTER = ("nothing", "reset", "once", "twice", "split", "split and once", "removed", "removed and once")
KINDS = [*product(("derived", "dropped", "renamed", "altered", "view"), ("follow", "stop"))]


Case: TypeAlias = tuple[str, str, str, str, str, str]
"""Database, kind of source, what follows resets, what happens after the kill, the moment of the kill, and its failpoint."""


def moments(commits: Sequence[str]) -> list[tuple[str, str]]:
    """Each moment with the failpoints at which its run is killed."""
    refilling = [*product(("refill", "backfill"), (*REFILL, *commits))]
    return [*product(("first", "ordinary"), commits), *refilling]


def come_to(scene: Scene, moment: str) -> None:
    """Come to a moment before which a run is killed; sources are up to date."""
    scene.begin()
    if moment != "first":
        scene.run()
        scene.check()
    if moment == "ordinary":
        scene.change(3, 8)
    if moment == "refill":
        scene.replace()
        scene.do("reset", VIEW)
    if moment == "backfill":
        scene.change(3, 8)
        scene.backfill += 1
    assert scene.run([SUMS]) == 0


def happen(scene: Scene, after: str) -> None:
    if after == "reset":
        assert scene.do("reset", VIEW) == 0
    if after.startswith("split"):
        assert scene.do("split", VIEW, 4) == 0
    if after.startswith("removed"):
        scene.is_bound = False
        assert scene.run() == 0
        scene.change(1, 2, 3, 8)
        scene.run([SUMS])
        scene.compact()
    for _ in range(2 if after == "twice" else after.endswith("once")):
        scene.replace()
        scene.run([SUMS])
    scene.is_bound = True


def cases(databases: Sequence[str], commits: Sequence[str]) -> list[Case]:
    return [
        (database, *kind, after, *moment)
        for database, kind, after, moment in product(databases, KINDS, AFTER, moments(commits))
    ]


def kill(case: Case, server: CrashServer, folder: Path) -> None:
    """Kill a run at a moment, let something happen, and require the rows of the present source."""
    database, kind, resets, after, moment, place = case
    with opened(database, kind, resets, server, folder) as scene:
        come_to(scene, moment)
        before = scene.stored() if moment in ("refill", "backfill") else {}
        assert scene.run([VIEW], failpoint=place) in (0, -signal.SIGKILL)
        if before:
            scene.check_refilled(moment, before)
        happen(scene, after)
        scene.settle()
        scene.change(2, 9)
        scene.settle()


CHANCE = Random(Path(__file__).read_bytes())
SAMPLE = CHANCE.sample(cases(("sqlite",), COMMITS), 1) + CHANCE.sample(cases(ELSEWHERE, FEW), 1)
"""Cases of `make test`; an edit of this file changes them."""


@pytest.mark.parametrize("case", SAMPLE, ids="-".join)
def test_killed_run_leaves_only_rows_of_the_present_source(case: Case, server: CrashServer, tmp_path: Path) -> None:
    kill(case, server, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("database", ["sqlite", *ELSEWHERE])
def test_killed_run_leaves_only_rows_of_the_present_source_at_any_failpoint(
    database: str, kind: tuple[str, str], after: str, server: CrashServer, tmp_path: Path
) -> None:
    for number, (moment, place) in enumerate(moments(COMMITS if database == "sqlite" else FEW)):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            kill((database, *kind, after, moment, place), server, folder)
        except BaseException as error:
            error.add_note(f"killed at {place} of {moment}")
            raise


def test_endpoint_rows_of_a_compacted_history_are_not_stored_twice(server: CrashServer, tmp_path: Path) -> None:
    """The catalog loses a binding whose first rows only the endpoint has, and the history is compacted meanwhile."""
    with opened("sqlite", "derived", "follow", server, tmp_path) as scene:
        come_to(scene, "first")
        assert scene.run([VIEW], failpoint="materialize.committed:2") == -signal.SIGKILL
        happen(scene, "removed")
        assert scene.do("run_twice", 2) == 1
        assert "was compacted while the input was not in the catalog" in scene.error().message
        scene.settle()
