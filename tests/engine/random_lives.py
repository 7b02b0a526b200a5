"""A data folder with a run over it, and all that may happen to one: kills, backups, splits, moves, another run.

The folders of `random_stories.py` are such lives.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from conftest import World, write_catalog
from random_catalogs import BASE, RELATIONS, SECOND, SOURCE
from random_modules import write_modules
from random_places import Places

from derive.backup import Options, back_up
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import split
from derive.engine.run import Run
from derive.engine.shadow import begin_shadow, drop_shadows, find_group
from derive.engine.swapping import Swapping
from derive.engine.task_reconciler import TaskReconciler, open_changing_run
from derive.errors import FencedError, StorageError, UsageError, ViewError
from derive.materialize.restarts import read_refills
from derive.materialize.worker import close_streams
from derive.protocol.derive import DividesState
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import CatalogSpec
from derive.restore import restore
from derive.storage.compaction import compact
from derive.storage.metadata.location import choose_location

STORED = "t/stored"


class Life:
    """A data folder, and a run over it.

    Args:
        folder: of the catalog.
        text: the catalog.
        address: of a connector that stores all collections; empty for none.
        goes_on: whether the run goes on between steps.
        shards: of tasks that have never run.
        places: places of the data; None for the data folder.

    Attributes:
        unbound: collections that the connector does not store.
        fenced: worlds and runs that were paused, and over which another run has taken.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        address: str = "",
        *,
        goes_on: bool = False,
        shards: int = 1,
        places: Places | None = None,
    ) -> None:
        folder.mkdir()
        self.folder, self.address, self.goes_on, self.shards = folder, address, goes_on, shards
        self.unbound = set[str]()
        self.places = places or Places(folder / "data")
        location = self.places.begin()
        if location is not None:
            choose_location(self.places.root, location)
        self.world = self.places.open(self.load(text), BASE)
        self.at_work: tuple[Run, TaskReconciler] | None = None
        self.fenced: list[tuple[World, Run]] = []
        self.accepted: list[str] = []
        self.errors: dict[str, str] = {}
        self.backups = 0

    def load(self, text: str) -> CatalogSpec:
        catalog = json.loads(text)
        write_modules(self.folder, catalog["collections"])
        if self.address:
            bindings = [
                {"source": name, "resource": {"table": name}, "onSourceReset": "follow"}
                for name in catalog["collections"]
                if name not in {*self.unbound, *RELATIONS}
            ]
            endpoint = {"address": self.address, "config": {"path": str(self.folder / "stored.db")}}
            bindings = bindings or [{"source": SOURCE, "resource": {"table": SOURCE}, "onSourceReset": "follow"}]
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
        times = 2
        while times:
            times -= 1
            self.bring_in_line(run, reconciler)
            while run.step():
                times = 1
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
        self.end_fenced()
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
        self.reopen()

    def reopen(self) -> None:
        self.world = self.places.open(self.world.catalog, self.world.wall)

    def take_over(self) -> None:
        """Another run takes over from this one, which is paused, and does not know it."""
        if self.at_work is not None:
            self.fenced.append((self.world, self.at_work[0]))
            self.at_work = None
            self.reopen()

    def wake(self) -> None:
        """Let a paused run go on, which may commit nothing of a task that another run has."""
        if self.fenced:
            world, run = self.fenced.pop(0)
            world.wall = self.world.wall
            with suppress(FencedError):
                run.step()
            with suppress(FencedError):
                run.close()
            world.store.close()

    def end_fenced(self) -> None:
        while self.fenced:
            self.wake()

    def move_metadata(self) -> None:
        """Move the metadata between SQLite and PostgreSQL, while nothing uses them."""
        with self.apart():
            self.places.move_metadata()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let nothing of this process use the folder."""
        self.end_run()
        self.end_fenced()
        self.world.store.close()
        yield
        try:
            self.reopen()
        except StorageError:  # a move was killed after it had marked the former database
            self.places.move_metadata()
            self.reopen()

    def back_up(self) -> None:
        """Restore the folder from a backup, and go on with it."""
        self.end_run()
        self.end_fenced()
        self.backups += 1
        backup = self.folder / f"backup-{self.backups}"
        back_up(self.world.store, backup, Options())
        self.world.store.close()
        shutil.rmtree(self.world.root)
        restore(backup, self.world.root, segments=self.places.begin())
        self.reopen()

    def compact(self) -> None:
        for spec in self.world.catalog.collections.values():
            if self.world.store.collection(spec.name):
                compact(self.world.store, spec, grace=0)

    def split(self, name: str) -> None:
        state = self.world.store.task(name)
        if state and state.shards < 8:
            close_streams()
            split(self.world.store, name, is_materialized=name == STORED, connector=self.divider(name))

    def divider(self, name: str) -> DividesState | None:
        """Return the connector of a derivation, if it keeps state by shuffle key."""
        spec = self.world.catalog.derivations.get(name)
        runtime = None if spec is None else find_runtime(spec.connector)
        return runtime if isinstance(runtime, DividesState) else None

    # Contents

    def contents(self, name: str, at: int | None = None) -> dict[bytes, Any]:
        fold = partial(reduced_locally, scratch=self.folder / "scratch")
        spec = self.world.catalog.collections[name]
        parts = read_reduced(self.world.store, spec, ReadOptions(as_of=at), fold)
        try:
            return {key: json.loads(text) for rows in parts for _, _, key, text in rows.tuples()}
        except ViewError as error:
            return {b"": error.message}

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
