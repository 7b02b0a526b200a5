"""Sources that are created again, renamed, altered or reset: a reader equals its own relation, or has stopped and says so.

The model of the state machine knows which relation each name stands for, and which one each reader holds.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import apsw
import orjson
import pytest
from conftest import World, write_catalog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from derive.catalog import load
from derive.contents.reads import ReadOptions, subscribe_at
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import acquire_inputs
from derive.engine.reset import reset
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import TaskSpec
from derive.errors import FencedError, SourceReplacedError
from derive.relations.table_rows import TableRows
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, Table, TableColumn, TableUpdate

ITEMS, OTHER = "sql/public/items", "sql/public/other"
COLUMNS = (TableColumn("id", "bigint"), TableColumn("v", "bigint"))

_SUMS = """
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, n: {type: integer, reduce: {strategy: sum}}, v: {type: integer, reduce: {strategy: sum}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: read
          source: sql/public/items
          shuffle: any
          lambda: SELECT $id, iif($_meta$op IS 'd', -1, 1) AS n, iif($_meta$op IS 'd', -$v, $v) AS v;
"""
_FOLLOW = "          onSourceReset: follow\n"
_COPY = """
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, v: {type: integer, reduce: {strategy: maximize}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: read
          source: t/greatest
          shuffle: any
          lambda: SELECT $id, $v;
"""
CATALOG = f"""
collections:
  sql/public/items:
    schema:
      type: object
      required: [id]
      properties: {{id: {{type: integer}}, v: {{type: integer}}, _meta: {{type: object, properties: {{op: {{type: string}}}}}}}}
    key: [/id]
  t/stops:{_SUMS}
  t/follows:{_SUMS}{_FOLLOW}
  t/greatest:
    schema:
      type: object
      required: [id]
      reduce: {{strategy: merge}}
      properties: {{id: {{type: integer}}, v: {{type: integer, reduce: {{strategy: maximize}}}}}}
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - name: read
          source: sql/public/items
          shuffle: any
          onSourceReset: follow
          lambda: SELECT $id, $v WHERE $_meta$op IS NOT 'd';
  t/copies:{_COPY}{_FOLLOW}
  t/watches:{_COPY}
"""

Row = tuple[int, int]


def sums(rows: Counter[Row]) -> dict[int, tuple[int, int]]:
    """Return the results of derivations of sums, without groups of which nothing is left."""
    groups: dict[int, tuple[int, int]] = {}
    for (key, value), count in rows.items():
        number, total = groups.get(key, (0, 0))
        groups[key] = number + count, total + count * value
    return {key: group for key, group in groups.items() if group != (0, 0)}


class Relation:
    """A table of the model."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()
        self.greatest: dict[int, int] = {}

    def insert(self, row: Row) -> None:
        self.rows[row] += 1
        self.greatest[row[0]] = max(row[1], self.greatest.get(*row))

    def forget(self) -> None:
        """Forget rows that are deleted."""
        rows = sorted(+self.rows)
        self.greatest = dict(rows)


class ReplacedSources(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        root = Path(mkdtemp())
        self.world = World(root / "data", load(write_catalog(root, CATALOG)), wall=1_000_000)
        self.names: dict[str, Relation | None] = {ITEMS: None, OTHER: None}
        self.tables: dict[str, Table] = {}
        self.held: Relation | None = None
        self.read: Relation | None = None
        self.holds_nothing = True  # the readers hold a relation that a catalog declares, and that has no table
        self.moved: list[Relation | None] = []  # relations that have got another name
        self.placeholders: set[str] = set()
        self.stopped = False
        self.stops: dict[int, tuple[int, int]] = {}
        self.follows: dict[int, tuple[int, int]] = {}
        self.greatest: dict[int, int] = {}
        self.open()
        self.step()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.run.close()
            self.world.store.close()

    def open(self) -> None:
        self.run: Run = self.world.run()
        if self.names[ITEMS] is None:  # what the catalog names is there, and is empty
            self.names[ITEMS] = Relation()
            self.placeholders.add(ITEMS)
        if self.held is None:
            self.held, self.holds_nothing = self.names[ITEMS], ITEMS in self.placeholders
        self.stopped = False

    # Statements of people

    @rule(name=st.sampled_from([ITEMS, OTHER]))
    def create(self, name: str) -> None:
        if name in self.tables:
            return
        self.tables[name] = self.world.store.tables.create(name, COLUMNS)
        if name not in self.placeholders:  # else the catalog has named the table before it was there
            self.names[name] = Relation()
        elif self.held is self.names[name]:
            self.holds_nothing = False  # the declared relation becomes the table
        self.placeholders.discard(name)

    @rule(name=st.sampled_from([ITEMS, OTHER]))
    def drop(self, name: str) -> None:
        if name in self.tables:
            self.world.define(Definitions(dropped=(self.tables.pop(name).id,)))

    @rule(name=st.sampled_from([ITEMS, OTHER]), row=st.tuples(st.integers(0, 2), st.integers(0, 3)))
    def insert(self, name: str, row: Row) -> None:
        relation = self.names[name]
        if name in self.tables and relation is not None:
            relation.insert(row)
            self._append(name, row, 1)

    @rule(name=st.sampled_from([ITEMS, OTHER]))
    def delete(self, name: str) -> None:
        relation = self.names[name]
        rows = sorted(relation.rows.elements()) if relation is not None and name in self.tables else []
        if rows and relation is not None:
            relation.rows[rows[0]] -= 1
            self._append(name, rows[0], -1)

    def _append(self, name: str, row: Row, diff: int) -> None:
        self.world.wall += 300_000
        table = self.tables[name]
        values = (*row, *[None] * (len(table.columns) - len(row)))
        self.world.store.tables.append(
            self.world.store.timeline.assign(1), {table.id: TableRows(table).changes([(values, diff)])}
        )

    @rule(name=st.sampled_from([ITEMS, OTHER]))
    def alter(self, name: str) -> None:
        if name in self.tables:
            table = self.tables[name]
            columns = (*table.columns, TableColumn(f"c{len(table.columns)}", "text"))
            self.world.define(Definitions(altered={table.id: columns}))
            altered = self.world.store.tables.table(table.id)
            assert altered is not None
            self.tables[name] = altered

    @rule(name=st.sampled_from([ITEMS, OTHER]))
    def rename(self, name: str) -> None:
        other = OTHER if name == ITEMS else ITEMS
        if name in self.tables and other not in self.tables:
            self.world.define(Definitions(renamed={self.tables[name].id: other}))
            self.tables[other] = self.tables.pop(name)
            self.names[other], self.names[name] = self.names[name], None
            self.moved.append(self.names[other])
            self.placeholders.discard(other)

    @rule()
    def swap(self) -> None:
        if len(self.tables) == 2:
            one, two = self.tables[ITEMS], self.tables[OTHER]
            self.world.define(Definitions(renamed={one.id: OTHER, two.id: ITEMS}))
            self.tables[ITEMS], self.tables[OTHER] = two, one
            self.names[ITEMS], self.names[OTHER] = self.names[OTHER], self.names[ITEMS]
            self.moved += self.names.values()

    # Runs

    @rule(looks=st.booleans())
    def restart(self, looks: bool) -> None:
        if looks:
            self.step()
        self.run.close()
        self.open()

    @rule()
    def step(self) -> None:
        for _ in range(4):
            self.world.wall += 2_000_000
            self.run.step()
        now = self.names[ITEMS]
        if (
            self.holds_nothing and now is not None and ITEMS not in self.placeholders
        ):  # the readers move to the first table of the name
            self.held, self.holds_nothing = now, False
        if now is not None and now is not self.read and now in self.moved:
            now.forget()  # a relation that comes with another name is read from its present rows on
        self.read = now
        if now is not self.held:
            self.stopped = True
        elif not self.stopped and now is not None:
            self.stops = sums(now.rows)
        if now is not None and ITEMS not in self.placeholders:
            self.follows, self.greatest = sums(now.rows), dict(now.greatest)
        self.check()

    def check(self) -> None:
        assert self._sums("t/stops") == self.stops
        error = self.run.tasks["t/stops"].error
        assert (error is not None) == self.stopped, (error, self.stopped)
        assert error is None or isinstance(error, SourceReplacedError)
        assert self._sums("t/follows") == self.follows
        greatest = {row["id"]: row["v"] for row in self._reduced("t/greatest")}
        assert greatest == self.greatest
        assert {row["id"]: row["v"] for row in self._reduced("t/copies")} == greatest
        for name in ("t/follows", "t/greatest", "t/copies"):
            assert self.run.tasks[name].error is None, name
        watching = self.run.tasks["t/watches"].error
        assert watching is None or isinstance(watching, SourceReplacedError)
        if watching is None:
            assert {row["id"]: row["v"] for row in self._reduced("t/watches")} == greatest

    def _sums(self, name: str) -> dict[int, tuple[int, int]]:
        groups = {row["id"]: (row.get("n", 0), row.get("v", 0)) for row in self._reduced(name)}
        return {key: group for key, group in groups.items() if group != (0, 0)}

    def _reduced(self, name: str) -> list[dict[str, int]]:
        parts = read_reduced(
            self.world.store,
            self.world.catalog.collections[name],
            ReadOptions(),
            lambda root, spec, read: reduced_locally(root, spec, read, self.world.root.parent),
        )
        return [document for rows in parts for document in rows.documents()]


TestReplacedSources = ReplacedSources.TestCase
TestReplacedSources.settings = settings(
    max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "8")), stateful_step_count=20, deadline=None
)


def test_reader_of_a_table_dropped_before_its_first_read_waits() -> None:
    machine = ReplacedSources()
    machine.begin()
    machine.create(OTHER)
    machine.rename(OTHER)
    machine.drop(ITEMS)
    machine.step()  # checks all readers
    machine.teardown()


# Followers


class StopFollowing(Exception):
    pass


class Follower:
    """Follows a collection of a world, as far as it goes each time."""

    def __init__(self, world: World, name: str) -> None:
        self._seen: list[str] = []
        self._steps: list[Callable[[], object]] = []
        self._updates = subscribe_at(world.store, world.catalog.collections[name], ReadOptions(), self._next)

    def _next(self) -> None:
        if not self._steps:
            raise StopFollowing
        self._steps.pop(0)()

    def play(self, *steps: Callable[[], object]) -> tuple[list[str], str | None]:
        """Yield the updates of a follower while things happen, one each time that it is idle, and its error at the end."""
        self._steps = list(steps)
        try:
            for update in self._updates:
                if not isinstance(update, int):
                    self._seen += [text for _, _, _, text in update.tuples()]
        except StopFollowing:
            return self._seen, None
        except FencedError as error:
            return self._seen, error.message
        raise AssertionError("it does not end by itself")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)), wall=1_000_000)


