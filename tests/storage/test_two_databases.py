"""Metadata in SQLite and in PostgreSQL: the same operations of several processes have the same results and errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

import apsw
import psycopg
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_server import server

from derive.catalog import load
from derive.errors import FlowError
from derive.protocol.collection import CollectionSpec
from derive.storage.capability.capabilities import Action, Downgrade, Release, Renew, Update
from derive.storage.capability.table import Capability, TaskCapability
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.descriptions import CollectionUpdate, Stopped, TaskCommit
from derive.storage.metadata.followed import FileMove, FilePosition
from derive.storage.metadata.ingestions import LoadedFile
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, TableColumn
from derive.time import BEGINNING
from derive.time.positions import Place, Segment

CATALOG = """
collections:
  t/source: &documents
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
  t/one: *documents
  t/two: *documents
"""
COLUMNS = [TableColumn("id", "INT")]
NAMES = ("source", "one", "two", "a", "b")
"""Collections of the catalog, and tables."""

_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[0-9:.]+Z")
"""Identifiers of capabilities, and times of the machine, in messages."""

Step: TypeAlias = tuple[str, int, int, int]
"""A verb, the process that executes it, and two numbers that choose its arguments."""


class World:
    """A data folder that is open in two processes; the clock of the machine stands still.

    Args:
        root: the data folder.
        specs: collections of the catalog.
    """

    def __init__(self, root: Path, specs: dict[str, CollectionSpec]) -> None:
        self._specs = specs
        self.stores = [Store(root, wall=lambda: 1_000_000, durable=False) for _ in range(2)]
        self._numbers = count()

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def begin(self) -> None:
        """Begin with collections that the earlier operations did not name."""
        self._prefix = f"w{next(self._numbers)}"
        self._held: list[Capability] = []
        self._runs: list[TaskCapability] = []
        self._read: list[FilePosition | None] = [None]
        for number in range(3):
            self._bind(self.stores[0], number, 0)
        self._create(self.stores[1], 3, 0)

    def perform(self, step: Step) -> object:
        """Perform a step; return a description of its result or error without what varies."""
        verb, process, one, two = step
        try:
            operation: Callable[[Store, int, int], object] = getattr(self, f"_{verb}")
            return self._described(operation(self.stores[process], one, two))
        except (FlowError, IndexError) as exc:
            return type(exc).__name__, _VARYING.sub("…", str(exc))
        except (apsw.ConstraintError, psycopg.IntegrityError):
            return "there is no such collection"

    def _described(self, result: object) -> object:
        match result:
            case Capability():
                self._held.append(result)
                return result.kind, result.collection, result.frontier, result.purpose
            case TaskCapability():
                self._runs.append(result)
                return result.task, result.epoch, dict(result.frontiers)
            case list():
                return [self._described(each) for each in result]
        return result

    def _name(self, number: int) -> str:
        return f"{self._prefix}/{NAMES[number % len(NAMES)]}"

    def _documents(self, number: int) -> str:
        return f"{self._prefix}/{NAMES[number % 3]}"

    def _table(self, store: Store, number: int) -> int:
        return store.tables.id_of(self._name(3 + number % 2)) or 0

    def _segments(self, store: Store, name: str, number: int) -> list[Segment]:
        clock = store.timeline.assign(1) - (5 if number % 7 == 6 else 0)
        return [Segment(name, f"{name}-{next(self._numbers)}.parquet", (), clock, clock, 1, 1)]

    def _chosen(self, number: int) -> Capability:
        return self._held[-1 - number % 3]

    # Verbs

    def _assign(self, store: Store, one: int, _: int) -> object:
        return store.timeline.assign(1 + one), store.timeline.present()

    def _bind(self, store: Store, one: int, _: int) -> None:
        name = self._documents(one)
        store.create(replace(self._specs[f"t/{name.rpartition('/')[2]}"], name=name))

    def _seal(self, store: Store, one: int, two: int) -> object:
        names = [self._name(one), self._name(two)]
        return store.seal_now(names) if one % 2 else store.seal(names, store.timeline.read())

    def _begin_ingestion(self, store: Store, one: int, two: int) -> object:
        return store.acquire_write(self._documents(one), history=bool(two % 2))

    def _ingest(self, store: Store, one: int, two: int) -> object:
        held = self._chosen(one)
        segments = self._segments(store, store.tables.name_of(held.collection) or "none", two)
        file = LoadedFile("file", ("x", "y")[two % 2], lambda: f"{one % 2}") if two % 4 == 0 else None
        after = FilePosition("/file", 1, 1, offset=two)
        moves = [FileMove(self._read[one % len(self._read)], after)] if two % 3 == 0 else []
        end, is_last = segments[0].clock_max + 1, one % 2 == 0
        moved = store.update_and_downgrade(
            held, segments, end, ascending=one % 3 == 0, is_last=is_last, file=file, moves=moves
        )
        self._read += [after] if moves else []
        return moved

    def _begin_task(self, store: Store, one: int, two: int) -> object:
        outputs = [self._documents(number) for number in range(1, 1 + one % 3)]
        return store.acquire_task(f"{self._prefix}/one", 1, outputs, if_free=two % 4 == 0)[0]

    def _commit(self, store: Store, one: int, two: int) -> object:
        run = self._runs[-1 - one % 2]
        updates = [
            CollectionUpdate(name, segments := self._segments(store, name, two), segments[0].clock_max + 1)
            for name in list(run.frontiers or [self._documents(1)])[: 1 + one % 2]
        ]
        position = store.timeline.assign(1) - (1_000 if two % 7 == 5 else 0)
        source = {"read": Place(self._documents(0), 0)}
        return store.commit_task(run, TaskCommit({"read": position}, source, {0: "a"}, two, two), updates)

    def _end_task(self, store: Store, one: int, two: int) -> None:
        run = self._runs[-1 - one % 2]
        if two % 2:
            store.note_task(run, Stopped("ended"))
        else:
            store.release_task(run)

    def _reset(self, store: Store, one: int, two: int) -> object:
        name = self._documents(one)
        if two % 3 == 0:
            return sorted(store.reset([name]))
        if two % 3 == 1:
            store.truncate(name)
        else:
            store.drop(name, force=one % 2 == 0)
        return None

    def _create(self, store: Store, one: int, _: int) -> object:
        return store.tables.create(self._name(one), COLUMNS).id

    def _define(self, store: Store, one: int, two: int) -> None:
        table = self._table(store, one)
        change = Definitions(dropped=(table,)) if two % 2 else Definitions(renamed={table: self._name(two)})
        store.tables.append(store.timeline.assign(1), {}, [], change)

    def _append(self, store: Store, one: int, two: int) -> None:
        clock = store.timeline.assign(1) - (7 if two % 7 == 6 else 0)
        rows: list[tuple[str, bytes, int]] = [(f'{{"id":{two}}}', b"%d" % two, 1)]
        store.tables.append(clock, {self._table(store, one): rows}, [self._table(store, one + 1)])

    def _acquire(self, store: Store, one: int, two: int) -> object:
        collection = store.tables.id_of(self._name(one)) or 0
        if two % 3 == 0:
            return store.capabilities.acquire_write(collection, purpose="write")
        return store.capabilities.acquire_read(collection, None if two % 3 == 1 else store.timeline.read())

    def _move(self, store: Store, one: int, two: int) -> object:
        held = self._chosen(one)
        clock = store.timeline.assign(1)
        row = RowUpdate(clock, f'{{"id":{two}}}', b"%d" % two, 1)
        actions: list[Action] = [
            Renew(held),
            Release(held),
            Downgrade(held, clock - two),
            Update(held, [row], clock + 1),
        ]
        return store.capabilities.perform([actions[two % 4]])

    def _look(self, store: Store, one: int, two: int) -> object:
        name, table = self._name(one), self._table(store, two)
        read = store.tables.read(table, BEGINNING, store.timeline.read()) if store.tables.table(table) else None
        loads = [(load.load_id, load.digest, load.documents) for load in store.loads(name)]
        positions = [(position.offset, position.documents) for _, position in store.positions(name)]
        state = store.task(self._documents(1))
        progress = state and (state.positions, state.documents_in, state.error, state.transactions)
        return store.collection(name), store.owner(name), store.upper(name), read, loads, positions, progress


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, World]]:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    specs = dict(load(tmp_path / "flow.yaml").collections)
    sqlite = World(tmp_path / "sqlite", specs)
    monkeypatch.setenv(VARIABLE, server().metadata_url)
    settle_place(tmp_path / "postgres", place_of(os.environ[VARIABLE]), creates=True)
    postgres = World(tmp_path / "postgres", specs)
    yield sqlite, postgres
    sqlite.close()
    postgres.close()


VERBS = [
    "assign",
    "bind",
    "seal",
    "begin_ingestion",
    "ingest",
    "begin_task",
    "commit",
    "end_task",
    "reset",
    "create",
    "define",
    "append",
    "acquire",
    "move",
    "look",
]

STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 1), st.integers(0, 20), st.integers(0, 20)),
    min_size=10,
    max_size=60,
)


def test_both_databases_give_the_same_answers(worlds: tuple[World, World]) -> None:
    """The same steps of two processes have the same results, errors and messages on both databases."""

    @settings(max_examples=examples(40, 6))
    @given(STEPS)
    def agree(steps: list[Step]) -> None:
        for world in worlds:
            world.begin()
        for step in steps:
            expected, given = (world.perform(step) for world in worlds)
            assert given == expected, step

    agree()
