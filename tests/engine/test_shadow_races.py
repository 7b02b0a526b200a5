"""Processes that begin to run a task while another process begins a shadow of it, or swaps a shadow of its source.

A connector may take long to answer, so the other process begins in the middle of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from materialized import CATALOG, folded, ingest, tables
from test_fencing import Interrupted

from connectors.kit.requests import ValidatedBinding, Validation
from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.shadow import (
    begin_binding_shadows,
    begin_shadow,
    drop_binding_shadows,
    drop_shadows,
    find_group,
    new_shadows,
)
from derive.engine.swapping import swap_group
from derive.engine.task_reconciler import open_run
from derive.errors import FencedError, UsageError
from derive.materialize.worker import close_streams
from derive.protocol.specs import CatalogSpec


@dataclass
class SlowConnector:
    """A connector of SQLite, in whose answer another process does something.

    Attributes:
        act: called once, before the connector validates bindings.
    """

    act: Callable[[], None] | None = None
    inner: MaterializeSqlite = field(default_factory=MaterializeSqlite)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        act, self.act = self.act, None
        if act:
            act()
        return self.inner.validate(request)


@contextmanager
def serving(connector: SlowConnector) -> Iterator[str]:
    """The address of a connector."""
    server = ConnectorServer(connector, "127.0.0.1:0")
    try:
        yield server.address
    finally:
        server.stop()


def catalog_at(folder: Path, address: str, text: str = CATALOG) -> CatalogSpec:
    """A catalog in which the second of two materializations stores the derivation, too."""
    text = text.replace("ADDRESS", address).replace("PATH", str(folder / "first.db"))
    other = {
        "endpoint": {"address": address, "config": {"path": str(folder / "second.db")}},
        "bindings": [{"resource": {"table": name}, "source": f"shop/{name}"} for name in ("orders", "spending")],
    }
    return load(write_catalog(folder, f"{text}  shop/late: {json.dumps(other)}\n"))


def run_tasks(world: World, *names: str) -> None:
    """Run some tasks, and wait until nothing is left."""
    run = open_run(world.catalog, world.store, InProcessExecutor(), tasks=names or None)
    while run.step():
        pass
    assert [task.error for task in run.tasks.values() if task.error] == []
    close_streams()
    run.close()


def test_swap_counts_a_materialization_that_starts_meanwhile(tmp_path: Path) -> None:
    connector = SlowConnector()
    with serving(connector) as address:
        world = World(tmp_path / "data", catalog_at(tmp_path, address))
        with closing(world.store):
            ingest(world, 0, 20)
            run_tasks(world, "shop/spending", "shop/view")
            edited = catalog_at(tmp_path, address, CATALOG.replace("$amount AS spent", "2 * $amount AS spent"))
            group = find_group(world.store, edited)
            assert group is not None
            world.catalog = begin_shadow(world.store, group, is_held=False)
            run_tasks(world)

            def start() -> None:
                with closing((other := World(world.root, edited, wall=world.wall)).store):
                    run_tasks(other, "shop/late")

            connector.act = start
            assert swap_group(world.store, group) is None
            assert connector.act is None
            assert swap_group(world.store, group) is not None
            world.catalog = edited
            ingest(world, 20, 30, day=2)
            run_tasks(world)
            assert tables(tmp_path / "first.db") == tables(tmp_path / "second.db") == folded(world)


def test_shadow_of_a_binding_does_not_begin_after_a_run_has_applied_the_edit(tmp_path: Path) -> None:
    connector = SlowConnector()
    with serving(connector) as address:
        world = World(tmp_path / "data", catalog_at(tmp_path, address))
        with closing(world.store):
            ingest(world, 0, 20)
            run_tasks(world)
            raised = CATALOG.replace("source: shop/spending }", "source: shop/spending, backfill: 1 }")
            world.catalog = catalog_at(tmp_path, address, raised)

            def apply() -> None:
                with closing((other := World(world.root, world.catalog, wall=world.wall)).store):
                    run_tasks(other)

            connector.act = apply
            with pytest.raises(FencedError, match="shop/view"):
                begin_binding_shadows(world.store, world.catalog, is_held=False)
            assert world.store.shadows.bindings() == []
            ingest(world, 20, 30, day=2)
            run_tasks(world)
            assert tables(tmp_path / "first.db") == folded(world)


@dataclass(frozen=True)
class Race:
    """A folder that has run, with an edited catalog whose edit one process applies, and another one shadows.

    Attributes:
        world: the folder, with the edited catalog.
        task: the edited task.
        live: the catalog before the edit.
    """

    world: World
    task: str
    live: CatalogSpec

    def shadowed(self) -> CatalogSpec:
        """Begin shadows, or continue them; return the catalog that a run with them runs."""
        group = find_group(self.world.store, self.world.catalog)
        if group:
            return begin_shadow(self.world.store, group, is_held=False)
        return begin_binding_shadows(self.world.store, self.world.catalog, is_held=False)

    def drop(self) -> None:
        drop_binding_shadows(self.world.store, self.world.catalog, self.world.store.shadows.bindings())
        drop_shadows(self.world.store)

    def stored(self) -> object:
        """Return the progress and the definitions of the edited task, and its documents or rows."""
        store, state = self.world.store, self.world.store.task(self.task)
        assert state is not None
        definitions = [part.definition for part in store.past(self.task)], store.applied(self.task)
        return (
            state.positions,
            definitions,
            tables(self.world.root.parent / "first.db"),
            self.world.rows("shop/spending"),
        )

    def run(self, before: Callable[[], object], catalog: CatalogSpec | None = None) -> Run:
        """Begin another process's run of the edited task, in which something happens before it acquires the task."""
        store = Interrupted(self.world, before)
        return open_run(catalog or self.world.catalog, store, InProcessExecutor(), tasks=[self.task])

    def finish(self, begin: int = 20) -> None:
        """Run with shadows, and swap; everything is as in a folder that has only seen the edited catalog.

        Args:
            begin: number of orders that are ingested already.
        """
        world, edited, group = self.world, self.world.catalog, find_group(self.world.store, self.world.catalog)
        world.catalog = self.shadowed()
        ingest(world, begin, 30, day=2)
        run_tasks(world)
        if group:
            assert swap_group(world.store, group) is not None
        else:
            assert world.store.shadows.swap_bindings(self.task)
        world.catalog = edited
        run_tasks(world)
        assert tables(world.root.parent / "first.db") == folded(world)
        fresh = World(world.root.parent / "fresh", edited)
        with closing(fresh.store):
            ingest(fresh, 0, 20)
            ingest(fresh, 20, 30, day=2)
            run_tasks(fresh, "shop/spending")
            assert sorted(map(str, folded(fresh).items())) == sorted(map(str, folded(world).items()))