def put(world: World, table: Table, key: int) -> None:
    known = world.store.tables.table(table.id)
    assert known is not None
    row = (key, 1, *[None] * (len(known.columns) - 2))
    world.wall += 1_000_000
    world.store.tables.append(world.store.timeline.assign(1), {table.id: TableRows(known).changes([(row, 1)])})
    world.wall += 1_000_000


def test_new_table_is_not_reported_as_compacted(world: World) -> None:
    """A note of compacted history appears for a source with documents before its `since`, and a new table has none."""
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)
    assert tables.table(table.id).since > 0  # type: ignore[union-attr]
    put(world, table, 1)
    run = world.run()
    assert [task.beginning.compacted for task in run.tasks.values()] == [()] * len(run.tasks)
    run.step()
    run.close()
    assert len(world.rows("t/stops")) == 1


def test_follower_continues_with_an_altered_or_renamed_table(world: World) -> None:
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)
    seen, error = Follower(world, ITEMS).play(
        lambda: put(world, table, 1),
        lambda: world.define(Definitions(altered={table.id: (*COLUMNS, TableColumn("note", "text"))})),
        lambda: put(world, table, 2),
        lambda: world.define(Definitions(renamed={table.id: OTHER})),
        lambda: put(world, table, 3),
        lambda: put(world, tables.create(ITEMS, COLUMNS), 4),
        lambda: put(world, table, 5),
    )
    assert ([orjson.loads(text)["id"] for text in seen], error) == ([1, 2, 3, 5], None)


