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

from connectors.kit.requests import ValidatedBinding, Validation
from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.shadow import begin_binding_shadows, begin_shadow, drop_binding_shadows, find_group
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
