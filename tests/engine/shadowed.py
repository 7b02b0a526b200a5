"""Runs with shadows, over folders in which a chain of derivations was edited."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from conftest import World
from edited_catalogs import BASE, SECOND, catalog_of
from stateful_catalogs import Derived, text_of

from derive.engine.executor import Executor, InProcessExecutor
from derive.engine.shadow import begin_shadow, find_group
from derive.engine.swapping import Swapping
from derive.engine.task_reconciler import open_changing_run
from derive.protocol.specs import CatalogSpec
from derive.storage.store import Store

CHAIN = {"copies": Derived("numbers", 0), "again": Derived("copies", 0)}
EDITED = {"copies": Derived("numbers", 1), "again": Derived("copies", 0)}


class Scene:
    """A folder in which a catalog has derived two batches of documents."""

    def __init__(self, folder: Path, catalog: CatalogSpec | None = None, shards: int = 1) -> None:
        self.folder, self.shards, self.batches = folder, shards, 0
        self.world = World(folder / "data", catalog or catalog_of(folder, text_of(CHAIN)), wall=BASE)
        for _ in range(2):
            self.go_on()

    def ingest(self) -> None:
        first = 3 * self.batches
        self.batches += 1
        self.world.ingest("a/numbers", [{"id": first + n, "n": n % 2} for n in range(3)], clock=None)
        self.world.wall += 5 * SECOND

    def shadow(self, defined: Mapping[str, Derived] = EDITED, *, is_held: bool = False) -> Shadowed:
        """A run of an edited catalog with shadows."""
        return Shadowed(self.world, catalog_of(self.folder, text_of(defined)), self.shards, is_held=is_held)

    def fresh(self, catalog: CatalogSpec) -> World:
        """A folder in which only this catalog has run over the same documents."""
        world = World(self.folder / f"fresh-{self.batches}", catalog, wall=BASE)
        for batch in range(self.batches):
            world.ingest("a/numbers", [{"id": 3 * batch + n, "n": n % 2} for n in range(3)], clock=None)
            world.wall += 5 * SECOND
        world.step(shards=1)
        return world

    def go_on(self) -> None:
        """Derive another batch with the present catalog, in another run."""
        self.ingest()
        self.world.step(shards=self.shards)

    def check(self) -> None:
        """Derive another batch, and require the documents of a folder in which only the present catalog has run."""
        self.go_on()
        assert self.world.digest() == self.fresh(self.world.catalog).digest()


class Shadowed:
    """A run with shadows."""

    def __init__(
        self, world: World, edited: CatalogSpec, shards: int | None, *, is_held: bool, executor: Executor | None = None
    ) -> None:
        group = find_group(world.store, edited)
        assert group is not None
        self.world, self.edited, self.group = world, edited, group
        world.catalog = begin_shadow(world.store, group, is_held=is_held)
        self.run, self.reconciler = open_changing_run(
            world.catalog, world.store, executor or InProcessExecutor(), shards=shards
        )
        self.swapping = Swapping(world.store, self.run, self.reconciler, group)

    def meet(self) -> bool:
        """Step until the swap is done or waits; return whether it is done."""
        self.run.step()
        while self.swapping.advance(is_last=True):
            assert self.run.step(), "nothing moves"
        return self.swapping.swapped is not None

    def swap(self) -> int:
        assert self.meet()
        at = self.swapping.swapped
        assert at is not None
        self.world.catalog = self.edited
        self.run.step()
        self.run.close()
        return at

    def errors(self) -> dict[str, str]:
        return {name: task.error.message for name, task in self.run.tasks.items() if task.error}


def swap_to(store: Store, edited: CatalogSpec) -> int:
    """Replace what was edited by its shadows in a folder whose clock is real; return the time."""
    group = find_group(store, edited)
    assert group is not None
    catalog = begin_shadow(store, group, is_held=False)
    run, reconciler = open_changing_run(catalog, store, InProcessExecutor(), shards=1)
    swapping = Swapping(store, run, reconciler, group)
    while swapping.swapped is None:
        run.step()
        swapping.advance(is_last=True)
        time.sleep(0.02)  # the time of the swap is the end of a tick
    run.step()
    run.close()
    return swapping.swapped