def test_follower_ends_when_a_table_is_recreated(world: World) -> None:
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)

    def again() -> None:
        put(world, table, 2)
        world.define(Definitions(dropped=(table.id,)))
        put(world, tables.create(ITEMS, COLUMNS), 3)

    seen, error = Follower(world, ITEMS).play(lambda: put(world, table, 1), again)
    assert [orjson.loads(text)["id"] for text in seen] == [1, 2]
    assert error is not None
    assert error.startswith(f"the subscription ended: '{ITEMS}' was dropped and created again at ")


def test_follower_ends_when_a_collection_is_reset(world: World) -> None:
    put(world, world.store.tables.create(ITEMS, COLUMNS), 1)
    world.step()
    seen, error = Follower(world, "t/greatest").play(
        lambda: reset(world.catalog, world.store, ["t/greatest"], cascade=True)
    )
    assert [orjson.loads(text) for text in seen] == [{"id": 1, "v": 1}]
    assert error is not None
    assert error.startswith("the subscription ended: 't/greatest' was reset at ")


def test_task_does_not_switch_to_a_dropped_table(world: World) -> None:
    """Its rows may be there, as long as others read them."""
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)
    put(world, table, 1)
    run = world.run()
    run.step()
    before = world.rows("t/follows"), world.rows("t/greatest")
    world.define(Definitions(dropped=(table.id,)))
    other = tables.create(ITEMS, COLUMNS)
    put(world, other, 2)
    with world.store.capabilities.keep(ITEMS):
        world.define(Definitions(dropped=(other.id,)))
        for _ in range(4):
            world.wall += 2_000_000
            run.step()
    assert (world.rows("t/follows"), world.rows("t/greatest")) == before
    put(world, tables.create(ITEMS, COLUMNS), 3)
    for _ in range(4):
        world.wall += 2_000_000
        run.step()
    run.close()
    assert orjson.loads(world.rows("t/greatest")[-1][3])["id"] == 3