@pytest.fixture(params=["derivation", "binding"])
def race(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Race]:
    is_derivation = request.param == "derivation"
    old, new = (
        ("$amount AS spent", "2 * $amount AS spent")
        if is_derivation
        else ("source: shop/spending }", "source: shop/spending, backfill: 1 }")
    )
    with serving(SlowConnector()) as address:
        world = World(tmp_path / "data", live := catalog_at(tmp_path, address))
        with closing(world.store):
            ingest(world, 0, 20)
            run_tasks(world)
            world.catalog = catalog_at(tmp_path, address, CATALOG.replace(old, new))
            yield Race(world, "shop/spending" if is_derivation else "shop/view", live)
            close_streams()


@pytest.mark.both_databases
def test_run_acquires_no_task_whose_shadow_has_begun_meanwhile(race: Race) -> None:
    """One transaction checks the shadow and acquires the task, so the order of two processes does not matter."""
    before = race.stored()
    with pytest.raises(UsageError, match=rf"a shadow of {race.task} is being (derived|filled)"):
        race.run(race.shadowed)
    assert race.stored() == before
    race.finish()


@pytest.mark.both_databases
def test_shadow_fences_a_run_that_may_apply_the_edit(race: Race) -> None:
    before, run = race.stored(), race.run(lambda: None)
    race.shadowed()
    ingest(race.world, 20, 30, day=2)
    with pytest.raises(FencedError, match="another flowctl runs"):
        run.step()
    assert race.stored() == before
    race.finish(30)


@pytest.mark.both_databases
def test_no_shadow_begins_of_an_edit_that_a_run_has_applied_meanwhile(race: Race) -> None:
    world, group, store = race.world, find_group(race.world.store, race.world.catalog), race.world.store
    chosen = new_shadows(store, world.catalog, is_held=False)
    epochs = store.task_capabilities.epochs(world.catalog.materializations)
    ingest(world, 20, 30, day=2)
    run = race.run(lambda: None)
    if group is None:  # the run had the task before the shadow was chosen
        epochs = store.task_capabilities.epochs(world.catalog.materializations)
    while run.step():
        pass
    with pytest.raises(FencedError, match=f"has applied an edit of '{race.task}'"):
        begin_shadow(store, group, is_held=False) if group else store.shadows.begin_bindings(chosen, epochs)
    assert (store.shadows.members(), store.shadows.bindings()) == ([], [])
    assert run.step() is False  # is not fenced
    assert run.tasks[race.task].error is None


@pytest.mark.both_databases
def test_run_with_a_dropped_shadow_acquires_no_task(race: Race) -> None:
    """The run would bring back the definition before the edit."""
    running, before = race.shadowed(), race.stored()
    with pytest.raises(UsageError, match=f"another process has ended the shadow of '{race.task}'"):
        race.run(race.drop, running)
    assert race.stored() == before
    race.finish()


def test_dropped_shadow_of_a_binding_is_not_continued(tmp_path: Path) -> None:
    with serving(SlowConnector()) as address:
        world = World(tmp_path / "data", catalog_at(tmp_path, address))
        with closing(world.store):
            ingest(world, 0, 20)
            run_tasks(world)
            raised = CATALOG.replace("source: shop/spending }", "source: shop/spending, backfill: 1 }")
            world.catalog = catalog_at(tmp_path, address, raised)
            begin_binding_shadows(world.store, world.catalog, is_held=True)
            shadows = world.store.shadows.bindings()
            drop_binding_shadows(world.store, world.catalog, shadows)
            with pytest.raises(UsageError, match="another process has ended the shadow of 'shop/view'"):
                world.store.shadows.begin_bindings(shadows)
            assert world.store.shadows.bindings() == []
