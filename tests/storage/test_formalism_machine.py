"""The verbs of time-varying collections against a model that remembers everything: who may do what, and what is there.

The model is three lines for each table: its updates, its frontiers, and the rights to it. Random commands come from two
stores of one data folder, tables are dropped, rights are handed on and run out, and processes die while they commit.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import orjson
import pytest
from conftest import define
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from derive import failpoint
from derive.contents.table_updates import subscribe_at, table_contents
from derive.document.key import pack
from derive.errors import FencedError, FrontierError, StorageError
from derive.storage.capability.capabilities import Release, Update
from derive.storage.capability.table import Capability
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.segments.partition import collection_folder
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, Table, TableColumn
from derive.time import END_OF_TIME

COLUMNS = (TableColumn("n", "bigint"),)
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), max_size=3)
SHARES = st.floats(0, 1)
POINTS = ["metadata.committing", "metadata.committed", "segment.closing", "segment.closed", "segment.synced"]


@dataclass
class Model:
    """A table as it must be."""

    since: int
    upper: int
    updates: list[tuple[int, int, int]] = field(default_factory=list)
    rights: dict[str, tuple[str, int]] = field(default_factory=dict)

    def least(self, kind: str) -> int:
        return min((frontier for of, frontier in self.rights.values() if of == kind), default=END_OF_TIME)

    def advance(self, frontier: int) -> None:
        self.upper = max(self.upper, min(frontier, self.least("write")))

    def at(self, clock: int) -> Counter[int]:
        counts: Counter[int] = Counter()
        for time, number, diff in self.updates:
            counts[number] += diff if time <= clock else 0
        return +counts

    @property
    def last(self) -> int:
        """A time that is final, if there is one."""
        return min(self.upper, max([self.since, *(clock for clock, _, _ in self.updates)]) + 5) - 1


def changes(counts: Counter[int], rows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rows to add, and to take away what is there of the rest."""
    gone = [(number, -count) for number, count in counts.items() if number % 2 == 0]
    return [*rows, *gone]


def row(clock: int, number: int, diff: int) -> RowUpdate:
    return RowUpdate(clock, orjson.dumps({"n": number}).decode(), pack([number]), diff)


class Enough(Exception):
    """Ends a subscription."""


def enough() -> None:
    raise Enough


