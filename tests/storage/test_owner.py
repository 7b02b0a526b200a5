"""Each collection has one writer: each door that is not that of its owner is closed, and harmless."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import World, write_catalog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from derive.catalog import load
from derive.cli.check import owner_issues
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, split
from derive.engine.task_reconciler import open_run
from derive.errors import FlowError, OwnedError, TaskError, UsageError
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door, Owner
from derive.storage.table_types import RowUpdate, TableColumn, TableUpdate
from derive.testing import run_tests

COLUMNS = (TableColumn("id", "bigint", nullable=False),)
SOURCE = """
  o/source: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
"""
PLAIN = """
  NAME: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
"""
DERIVED = """
  NAME:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: o/source, shuffle: any, lambda: SELECT $id;}]}
"""


def catalog(folder: Path, name: str, kind: str) -> CatalogSpec:
    return load(write_catalog(folder, "collections:" + SOURCE + kind.replace("NAME", name)))


def ingested(folder: Path) -> tuple[World, str]:
    world = World(folder / "data", catalog(folder, "o/x", PLAIN))
    world.ingest("o/x", [{"id": 1}], None)
    return world, "o/x"


def derived(folder: Path) -> tuple[World, str]:
    world = World(folder / "data", catalog(folder, "o/x", DERIVED))
    world.ingest("o/source", [{"id": 1}], None)
    world.wall += 10_000_000
    world.step()
    return world, "o/x"


def table(folder: Path) -> tuple[World, str]:
    world = World(folder / "data", catalog(folder, "sql/public/x", PLAIN))
    table = world.store.tables.create("sql/public/x", COLUMNS)
    write(world, Door.SERVER)
    assert world.store.tables.find("sql/public/x") != table
    return world, "sql/public/x"


def source(folder: Path) -> tuple[World, str]:
    world, name = table(folder)
    world.store.tables.create("sql@position/public/x", COLUMNS)
    return world, name


def view(folder: Path) -> tuple[World, str]:
    world = World(folder / "data", catalog(folder, "sql/public/x", PLAIN))
    world.store.tables.create("sql/public/x", COLUMNS, at=1, view_of=())
    write(world, Door.DATAFLOW)
    return world, "sql/public/x"


def declared_of_sql(folder: Path) -> tuple[World, str]:
    world = World(folder / "data", catalog(folder, "sql/public/x", PLAIN))
    world.store.create(*world.catalog.collections.values())
    return world, "sql/public/x"


def write(world: World, door: Door) -> None:
    """Write a row into the table."""
    table = next(table for table in world.store.tables.all() if table.name in world.catalog.collections)
    clock = world.store.timeline.assign(1)
    (change,) = TableRows(table).changes([((2,), 1)])
    world.store.tables.commit([TableUpdate(table.id, None, clock + 1, (RowUpdate(clock, *change),))], door)


def ingest(world: World, name: str) -> None:
    world.ingest(name, [{"id": 2}], None)


def run(world: World, name: str) -> None:
    """Derive documents into a collection, with a catalog that says so; what is no issue of a check can be run."""
    folder = world.root.parent
    if name.startswith("sql"):
        world.store.acquire_task(name, 1, [name])  # as a catalog may say that was written for an older flowctl
        return
    derives = catalog(folder, name, DERIVED)
    issues = list(owner_issues(derives, world.store))
    world.catalog = derives
    world.ingest("o/source", [{"id": 2}], None)
    world.wall += 10_000_000
    running = open_run(world.catalog, world.store, InProcessExecutor())
    running.step()
    error = running.tasks[name].error
    running.close()
    assert [issue.message for issue in issues] == ([error.message] if error else [])
    if error:
        assert error.position == derives.collections[name].position
        raise error


def start_over(world: World, name: str) -> None:
    derives = world.catalog if name.startswith("sql") else catalog(world.root.parent, name, DERIVED)
    if name.startswith("sql"):
        world.store.reset([name])
    else:
        reset(derives, world.store, [name])


def divide(world: World, name: str) -> None:
    split(world.store, name)


DOORS: dict[str, Callable[[World, str], None]] = {
    "ingest": ingest,
    "run": run,
    "reset": start_over,
    "split": divide,
    "server": lambda world, _: write(world, Door.SERVER),
    "dataflow": lambda world, _: write(world, Door.DATAFLOW),
}
KINDS: dict[str, tuple[Callable[[Path], tuple[World, str]], Owner, set[str]]] = {
    "ingested": (ingested, Owner.INGEST, {"ingest"}),
    "derived": (derived, Owner.TASK, {"run", "reset", "split"}),
    "table": (table, Owner.TABLE, {"server"}),
    "source": (source, Owner.SOURCE, {"server"}),
    "view": (view, Owner.VIEW, {"dataflow"}),
    "declared": (declared_of_sql, Owner.TABLE, set()),
}
DOCUMENTS = {"ingested", "derived", "declared"}
CASES = [
    (kind, door)
    for kind, door in itertools.product(KINDS, DOORS)
    if kind not in DOCUMENTS or door not in {"server", "dataflow"}  # which write tables
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("kind", "door"), CASES)
def test_writers_other_than_the_owner_are_refused(kind: str, door: str, tmp_path: Path) -> None:
    make, owner, is_open = KINDS[kind]
    world, name = make(tmp_path)
    assert world.store.owner(name) is owner
    before = world.rows(name)

    if door in is_open:
        DOORS[door](world, name)
        return
    expected: tuple[type[FlowError], ...] = (OwnedError, TaskError) if door == "split" else (OwnedError,)
    with pytest.raises(expected) as raised:
        DOORS[door](world, name)

    assert raised.value.hint
    assert f"'{name}'" in raised.value.message
    assert world.rows(name) == before
    assert world.store.owner(name) is owner
    compact(world.store, world.catalog.collections[name], grace=0)  # which every kind of collection can be
    assert world.rows(name) == before


def test_collection_is_owned_from_its_first_write_capability(tmp_path: Path) -> None:
    world = World(tmp_path / "data", catalog(tmp_path, "o/x", PLAIN))
    world.store.create(*world.catalog.collections.values())
    assert world.store.owner("o/x") is Owner.NOBODY

    writing = world.store.acquire_write("o/x")
    with pytest.raises(OwnedError, match="'o/x' holds documents that were ingested, or are being ingested"):
        world.store.acquire_task("o/x", 1, ["o/x"])
    world.store.capabilities.release(writing)
    running, _ = world.store.acquire_task("o/x", 1, ["o/x"])
    with pytest.raises(OwnedError, match="'o/x' is derived, so nothing can be ingested into it"):
        world.store.acquire_write("o/x")
    world.store.release_task(running)

    world.ingest("o/x", [{"id": 1}], None)  # the task has never derived anything
    assert world.store.owner("o/x") is Owner.INGEST


@pytest.mark.parametrize("make", [table, view, source])
def test_name_of_a_dropped_table_still_belongs_to_sql(
    make: Callable[[Path], tuple[World, str]], tmp_path: Path
) -> None:
    world, name = make(tmp_path)
    world.define(Definitions(dropped=tuple(table.id for table in world.store.tables.all())))

    assert world.store.owner(name) is Owner.TABLE
    with pytest.raises(OwnedError, match="belongs to the table"):
        ingest(world, name)


def test_reset_collections_have_no_owner(tmp_path: Path) -> None:
    world, name = derived(tmp_path)
    reset(world.catalog, world.store, [name])

    world.ingest(name, [{"id": 5}], None)

    with pytest.raises(OwnedError):
        reset(world.catalog, world.store, [name])
    assert len(world.rows(name)) == 1


def test_task_of_a_foreign_collection_stops_alone(tmp_path: Path) -> None:
    world, _ = ingested(tmp_path)
    text = SOURCE + DERIVED.replace("NAME", "o/x") + DERIVED.replace("NAME", "o/y")
    world.catalog = load(write_catalog(tmp_path, "collections:" + text))
    world.ingest("o/source", [{"id": 3}], None)
    world.wall += 10_000_000

    running = open_run(world.catalog, world.store, InProcessExecutor())
    running.step()

    assert isinstance(running.tasks["o/x"].error, OwnedError)
    assert running.tasks["o/y"].error is None
    running.close()
    assert [row[3] for row in world.rows("o/x")] == ['{"id":1}']
    assert [row[3] for row in world.rows("o/y")] == ['{"id":3}']
    assert world.store.owner("o/x") is Owner.INGEST


def test_catalog_test_may_ingest_into_collections_of_other_owners(tmp_path: Path) -> None:
    text = "collections:" + SOURCE + DERIVED.replace("NAME", "o/x") + PLAIN.replace("NAME", "sql/public/t")
    steps = "".join(
        f"\n    - ingest: {{collection: {name}, documents: [{{id: 1}}]}}" for name in ("o/x", "sql/public/t")
    )
    built = load(write_catalog(tmp_path, f"{text}tests:\n  o/test:{steps}\n"))

    (result,) = run_tests(built)

    assert result.failure is None


class Doors(RuleBasedStateMachine):
    """Doors are tried in any order; the model knows the owner, and what each collection holds."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        kinds = {"plain": PLAIN.replace("NAME", "o/x"), "derived": DERIVED.replace("NAME", "o/x")}
        texts = {kind: "collections:" + SOURCE + text for kind, text in kinds.items()}
        self.catalogs = {kind: load(write_catalog(path, text)) for kind, text in texts.items()}
        self.world = World(path / "data", self.catalogs["plain"])
        self.number = 0
        self.owner = Owner.NOBODY
        self.source: list[int] = []
        self.held: list[int] = []

    def teardown(self) -> None:
        self.world.store.close()
        self.folder.cleanup()

    def _next(self) -> int:
        self.number += 1
        self.world.wall += 10_000_000
        return self.number

    @rule()
    def feed(self) -> None:
        self.source.append(self._next())
        self.world.ingest("o/source", [{"id": self.number}], None)

    @rule()
    def ingest(self) -> None:
        number = self._next()
        try:
            self.world.ingest("o/x", [{"id": number}], None)
            assert self.owner in {Owner.NOBODY, Owner.INGEST}
            self.owner = Owner.INGEST
            self.held.append(number)
        except OwnedError:
            assert self.owner is Owner.TASK

    @rule()
    def run(self) -> None:
        self._next()
        self.world.catalog = self.catalogs["derived"]
        try:
            self.world.step()
            assert self.owner in {Owner.NOBODY, Owner.TASK}
            self.held = list(self.source)
            self.owner = Owner.TASK if self.held else Owner.NOBODY
        except OwnedError:
            assert self.owner is Owner.INGEST
        self.world.catalog = self.catalogs["plain"]

    @rule()
    def reset(self) -> None:
        try:
            reset(self.catalogs["derived"], self.world.store, ["o/x"])
            assert self.owner in {Owner.NOBODY, Owner.TASK}
            self.owner, self.held = Owner.NOBODY, []
        except OwnedError:
            assert self.owner is Owner.INGEST

    @rule()
    def split(self) -> None:
        try:
            split(self.world.store, "o/x")
            assert self.owner in {Owner.NOBODY, Owner.TASK}
        except OwnedError:
            assert self.owner is Owner.INGEST
        except TaskError:
            assert self.owner is not Owner.INGEST or self.world.store.task("o/x") is None

    @rule(columns=st.just(COLUMNS))
    def create_table(self, columns: tuple[TableColumn, ...]) -> None:
        """A name that is written keeps its owner; one that is not could become a table, which is tried elsewhere."""
        if self.owner is not Owner.NOBODY:
            with pytest.raises(UsageError, match="exists already"):
                self.world.store.tables.create("o/x", columns)

    @rule()
    def compact(self) -> None:
        compact(self.world.store, self.world.catalog.collections["o/x"], grace=0)

    @invariant()
    def holds_what_its_owner_has_written(self) -> None:
        if self.world.store.collection("o/x") is not None:
            assert [row[3] for row in self.world.rows("o/x")] == [f'{{"id":{number}}}' for number in self.held]
            assert self.world.store.owner("o/x") is self.owner


TestDoors = Doors.TestCase
TestDoors.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
