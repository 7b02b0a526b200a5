"""Two folders to which the same is done: one is left in peace, and everything else that may happen happens to the other.

Documents, rows of a table, edits, resets, shadows and statements of people come to both. The calm folder has another
run for each step, and one shard. The busy one has a run that goes on; it is killed, split, compacted, backed up and
restored, and a materialization follows its collections.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from conftest import World, write_catalog
from crash_client import FENCED, CrashServer
from explained import assert_explained
from hypothesis import note
from hypothesis import strategies as st
from random_catalogs import BASE, RELATIONS, SECOND, SOURCE, TABLE, VIEW
from random_edits import edited
from random_lives import STORED, Life
from random_modules import write_modules
from random_places import MACHINES, Places

from derive.backup import Verification
from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.engine.inputs import settle
from derive.engine.quarantine import Choice, decide
from derive.engine.reset import reset
from derive.errors import CatalogError, FlowError
from derive.failpoint import FAILPOINTS
from derive.materialize.worker import close_streams
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import ErrorUpdate, RowUpdate, Table, TableColumn, TableUpdate

T = TypeVar("T")
Row: TypeAlias = tuple[int, str, float]

COLUMNS = (TableColumn("id", "bigint"), TableColumn("k", "text"), TableColumn("v", "double precision"))
_STEPS = (
    *("segment.closing", "segment.synced", "segment.closed", "state.committing", "state.committed", "state.linked"),
    *("state.folding", "state.discarding", "state.forgotten", "state.removing", "epoch.written", "epoch.published"),
    *("switch.written", "switch.removed", "refill.applied", "refill.completing", "refill.completed", "reset.removed"),
    *("chain.putting", "chain.put", "chain.fetched", "chain.collected"),
)
_COMMITS = ("metadata.committing", "metadata.committed")
KILLS = {
    "run": (*_STEPS, *_COMMITS, "materialize.committing", "materialize.committed"),
    "shadow": (*_STEPS, *_COMMITS, "swap.committing", "swap.committed", "swap.applied"),
    "compact": (*_COMMITS, *(point for point in sorted(FAILPOINTS) if point.startswith(("compaction", "segment")))),
    "reset": (*_COMMITS, "reset.committing", "reset.committed", "reset.removed"),
    "split": (*_COMMITS, "split.copied", "split.committed", "state.removing", "epoch.written", "chain.put"),
    "move": tuple(point for point in sorted(FAILPOINTS) if point.startswith("move.")),
}
"""Failpoints at which a process is killed, by what it does."""
PAUSES = (*_STEPS, "metadata.committed")
"""Failpoints at which a process is stopped: it has no lock of the metadata there."""


def _find(world: World, name: str) -> Table:
    table = world.store.tables.find(name)
    assert table is not None
    return table


def _create(world: World, name: str, is_view: bool) -> None:
    world.store.tables.create(name, COLUMNS, view_of=[] if is_view else None)


def _drop(world: World, name: str) -> None:
    world.define(Definitions(dropped=(_find(world, name).id,)))


def _rename(world: World, names: Mapping[str, str]) -> None:
    world.define(Definitions(renamed={_find(world, former).id: name for former, name in names.items()}))


def _change(world: World, name: str, clock: int, changes: Sequence[tuple[Row, int]], door: Door) -> None:
    table = _find(world, name)
    updates = tuple(RowUpdate(clock, *change) for change in TableRows(table).changes(changes))
    world.store.tables.commit([TableUpdate(table.id, None, clock + 1, updates)], door)


def _advance(world: World, name: str, clock: int) -> None:
    """Advance a materialized view, as its dataflow does."""
    world.store.tables.commit([TableUpdate(_find(world, name).id, None, clock)], Door.DATAFLOW)


def _fail(world: World, name: str, clock: int, diff: int) -> None:
    """Begin an error of a materialized view, or end it."""
    error = ErrorUpdate(clock, "22012", "division by zero", diff)
    update = TableUpdate(_find(world, name).id, None, clock + 1, errors=(error,))
    world.store.tables.commit([update], Door.DATAFLOW)


def _ingest(world: World, documents: Sequence[dict[str, Any]]) -> None:
    world.ingest(SOURCE, documents)


def _ingest_other(world: World, name: str, documents: Sequence[dict[str, Any]]) -> None:
    world.ingest(name, documents, clock=None)


def _truncate(world: World) -> None:
    world.store.truncate(SOURCE)


def _drop_source(world: World) -> None:
    if world.store.collection(SOURCE):
        world.store.drop(SOURCE, force=True)


class Story:
    """Events of two folders, and in the end of a third one, which only sees the last catalog."""

    EVENTS = (
        *("edit", "edit", "edit", "undo", "shadow", "reset", "decide", "since", "truncate", "drop_source"),
        *("replace", "replace", "rename_back", "swap_names", "fail_view"),
        *("rest", "forget", "back_up", "compact", "split", "crash", "crash", "freeze", "take_over", "change_machine"),
    )

    def __init__(
        self, folder: Path, text: str, data: st.DataObject, address: str, server: CrashServer, places: Places
    ) -> None:
        self.folder, self.text, self.data, self.server = folder, text, data, server
        shards = self.draw(st.sampled_from([1, 2, 3]))
        self.busy = Life(folder / "busy", text, address, goes_on=True, shards=shards, places=places)
        self.frozen = 0
        self.calm = Life(folder / "calm", text)
        self.lives = (self.busy, self.calm)
        self.wall, self.edits = BASE, 0
        self.deeds: list[tuple[int, Callable[[World], None]]] = []
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in RELATIONS}
        self.views, self.failed, self.renamed = {VIEW}, set[str](), 0
        self.seen: dict[str, dict[int, dict[bytes, Any]]] = {}
        self.is_explained = True  # nothing is forgotten that a replay needs
        for name in RELATIONS:
            self.do(partial(_create, name=name, is_view=name in self.views))

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
        for name in RELATIONS:
            for keys in self.draw(st.lists(st.sets(st.integers(0, 2), min_size=1), max_size=2)):
                self.change(name, keys)

    def change(self, name: str, keys: set[int]) -> None:
        """Insert, replace or delete rows of a table or materialized view."""
        self.wall += self.draw(st.sampled_from([1, 400_000, SECOND]))
        rows, changes = self.rows[name], list[tuple[Row, int]]()
        for key in sorted(keys):
            if former := rows.pop(key, None):
                changes.append((former, -1))
            if not former or self.draw(st.booleans()):
                text, number = (
                    self.draw(st.sampled_from(["a", "b", "ab"])),
                    self.draw(st.sampled_from([1.0, 2.0, 7.75])),
                )
                rows[key] = (key, text, number)
                changes.append((rows[key], 1))
        door = Door.DATAFLOW if name in self.views else Door.SERVER
        self.do(partial(_change, name=name, clock=self.wall, changes=changes, door=door))
        self.wall += 1

    def advance_views(self) -> None:
        for name in sorted(self.views):
            self.do(partial(_advance, name=name, clock=self.wall))

    def step(self, *, is_resting: bool = False) -> None:
        """Both do all there is to do; both come to the same, and what was final stays as it was (law L3)."""
        if is_resting or self.draw(st.booleans()):
            self.advance_views()
        for life in self.lives:
            life.world.wall = self.wall
            life.step()
        assert {name: text for name, text in self.busy.errors.items() if name != STORED} == self.calm.errors
        for name in self.busy.world.catalog.collections:
            one, other = (life.world.store.collection(name) for life in self.lives)
            if name in RELATIONS and not (one and one.documents):
                continue  # a run that begins declares a collection that nothing has written
            assert (one and one.upper) == (other and other.upper), name
            if one is not None:
                if is_resting or name in RELATIONS:
                    assert self.busy.contents(name) == self.calm.contents(name), name
                assert name in RELATIONS or self.busy.world.rows(name) == self.calm.world.rows(name), name
                self.look_back(name, one.relation, one.since, one.upper - 1)
        if is_resting:
            self.busy.check_stored()

    def look_back(self, name: str, relation: int, since: int, last: int) -> None:
        """Contents at the first and the last time of a relation that were seen stay as they were."""
        relation_seen = self.seen.setdefault(
            f"{name} {relation} {json.loads(self.text)['collections'][name]['schema']}", {}
        )
        for at, contents in [*relation_seen.items()]:
            if since <= at:
                assert self.busy.contents(name, at) == contents, (name, at)
        if since <= last:
            for at in [*relation_seen][1:]:
                del relation_seen[at]
            relation_seen[last] = self.busy.contents(name, last)

    # Events

    def happen(self) -> None:
        event = self.draw(st.sampled_from([*self.EVENTS, *self.further()]))
        note(event)
        for life in self.lives:
            life.world.wall = self.wall
        if event in ("move_metadata", "back_up"):
            self.thaw_all()
        if event in ("forget", "back_up", "compact", "take_over", "wake", "move_metadata"):
            getattr(self.busy, event)()
        else:
            getattr(self, event)()

    def further(self) -> list[str]:
        """Return events that are possible now, and are not always."""
        catalog = self.calm.world.catalog
        return [
            *(["thaw", "thaw"] if self.frozen else []),
            *(["wake", "wake"] if self.busy.fenced else []),
            *(["move_metadata", "crash_move"] if self.busy.places.database else []),
            *(["bind"] if self.busy.address else []),
            *(["ingest_other"] if set(catalog.collections) - set(catalog.derivations) - {SOURCE, *RELATIONS} else []),
        ]

    def other_catalog(self) -> str:
        """An edited catalog, or the present one, if the edit is an error."""
        self.edits += 1
        text, edits = self.draw(edited(self.text, self.edits))
        write_modules(self.folder, json.loads(text)["collections"])
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
        if self.draw(st.booleans()):
            self.busy.end_run()
            self.busy.load(text)
            self.kill("shadow", [self.busy.shards])
            self.busy.forget()
        assert self.busy.shadow(text) == self.calm.shadow(text)
        self.wall = max(life.world.wall for life in self.lives)
        self.turn_to(text, accepts=True)

    def reset(self) -> None:
        self.reset_task(self.any_derivation())

    def reset_task(self, name: str) -> None:
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

    def bind(self) -> None:
        """The materialization loses the binding of a collection, or gets it back."""
        self.busy.unbound ^= {self.draw(st.sampled_from(sorted(self.calm.world.catalog.collections)))}
        self.busy.edit(self.text, accepts=self.draw(st.booleans()))

    def ingest_other(self) -> None:
        """Documents are ingested into a collection that was derived, if nothing has derived it."""
        catalog = self.calm.world.catalog
        name = self.draw(
            st.sampled_from(sorted(set(catalog.collections) - set(catalog.derivations) - {SOURCE, *RELATIONS}))
        )
        self.wall += 1
        deed, errors = partial(_ingest_other, name=name, documents=[{"k": "a", "v": 2, "b": 0}]), list[str]()
        for life in self.lives:
            life.world.wall = self.wall
            try:
                deed(life.world)
            except FlowError as error:
                errors.append(error.message)
        assert len(errors) in (0, 2)
        assert len(set(errors)) < 2
        if not errors:
            self.is_explained = False
            self.deeds.append((self.wall, deed))
        self.wall += 1

    def truncate(self) -> None:
        self.is_explained = False
        if self.calm.world.store.collection(SOURCE):
            self.do(_truncate)

    def drop_source(self) -> None:
        self.is_explained = False
        for life in self.lives:
            life.end_run()
        self.do(_drop_source)

    def replace(self) -> None:
        """A table or view is dropped or renamed, which the runs may see, and a table or view gets its name."""
        self.is_explained = False
        name = self.draw(st.sampled_from(RELATIONS))
        if self.draw(st.booleans()):
            self.do(partial(_drop, name=name))
        else:
            self.renamed += 1
            self.do(partial(_rename, names={name: f"{name}_{self.renamed}"}))
        was_view = name in self.views
        self.views.discard(name)
        self.failed.discard(name)
        if self.draw(st.booleans()):
            self.step()
        self.wall += self.draw(st.sampled_from([1, SECOND]))
        self.rows[name] = {}
        self.begin_relation(name, is_view=was_view != self.draw(st.booleans()))

    def begin_relation(self, name: str, *, is_view: bool) -> None:
        self.do(partial(_create, name=name, is_view=is_view))
        if is_view:
            self.views.add(name)
        self.wall += 1

    def rename_back(self) -> None:
        """A table or view is renamed, which the runs may see, and gets its name back."""
        name = self.draw(st.sampled_from(RELATIONS))
        self.do(partial(_rename, names={name: f"{name}_aside"}))
        views = self.views
        self.views = views - {name}
        if self.draw(st.booleans()):
            self.is_explained = False  # a reader that begins now reads the rows of one time later
            self.step()
        self.do(partial(_rename, names={f"{name}_aside": name}))
        self.views = views
        self.wall += 1

    def swap_names(self) -> None:
        """Two tables or views swap their names."""
        self.is_explained = False
        self.do(partial(_rename, names={TABLE: VIEW, VIEW: TABLE}))
        self.rows = {TABLE: self.rows[VIEW], VIEW: self.rows[TABLE]}
        other = {TABLE: VIEW, VIEW: TABLE}
        self.views, self.failed = {other[name] for name in self.views}, {other[name] for name in self.failed}
        self.wall += 1

    def fail_view(self) -> None:
        """A materialized view has an error, or has it no more."""
        if self.views:
            self.toggle_error(self.draw(st.sampled_from(sorted(self.views))))

    def toggle_error(self, name: str) -> None:
        self.wall += 1
        self.do(partial(_fail, name=name, clock=self.wall, diff=-1 if name in self.failed else 1))
        self.failed ^= {name}
        self.wall += 1

    def rest(self) -> None:
        """Everything that waits for its time is done."""
        self.wall += 70 * SECOND
        self.advance_views()
        self.step()
        self.wall += 2 * SECOND
        self.step(is_resting=True)

    def split(self) -> None:
        self.busy.split(self.draw(st.sampled_from(sorted(self.busy.world.catalog.tasks))))

    def crash(self) -> None:
        """A process is killed at a failpoint, if it comes there, while it works for the busy folder."""
        self.busy.end_run()
        what = self.draw(st.sampled_from(["run", "run", "run", "compact", "reset", "split"]))
        name = self.any_derivation()
        state = self.busy.world.store.task(name)
        if what == "reset":
            settle(self.busy.world.catalog, self.busy.world.store)
        arguments = {
            "run": self.run_arguments(),
            "reset": [name],
            "split": [name, 2 * state.shards if state and state.shards < 8 else 1],
            "compact": [],
        }
        self.kill(what, arguments[what])
        self.busy.forget()
        if what == "reset":
            self.reset_task(name)

    def run_arguments(self) -> list[Any]:
        return [self.busy.shards, 1_000_000, "", None, self.busy.accepted]

    def kill(self, what: str, arguments: Sequence[Any]) -> None:
        """Do something with the busy folder in a process that is killed at a failpoint, if it comes there."""
        status = self.attempt(
            what, f"{self.draw(st.sampled_from(KILLS[what]))}:{self.draw(st.integers(1, 4))}", arguments
        )
        assert status in (0, -signal.SIGKILL) or (what in ("run", "shadow") and status == 1)  # a task has an error
        if status:
            note(f"feature killed {what}")

    def attempt(self, what: str, point: str, arguments: Sequence[Any]) -> int:
        """Do something with the busy folder in a process of its own; return its exit status."""
        life = self.busy
        order = {"do": what, "source": str(life.folder / "flow.yaml"), "wall": self.wall, "data": str(life.world.root)}
        order |= {"cache": str(life.places.cache or ""), "environment": life.places.environment}
        return self.server.attempt({**order, "arguments": arguments}, point)

    def crash_move(self) -> None:
        """A move of the metadata is killed, and repeated."""
        self.thaw_all()
        with self.busy.apart():
            self.kill("move", [self.busy.places.schema])

    def freeze(self) -> None:
        """A process is stopped while it works for the busy folder, and goes on only after others have taken over."""
        point = f"{self.draw(st.sampled_from(PAUSES))}:{self.draw(st.integers(1, 4))}:pause"
        self.busy.end_run()
        status = self.attempt("run", point, self.run_arguments())
        assert status in (0, 1, -signal.SIGSTOP)
        if status == -signal.SIGSTOP:
            note("feature stopped")
            self.frozen += 1
        self.busy.forget()

    def thaw(self) -> None:
        """A stopped process goes on, and may commit nothing of a task that another run has."""
        if self.frozen:
            self.frozen -= 1
            assert self.server.resume() in (0, 1, FENCED, -signal.SIGKILL)  # killed if it had a lock of a later run

    def thaw_all(self) -> None:
        while self.frozen:
            self.thaw()

    def change_machine(self) -> None:
        """The next run is on another machine."""
        self.busy.end_run()
        self.busy.end_fenced()
        self.busy.places.machine = self.draw(st.sampled_from(MACHINES))
        self.busy.forget()

    def end(self) -> None:
        """Everything starts over, and is what it is in a folder that has only seen this catalog."""
        self.thaw_all()
        self.busy.end_fenced()
        for name in sorted(self.failed):
            self.toggle_error(name)
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
        while self.frozen:
            self.frozen -= 1
            self.server.resume()
        for life in self.lives:
            life.close()
