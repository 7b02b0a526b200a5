"""Two folders to which the same is done: one is left in peace, and everything else that may happen happens to the other.

Documents, rows of a table, edits, resets, shadows and statements of people come to both. The calm folder has another
run for each step, and one shard. The busy one has a run that goes on; it is killed, split, compacted, backed up and
restored, and a materialization follows its collections.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw
from conftest import World, write_catalog
from crash_client import CrashServer
from explained import assert_explained
from hypothesis import note
from hypothesis import strategies as st
from random_catalogs import BASE, SECOND, SOURCE, TABLE
from random_edits import edited

from derive.backup import Options, Verification, back_up
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import settle
from derive.engine.quarantine import Choice, decide
from derive.engine.reset import reset, split
from derive.engine.run import Run
from derive.engine.shadow import begin_shadow, drop_shadows, find_group
from derive.engine.swapping import Swapping
from derive.engine.task_reconciler import TaskReconciler, open_changing_run
from derive.errors import CatalogError, FlowError, UsageError
from derive.failpoint import FAILPOINTS
from derive.materialize.restarts import read_refills
from derive.materialize.worker import close_streams
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import TableRows
from derive.restore import restore
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

T = TypeVar("T")
Row: TypeAlias = tuple[int, str, float]

COLUMNS = (TableColumn("id", "bigint"), TableColumn("k", "text"), TableColumn("v", "double precision"))
STORED = "t/stored"


class Life:
    """A data folder, and a run over it.

    Args:
        folder: of the catalog.
        text: the catalog.
        address: of a connector that stores all collections; empty for none.
        goes_on: whether the run goes on between steps.
        shards: of tasks that have never run.
    """

    def __init__(self, folder: Path, text: str, address: str = "", *, goes_on: bool = False, shards: int = 1) -> None:
        folder.mkdir()
        self.folder, self.address, self.goes_on, self.shards = folder, address, goes_on, shards
        self.world = World(folder / "data", self.load(text), wall=BASE)
        self.at_work: tuple[Run, TaskReconciler] | None = None
        self.accepted: list[str] = []
        self.errors: dict[str, str] = {}
        self.backups = 0

    def load(self, text: str) -> CatalogSpec:
        catalog = json.loads(text)
        if self.address:
            bindings = [
                {"source": name, "resource": {"table": name}, "onSourceReset": "follow"}
                for name in catalog["collections"]
                if name != TABLE
            ]
            endpoint = {"address": self.address, "config": {"path": str(self.folder / "stored.db")}}
            catalog["materializations"] = {STORED: {"endpoint": endpoint, "bindings": bindings}}
        return load(write_catalog(self.folder, json.dumps(catalog)))

    def edit(self, text: str, *, accepts: bool) -> None:
        self.world.catalog = self.load(text)
        self.accepted = list(self.world.catalog.tasks) if accepts else []
        if self.at_work is not None:
            self.bring_in_line(*self.at_work)

    def bring_in_line(self, run: Run, reconciler: TaskReconciler) -> None:
        reconciler.find_superseded(run)
        reconciler.accept(self.accepted)
        reconciler.apply(run, self.world.catalog)

    def step(self) -> None:
        """Do all there is to do now."""
        if self.at_work is None:
            self.at_work = self.open()
        run, reconciler = self.at_work
        for _ in range(3):
            self.bring_in_line(run, reconciler)
            while run.step():
                pass
        self.errors = {name: task.error.message.split(" at 20")[0] for name, task in run.tasks.items() if task.error}
        if not self.goes_on:
            self.end_run()

    def open(self) -> tuple[Run, TaskReconciler]:
        opened = open_changing_run(
            self.world.catalog, self.world.store, InProcessExecutor(), shards=self.shards, accepted=self.accepted
        )
        opened[0].is_mended = True
        return opened

    def end_run(self) -> None:
        close_streams()
        if self.at_work is not None:
            self.at_work[0].close()
            self.at_work = None

    def close(self) -> None:
        self.end_run()
        self.world.store.close()

    def shadow(self, text: str) -> str:
        """Derive shadows of an edited catalog until they are in force; return what became of them."""
        self.end_run()
        edited_catalog = self.load(text)
        group = None
        try:
            group = find_group(self.world.store, edited_catalog)
            running = begin_shadow(self.world.store, group, is_held=False) if group else edited_catalog
        except UsageError as error:
            return error.message
        self.accepted, self.world.catalog = list(running.tasks), running
        run, reconciler = self.at_work = self.open()
        swapping = Swapping(self.world.store, run, reconciler, group) if group else None
        for _ in range(6):
            while run.step() or (swapping and swapping.advance(is_last=True) and run.step()):
                pass
            if swapping is None or swapping.swapped is not None:
                break
            self.world.wall += 2 * SECOND
        self.end_run()
        if swapping is not None and swapping.swapped is None:
            drop_shadows(self.world.store)
            return "dropped"
        return "swapped"

    # Events of one folder

    def forget(self) -> None:
        """Another run begins as if this one had been killed."""
        close_streams()
        self.at_work = None
        self.world.store.close()
        self.world = World(self.world.root, self.world.catalog, wall=self.world.wall)

    def back_up(self) -> None:
        """Restore the folder from a backup, and go on with it."""
        self.end_run()
        self.backups += 1
        backup = self.folder / f"backup-{self.backups}"
        back_up(self.world.store, backup, Options())
        self.world.store.close()
        shutil.rmtree(self.world.root)
        restore(backup, self.world.root)
        self.world = World(self.world.root, self.world.catalog, wall=self.world.wall)

    def compact(self) -> None:
        for spec in self.world.catalog.collections.values():
            if self.world.store.collection(spec.name):
                compact(self.world.store, spec, grace=0)

    def split(self, name: str) -> None:
        state = self.world.store.task(name)
        if state and state.shards < 8:
            close_streams()
            split(self.world.store, name, is_materialized=name == STORED)

    # Contents

    def contents(self, name: str, at: int | None = None) -> dict[bytes, Any]:
        fold = partial(reduced_locally, scratch=self.folder / "scratch")
        spec = self.world.catalog.collections[name]
        parts = read_reduced(self.world.store, spec, ReadOptions(as_of=at), fold)
        return {key: json.loads(text) for rows in parts for _, _, key, text in rows.tuples()}

    def check_stored(self) -> None:
        """Tables have what their collections had at the time up to which they are stored."""
        state, refills = self.world.store.task(STORED), read_refills(self.world.store, STORED)
        for key, place in state.places.items() if state and STORED not in self.errors else ():
            if place.source not in self.world.catalog.collections:
                continue  # its binding was removed
            known = self.world.store.collection(place.source)
            at = state.positions.get(key, 0) - 1 if state else 0
            if key not in refills and known and known.relation == place.relation and at >= known.since:
                with closing(apsw.Connection(str(self.folder / "stored.db"))) as database:
                    database.set_busy_timeout(30_000)
                    rows = database.execute(f'SELECT flow_document FROM "{place.source}"').fetchall()
                expected = [*self.contents(place.source, at).values()]
                assert sorted((json.loads(str(text)) for (text,) in rows), key=repr) == sorted(expected, key=repr), key


def _create(world: World) -> None:
    world.store.tables.create(TABLE, COLUMNS)


def _drop(world: World) -> None:
    table = world.store.tables.find(TABLE)
    assert table is not None
    world.define(Definitions(dropped=(table.id,)))


def _change(world: World, clock: int, changes: Sequence[tuple[Row, int]]) -> None:
    table = world.store.tables.find(TABLE)
    assert table is not None
    world.store.tables.append(clock, {table.id: TableRows(table).changes(changes)})


def _ingest(world: World, documents: Sequence[dict[str, Any]]) -> None:
    world.ingest(SOURCE, documents)


def _truncate(world: World) -> None:
    world.store.truncate(SOURCE)


def _drop_source(world: World) -> None:
    if world.store.collection(SOURCE):
        world.store.drop(SOURCE, force=True)


class Story:
    """Events of two folders, and in the end of a third one, which only sees the last catalog."""

    EVENTS = (
        *("edit", "edit", "undo", "shadow", "reset", "decide", "since", "truncate", "drop_source", "replace_table"),
        *("rest", "forget", "back_up", "compact", "split", "crash", "crash"),
    )

    def __init__(self, folder: Path, text: str, data: st.DataObject, address: str, server: CrashServer) -> None:
        self.folder, self.text, self.data, self.server = folder, text, data, server
        self.busy = Life(folder / "busy", text, address, goes_on=True, shards=self.draw(st.sampled_from([1, 2, 3])))
        self.calm = Life(folder / "calm", text)
        self.lives = (self.busy, self.calm)
        self.wall, self.edits = BASE, 0
        self.deeds: list[tuple[int, Callable[[World], None]]] = []
        self.rows: dict[int, Row] = {}
        self.seen: dict[tuple[str, int, int], dict[bytes, Any]] = {}
        self.is_explained = True  # nothing is forgotten that a replay needs
        self.do(_create)

    def draw(self, strategy: st.SearchStrategy[T]) -> T:
        return self.data.draw(strategy)

    def any_derivation(self) -> str:
        return self.draw(st.sampled_from(sorted(self.calm.world.catalog.derivations)))

    def do(self, deed: Callable[[World], None]) -> None:
        self.deeds.append((self.wall, deed))
        for life in self.lives:
            life.world.wall = self.wall
            deed(life.world)

    def arrive(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Documents, and changes of the table, whose times are from now on."""
        timed = []
        for document in documents:
            self.wall += self.draw(st.sampled_from([1, 1000, 400_000, SECOND]))
            timed.append(
                {**document, "v": document["v"] if document["v"] != 0.1 else 0.5, "at": format_rfc3339(self.wall)}
            )
        self.wall += 1
        if timed:
            self.do(partial(_ingest, documents=timed))
        for keys in self.draw(st.lists(st.sets(st.integers(0, 2), min_size=1), max_size=2)):
            self.wall += self.draw(st.sampled_from([1, 400_000, SECOND]))
            changes: list[tuple[Row, int]] = []
            for key in sorted(keys):
                if former := self.rows.pop(key, None):
                    changes.append((former, -1))
                if not former or self.draw(st.booleans()):
                    row = (
                        key,
                        self.draw(st.sampled_from(["a", "b", "ab"])),
                        self.draw(st.sampled_from([1.0, 2.0, 7.75])),
                    )
                    self.rows[key] = row
                    changes.append((row, 1))
            self.do(partial(_change, clock=self.wall, changes=changes))
            self.wall += 1

    def step(self, *, is_resting: bool = False) -> None:
        """Both do all there is to do; both come to the same, and what was final stays as it was (law L3)."""
        for life in self.lives:
            life.world.wall = self.wall
            life.step()
        assert {name: text for name, text in self.busy.errors.items() if name != STORED} == self.calm.errors
        for name in self.busy.world.catalog.collections:
            one, other = (life.world.store.collection(name) for life in self.lives)
            assert (one and one.upper) == (other and other.upper), name
            if one is not None:
                assert self.busy.contents(name) == self.calm.contents(name), name
                assert name == TABLE or self.busy.world.rows(name) == self.calm.world.rows(name), name
                self.look_back(name, one.relation, one.since, one.upper - 1)
        if is_resting:
            self.busy.check_stored()

    def look_back(self, name: str, relation: int, since: int, last: int) -> None:
        described = f"{name} {json.loads(self.text)['collections'][name]['schema']}"
        for (other, former, at), contents in self.seen.items():
            if (other, former) == (described, relation) and since <= at:
                assert self.busy.contents(name, at) == contents, (name, at)
        if since <= last:
            self.seen[described, relation, last] = self.busy.contents(name, last)

    # Events

    def happen(self) -> None:
        event = self.draw(st.sampled_from(self.EVENTS))
        note(event)
        for life in self.lives:
            life.world.wall = self.wall
        if event in ("forget", "back_up", "compact"):
            getattr(self.busy, event)()
        else:
            getattr(self, event)()

    def other_catalog(self) -> str:
        """An edited catalog, or the present one, if the edit is an error."""
        self.edits += 1
        text, edits = self.draw(edited(self.text, self.edits))
        try:
            load(write_catalog(self.folder, text))
        except CatalogError:
            return self.text
        note(f"{edits}: {text}")
        return text

    def turn_to(self, text: str, *, accepts: bool) -> None:
        self.text = text
        for life in self.lives:
            life.world.wall = self.wall
            life.edit(text, accepts=accepts)

    def edit(self) -> None:
        self.turn_to(self.other_catalog(), accepts=self.draw(st.booleans()))

    def undo(self) -> None:
        """An edit that waits, and is undone, never was."""
        self.step()
        former, before = self.text, set(self.calm.errors)
        self.turn_to(self.other_catalog(), accepts=False)
        self.step()
        waiting = {name for name, text in self.calm.errors.items() if "waits for acceptance" in text}
        self.turn_to(former, accepts=False)
        self.step()
        assert (waiting - before).isdisjoint(self.calm.errors)

    def shadow(self) -> None:
        text = self.other_catalog()
        self.step()
        assert self.busy.shadow(text) == self.calm.shadow(text)
        self.wall = max(life.world.wall for life in self.lives)
        self.turn_to(text, accepts=True)

    def reset(self) -> None:
        name = self.any_derivation()
        for life in self.lives:
            close_streams()
            settle(life.world.catalog, life.world.store)
            reset(life.world.catalog, life.world.store, [name], cascade=True)

    def decide(self) -> None:
        """Retry or drop the documents that are in quarantine."""
        name, decision = self.any_derivation(), self.draw(st.sampled_from(["retry", "drop"]))
        counts: list[int | str] = []
        for life in self.lives:
            try:
                spec = life.world.catalog.derivations[name]
                counts.append(decide(life.world.store, spec, Choice(), "retry" if decision == "retry" else "drop"))
            except FlowError as error:
                counts.append(error.message)
        assert counts[0] == counts[1]

    def since(self) -> None:
        """The history of something derived is forgotten."""
        name = self.any_derivation()
        self.is_explained = False
        at = self.calm.world.store.upper(name) - 1
        for life in self.lives:
            if life.world.store.collection(name):
                compact(life.world.store, life.world.catalog.collections[name], since=at, grace=0)

    def truncate(self) -> None:
        self.is_explained = False
        if self.calm.world.store.collection(SOURCE):
            self.do(_truncate)

    def drop_source(self) -> None:
        self.is_explained = False
        for life in self.lives:
            life.end_run()
        self.do(_drop_source)

    def replace_table(self) -> None:
        """The table is dropped, which the runs may see, and another one has its name."""
        self.is_explained = False
        self.rows = {}
        self.do(_drop)
        if self.draw(st.booleans()):
            self.step()
        self.wall += self.draw(st.sampled_from([1, SECOND]))
        self.do(_create)
        self.wall += 1

    def rest(self) -> None:
        """Everything that waits for its time is done."""
        self.wall += 70 * SECOND
        self.step()
        self.wall += 2 * SECOND
        self.step(is_resting=True)

    def split(self) -> None:
        self.busy.split(self.draw(st.sampled_from(sorted(self.busy.world.catalog.tasks))))

    def crash(self) -> None:
        """A process is killed at a failpoint, if it comes there, while it works for the busy folder."""
        point = f"{self.draw(st.sampled_from(sorted(FAILPOINTS)))}:{self.draw(st.integers(1, 6))}"
        what = self.draw(st.sampled_from(["run", "run", "compact"]))
        life = self.busy
        life.end_run()
        if life.accepted or what == "compact":  # such a run accepts all edits
            order = {"do": what, "source": str(life.folder / "flow.yaml"), "wall": self.wall}
            arguments = [life.shards, 1_000_000] if what == "run" else []
            status = self.server.attempt({**order, "data": str(life.world.root), "arguments": arguments}, point)
            assert status in (0, 1, -9)  # 1: a task has an error
            life.forget()

    def end(self) -> None:
        """Everything starts over, and is what it is in a folder that has only seen this catalog."""
        self.rest()
        store = Store(self.busy.world.root, reading=True, accept_older=True)
        assert list(Verification(store).run()) == []
        store.close()
        if self.is_explained and not self.busy.errors:
            assert_explained(self.busy.world)
        self.wall += 100 * SECOND
        for life in self.lives:
            life.end_run()
            life.world.wall = self.wall
            settle(life.world.catalog, life.world.store)
            names = [name for name in life.world.catalog.tasks if life.world.store.task(name) is not None]
            reset(life.world.catalog, life.world.store, names)
        self.step()
        fresh = Life(self.folder / "fresh", self.text)
        for wall, deed in self.deeds:
            fresh.world.wall = wall
            deed(fresh.world)
        fresh.world.wall = self.wall
        fresh.step()
        assert fresh.errors == self.calm.errors
        assert fresh.world.digest() == self.busy.world.digest()
        fresh.close()

    def close(self) -> None:
        for life in self.lives:
            life.close()