class Formalism(RuleBasedStateMachine):
    tables = Bundle("tables")
    rights = Bundle("rights")

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.stores = [self.open(), self.open()]
        self.models: dict[int, Model] = {}
        self.numbers = 0

    def open(self) -> Store:
        return Store(self.home / "data", wall=lambda: 1_000, durable=False)

    @property
    def store(self) -> Store:
        """One of the two, which take turns."""
        self.stores.reverse()
        return self.stores[0]

    def teardown(self) -> None:
        for identifier, model in self.models.items():
            if model.upper < END_OF_TIME:
                table = self.table(identifier)
                compact(self.store, table.spec, grace=0)
                folder = self.home / "data" / collection_folder(table.name)
                paths = {str(path.relative_to(self.home / "data")) for path in folder.rglob("*.parquet")}
                assert paths <= self.store.garbage.known(table.name)
        for store in self.stores:
            store.close()
        shutil.rmtree(self.home)

    def table(self, identifier: int) -> Table:
        table = self.store.tables.table(identifier)
        assert table is not None
        return table

    # Collections

    @initialize(target=tables)
    def begin(self) -> int:
        return self.created(is_same=True)

    @rule(target=tables, is_same=st.booleans())
    def create(self, is_same: bool) -> int:
        return self.created(is_same)

    def created(self, is_same: bool) -> int:
        self.numbers += 1
        bound = [name for name in ("t", f"t{self.numbers}") if self.store.tables.find(name) is None]
        table = self.store.tables.create(bound[0] if is_same else bound[-1], COLUMNS)
        assert table.id not in self.models
        assert table.since == table.upper
        assert all(table.since >= model.upper for model in self.models.values() if model.upper < END_OF_TIME)
        self.models[table.id] = Model(table.since, table.upper)
        return table.id

    @rule(table=tables)
    def drop_table(self, table: int) -> None:
        model = self.models[table]
        if model.upper == END_OF_TIME:
            return
        define(self.store, Definitions(dropped=(table,)))
        model.upper = END_OF_TIME
        model.rights = {right: held for right, held in model.rights.items() if held[0] == "read"}
        self.forget()

    def forget(self) -> None:
        for model in self.models.values():
            if model.upper == END_OF_TIME and model.least("read") == END_OF_TIME:
                model.since = END_OF_TIME

    @rule(table=tables, share=SHARES)
    def compact(self, table: int, share: float) -> None:
        model = self.models[table]
        if model.upper == END_OF_TIME:
            return
        wanted = model.since + round(share * (model.last + 3 - model.since))
        compact(self.store, self.table(table).spec, since=wanted, grace=0)
        model.since = max(model.since, min(wanted, model.upper, model.least("read")))
        self.forget()

    @rule()
    def flush(self) -> None:
        self.store.tables.flush()

    @rule()
    def reopen(self) -> None:
        self.stores.pop().close()
        self.stores.append(self.open())

    # Capabilities

    @rule(target=rights, table=tables, lasts=st.booleans())
    def acquire(self, table: int, lasts: bool) -> object:
        model = self.models[table]
        read, write = self.store.capabilities.acquire(table, purpose="test", lasts=lasts)
        assert (read.frontier, write.frontier) == (model.since, model.upper)
        for capability in (read, write):
            model.rights[capability.id] = (capability.kind, capability.frontier)
        return multiple(read, write)

    @rule(target=rights, right=rights)
    def clone(self, right: Capability) -> object:
        model = self.models[right.collection]
        if right.id not in model.rights:
            with pytest.raises(FencedError, match="no longer exists"):
                self.store.capabilities.clone(right)
            return multiple()
        copy = self.store.capabilities.clone(right)
        assert (copy.kind, copy.frontier) == model.rights[right.id]
        model.rights[copy.id] = model.rights[right.id]
        return copy

    @rule(right=rights)
    def hand_over(self, right: Capability) -> None:
        model = self.models[right.collection]
        if right.id in model.rights:
            taken = self.store.capabilities.take(right.id)
            assert (taken.kind, taken.frontier) == model.rights[right.id]
            assert self.store.capabilities.find(right.id) == taken
        else:
            with pytest.raises(FencedError):
                self.store.capabilities.take(right.id)

    @rule(right=rights, ahead=st.integers(-2, 10))
    def downgrade(self, right: Capability, ahead: int) -> None:
        model = self.models[right.collection]
        kind, frontier = model.rights.get(right.id, ("", right.frontier))
        wanted = min(END_OF_TIME, frontier + ahead)
        if not kind or ahead < 0:
            with pytest.raises(FrontierError if kind else FencedError):
                self.store.capabilities.downgrade(right, wanted)
            return
        assert self.store.capabilities.downgrade(right, wanted).frontier == wanted
        model.rights[right.id] = (kind, wanted)
        if kind == "write":
            model.advance(wanted)

    @rule(right=consumes(rights))
    def give_back(self, right: Capability) -> None:
        self.store.capabilities.release(right)
        self.models[right.collection].rights.pop(right.id, None)
        self.forget()

    @rule(right=rights)
    def let_expire(self, right: Capability) -> None:
        db = apsw.Connection(str(self.home / "data/metadata.db"))
        db.execute("UPDATE capability SET expires = 0 WHERE id = ? AND expires IS NOT NULL", (right.id,))
        has_ended = db.changes() > 0
        db.close()
        self.store.tables.forget_unread()
        if has_ended:
            del self.models[right.collection].rights[right.id]
        self.forget()

    # Writing

    @rule(rights_to_write=st.lists(rights, min_size=1, max_size=3), rows=ROWS, steps=st.integers(0, 5))
    def update(self, rights_to_write: list[Capability], rows: list[tuple[int, int]], steps: int) -> None:
        updates, expected = [], True
        chosen = {right.collection: right for right in rights_to_write if right.kind == "write"}
        for right in chosen.values():
            model = self.models[right.collection]
            held = model.rights.get(right.id)
            frontier = held[1] if held else right.frontier
            clock = frontier + steps - 1 if steps else frontier
            expected &= held is not None and (not rows or (model.upper < END_OF_TIME and steps > 0))
            made = [row(clock, *change) for change in rows]
            updates.append(Update(right, made, min(END_OF_TIME, frontier + steps)))
        if not expected:
            with pytest.raises(StorageError):
                self.store.capabilities.update_and_downgrade(*updates)
            return
        self.store.capabilities.update_and_downgrade(*updates)
        for update in updates:
            model = self.models[update.capability.collection]
            model.updates += [(made.clock, *change) for made, change in zip(update.updates, rows, strict=True)]
            model.rights[update.capability.id] = ("write", update.frontier)
            model.advance(update.frontier)

    @rule(written=st.lists(tables, max_size=2), others=st.lists(tables, max_size=2), rows=ROWS, late=st.integers(-1, 3))
    def append(self, written: list[int], others: list[int], rows: list[tuple[int, int]], late: int) -> None:
        made, clock = self.append_to(written, rows, late)
        if any(self.models[table].upper > clock for table in made if made[table]):
            with pytest.raises(StorageError):
                self.append_in(self.store, made, clock, others)
            return
        self.append_in(self.store, made, clock, others)
        self.appended(made, clock, others)

    def append_to(
        self, written: list[int], rows: list[tuple[int, int]], late: int
    ) -> tuple[dict[int, list[tuple[int, int]]], int]:
        uppers = [model.upper for model in self.models.values() if model.upper < END_OF_TIME]
        # Where somebody holds `upper` back, there are later updates already: what goes before them goes only once.
        latest = [update[0] for table in written for update in self.models[table].updates]
        clock = max([max(uppers, default=1_000) + late, *latest])
        return {table: changes(self.models[table].at(clock), rows) for table in written}, clock

    @staticmethod
    def append_in(store: Store, made: dict[int, list[tuple[int, int]]], clock: int, others: list[int]) -> None:
        documents = {
            table: [(update.text, update.key, update.diff) for update in (row(clock, *change) for change in rows)]
            for table, rows in made.items()
        }
        store.tables.append(clock, documents, others)

    def appended(self, made: dict[int, list[tuple[int, int]]], clock: int, others: list[int]) -> None:
        for table, rows in made.items():
            self.models[table].updates += [(clock, *change) for change in rows]
        for table in {*made, *others}:
            self.models[table].advance(clock + 1)

    @rule(written=st.lists(tables, min_size=1, max_size=2), rows=ROWS, point=st.sampled_from(POINTS))
    def crash(self, written: list[int], rows: list[tuple[int, int]], point: str) -> None:
        """A process dies as it appends, or flushes; what it appended is there on all tables, or on none."""
        made, clock = self.append_to(written, rows, 1)
        if any(self.models[table].upper == END_OF_TIME for table in made):
            return
        child = os.fork()
        if child == 0:
            os.environ["FLOW_FAILPOINT"] = point
            importlib.reload(failpoint)
            with suppress(BaseException):
                store = self.open()
                self.append_in(store, made, clock, [])
                store.tables.flush()
            os._exit(0)
        os.waitpid(child, 0)
        uppers = {table: self.table(table).upper for table in made}
        before = {table: self.models[table].upper for table in made}
        changed = {table for table in made if uppers[table] != before[table]}
        held = {table for table in made if self.models[table].least("write") <= before[table]}
        if changed or (held and self.is_there(made, clock)):
            self.appended(made, clock, [])

    def is_there(self, made: dict[int, list[tuple[int, int]]], clock: int) -> bool:
        return any(self.contents(table, clock) != self.models[table].at(clock) for table in made)

    # What is known

    def contents(self, table: int, clock: int) -> Counter[int]:
        found = table_contents(self.store, table, clock)
        return Counter({orjson.loads(text)["n"]: count for (text, _), count in found.items()})

    @rule(right=rights)
    def subscribe(self, right: Capability) -> None:
        model = self.models[right.collection]
        if model.rights.get(right.id, ("", 0))[0] != "read":
            return
        current = self.store.capabilities.find(right.id)
        reported: Counter[int] = Counter()
        frontier = current.frontier
        with suppress(Enough), closing(subscribe_at(self.store, current, enough)) as subscription:
            for item in subscription:
                if isinstance(item, int):
                    frontier = item
                    assert +reported == model.at(frontier - 1)
                    continue
                for update in item:
                    assert frontier <= update.clock < model.upper
                    reported[orjson.loads(update.text)["n"]] += update.diff
        assert frontier == max(model.upper, current.frontier)

    @invariant()
    def frontiers_and_contents_are_those_of_the_model(self) -> None:
        for identifier, model in self.models.items():
            table = self.table(identifier)
            assert (table.since, table.upper) == (model.since, model.upper)
            if model.since < END_OF_TIME:
                for clock in {model.since, model.last, (model.since + model.last) // 2}:
                    if model.since <= clock < model.upper:
                        assert self.contents(identifier, clock) == model.at(clock)


TestFormalism = Formalism.TestCase
TestFormalism.settings = settings(
    max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "8")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_actions_run_in_one_commit(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "data", wall=lambda: 1_000, durable=False)) as store:
        read, write = store.capabilities.create("t", COLUMNS)
        store.capabilities.release(read)
        with pytest.raises(FencedError):
            store.capabilities.perform([Update(write, [row(1_000, 1, 1)], 1_001), Update(read, [], 1_002)])
        assert store.upper("t") == 1_000

        moved = store.capabilities.perform([Update(write, [row(1_000, 1, 1)], 1_001), Release(write)])
        assert moved[1] is None
        assert store.upper("t") == 1_001


def test_read_capability_writes_nothing(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "data", wall=lambda: 1_000, durable=False)) as store:
        read, _ = store.capabilities.create("t", COLUMNS)
        with pytest.raises(FencedError, match="is to read, not to write"):
            store.capabilities.update_and_downgrade(Update(read, [], 1_001))