class KilledError(BaseException):
    pass


def test_task_continues_after_a_kill_at_the_end_of_a_switch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former relation is gone once nobody reads it, which may be before the task has recorded that it has left it."""
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)
    put(world, table, 1)
    run = open_run(world.catalog, world.store, InProcessExecutor(), tasks=["t/follows"])
    run.step()
    world.define(Definitions(dropped=(table.id,)))
    put(world, tables.create(ITEMS, COLUMNS), 2)
    switched: list[str] = []

    def acquire(store: Store, spec: TaskSpec, positions: dict[str, int], *arguments: Any) -> object:
        acquired = acquire_inputs(store, spec, positions, *arguments)
        (place,) = arguments[-1].values()
        if spec.name in switched and place.switch is None:
            raise KilledError
        switched.append(spec.name)
        return acquired

    monkeypatch.setattr("derive.engine.task.acquire_inputs", acquire)
    with pytest.raises(KilledError):
        for _ in range(6):
            world.wall += 2_000_000
            run.step()
    monkeypatch.undo()
    tables.forget_unread()
    again = open_run(world.catalog, world.store, InProcessExecutor(), tasks=["t/follows"])
    for _ in range(6):
        world.wall += 2_000_000
        again.step()
    assert again.tasks["t/follows"].error is None
    again.close()
    assert orjson.loads(world.rows("t/follows")[-1][3]) == {"id": 2, "n": 1, "v": 1}


def test_raised_backfill_does_not_mix_rows_of_a_dropped_and_a_new_table(world: World, tmp_path: Path) -> None:
    tables = world.store.tables
    table = tables.create(ITEMS, COLUMNS)
    put(world, table, 1)
    world.step()
    world.define(Definitions(dropped=(table.id,)))
    put(world, tables.create(ITEMS, COLUMNS), 2)

    raised = CATALOG.replace(
        "          lambda: SELECT $id, iif", "          backfill: 1\n          lambda: SELECT $id, iif"
    )
    world.catalog = load(write_catalog(tmp_path, raised))
    run = world.run()
    run.step()
    run.close()
    error = run.tasks["t/stops"].error
    assert isinstance(error, SourceReplacedError)
    assert (error.hint or "").startswith("restore the former 'backfill'; write 'onSourceReset: follow' at 'read'")
    followed = run.tasks["t/follows"].error
    assert isinstance(followed, SourceReplacedError)
    assert followed.hint == "restore the former 'backfill' to follow; start over: flowctl reset --task t/follows"
    assert (error.hint or "").endswith("; or start over: flowctl reset --task t/stops")  # which nothing reads
    for name in ("t/stops", "t/follows"):  # nothing is said to be read from its start that is not
        assert (run.tasks[name].beginning.again, run.tasks[name].beginning.compacted) == ((), ())
    assert [text for _, _, _, text in world.rows("t/stops")] == ['{"id":1,"n":1,"v":1}']


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_renamed", [False, True])
def test_run_ends_while_a_refill_waits_for_a_dropped_source(tmp_path: Path, *, is_renamed: bool) -> None:
    """The refill would have to reach a time that the derivation does not reach before its table is created again."""
    table = tmp_path / "out.db"
    endpoint = f"{{connector: {{image: materialize-sqlite, config: {{path: {table}}}}}}}"
    binding = "{source: t/greatest, resource: {table: greatest}, onSourceReset: follow}"
    text = f"{CATALOG}materializations:\n  t/out:\n    endpoint: {endpoint}\n    bindings: [{binding}]\n"
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)), wall=1_000_000)
    machine = ReplacedSources()
    machine.world, machine.names, machine.tables = world, {ITEMS: Relation(), OTHER: None}, {}
    machine.held = machine.read = None
    machine.moved, machine.placeholders = [], {ITEMS}
    machine.create(ITEMS)
    machine.insert(ITEMS, (1, 3))
    waits = itertools.count()

    def sleep(seconds: float) -> None:
        assert next(waits) < 50, "the run does not end"
        world.wall += max(int(seconds * 1e6), 100_000)

    with closing(world.run()) as run:
        run.until_idle(sleep=sleep)
    machine.drop(ITEMS)
    machine.create(ITEMS)
    machine.insert(ITEMS, (2, 1))
    with closing(open_run(world.catalog, world.store, InProcessExecutor(), tasks=["t/greatest"])) as run:
        run.until_idle(sleep=sleep)
    machine.drop(ITEMS)
    if is_renamed:
        machine.create(ITEMS)
        machine.rename(ITEMS)
    world.wall += 5_000_000
    with closing(world.run()) as run:
        run.until_idle(sleep=sleep)

    machine.create(ITEMS)
    machine.insert(ITEMS, (3, 2))
    with closing(world.run()) as run:
        run.until_idle(sleep=sleep)
    assert apsw.Connection(str(table)).execute("SELECT id FROM greatest").fetchall() == [(3,)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("kind", ["table", "view", "view without its server"])
@pytest.mark.parametrize("source", [ITEMS, "t/greatest"])
def test_followers_equal_a_recreated_source_with_and_without_rows(
    tmp_path: Path, *, source: str, kind: str, rows: int
) -> None:
    """The rows of the former relation are retracted even if the new relation has no rows."""
    file = tmp_path / "out.db"
    binding = f"{{source: {source}, resource: {{table: out}}, onSourceReset: follow}}"
    endpoint = f"{{connector: {{image: materialize-sqlite, config: {{path: {file}}}}}}}"
    text = f"{CATALOG}materializations:\n  t/out:\n    endpoint: {endpoint}\n    bindings: [{binding}]\n"
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)), wall=1_000_000)
    tables, waits = world.store.tables, itertools.count()
    runs = [("t/follows",), ("t/out",)] if source == ITEMS else [("t/greatest", "t/copies", "t/out")]

    def create() -> Table:
        return tables.create(ITEMS, COLUMNS, view_of=[OTHER] if kind != "table" else None)

    def write(table: Table, *keys: int) -> None:
        world.wall += 1_000_000
        clock = world.store.timeline.assign(1)
        changes = TableRows(table).changes([((key, 1), 1) for key in keys])
        update = TableUpdate(table.id, None, clock + 1, tuple(RowUpdate(clock, *change) for change in changes))
        tables.commit([update], Door.DATAFLOW if kind != "table" else Door.SERVER)

    def sleep(seconds: float) -> None:
        assert next(waits) < 500, "the run does not end"
        world.wall += max(int(seconds * 1e6), 100_000)
        if serves:
            write(relation)

    def run() -> None:
        for tasks in runs:
            with closing(open_run(world.catalog, world.store, InProcessExecutor(), tasks=tasks)) as run:
                run.until_idle(sleep=sleep)

    relation, serves = create(), kind == "view"
    write(relation, 1, 2)
    run()
    world.define(Definitions(dropped=(relation.id,)))
    relation = create()
    write(relation, *[3] * rows)
    run()
    if "without" in kind:  # the runs have ended, and the server continues
        serves = True
        sleep(1)
        run()
    with closing(apsw.Connection(str(file))) as db:
        where = """WHERE "_meta/op" IS NOT 'd'""" if source == ITEMS else ""
        assert db.execute(f"SELECT id FROM out {where}").fetchall() == [(3,)] * rows
    if source == ITEMS:
        groups: Counter[int] = Counter()
        for row in world.rows("t/follows"):
            groups[orjson.loads(row[3])["id"]] += orjson.loads(row[3])["n"]
        assert +groups == Counter([3] * rows)
    else:
        assert [len(world.rows("t/greatest")), len(world.rows("t/copies"))] == [rows] * 2


def test_recorded_switch_is_made_beside_a_binding_that_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was killed after it had recorded a switch; the next run finds another source that was reset."""
    file = tmp_path / "out.db"
    bindings = ", ".join(
        f"{{source: {source}, resource: {{table: {table}}}, onSourceReset: follow}}"
        for source, table in ((ITEMS, "items"), ("t/greatest", "greatest"))
    )
    endpoint = f"{{connector: {{image: materialize-sqlite, config: {{path: {file}}}}}}}"
    text = f"{CATALOG}materializations:\n  t/out:\n    endpoint: {endpoint}\n    bindings: [{bindings}]\n"
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)), wall=1_000_000)

    def sleep(seconds: float) -> None:
        world.wall += max(int(seconds * 1e6), 100_000)

    def run(*tasks: str) -> None:
        with closing(open_run(world.catalog, world.store, InProcessExecutor(), tasks=tasks)) as run:
            run.until_idle(sleep=sleep)

    def kill(*_: object) -> None:
        raise KilledError

    table = world.store.tables.create(ITEMS, COLUMNS)
    put(world, table, 1)
    run("t/greatest", "t/out")
    world.define(Definitions(dropped=(table.id,)))
    world.store.tables.create(ITEMS, COLUMNS)
    world.wall += 5_000_000
    with monkeypatch.context() as killed, pytest.raises(KilledError):
        killed.setattr("derive.engine.task.write_switch", kill)
        run("t/out")
    run("t/greatest")
    world.wall += 20_000_000
    run("t/greatest", "t/out")

    with closing(apsw.Connection(str(file))) as db:
        assert db.execute("""SELECT id FROM items WHERE "_meta/op" IS NOT 'd'""").fetchall() == []
        assert db.execute("SELECT id FROM greatest").fetchall() == []
