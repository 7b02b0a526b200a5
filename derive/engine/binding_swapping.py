"""Swaps of a run with shadows of bindings: a materialization swaps when its shadows have reached its live rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from derive.engine.binding_shadow import with_shadows
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.scheduler import Scheduler
from derive.engine.swapping import PATIENCE_SECONDS, PAUSE_SECONDS, held_cycles
from derive.engine.task_reconciler import TaskReconciler, open_run
from derive.failpoint import reach
from derive.materialize.restarts import note_refills, read_refills
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.swap import BindingShadow
from derive.storage.roles import Operable


class BindingSwapping:
    """Brings a run with shadows of bindings to their swaps.

    Args:
        store: the data folder.
        run: the run, of a catalog of `with_shadows`.
        reconciler: applies the catalog after a swap.
        catalog: the catalog without shadows.

    Attributes:
        left: shadows that are not swapped, by materialization; a shadow that another process has ended stays here.
        swapped: names of the materializations whose shadows were swapped.
    """

    def __init__(self, store: Operable, run: Run, reconciler: TaskReconciler, catalog: CatalogSpec) -> None:
        self._store, self._run, self._reconciler, self._catalog = store, run, reconciler, catalog
        self.left = {shadow.task: shadow for shadow in store.shadows.bindings()}
        self.swapped: list[str] = []

    def present(self) -> dict[str, BindingShadow]:
        """Return the shadows that this run still fills, as they are recorded now."""
        return {shadow.task: shadow for shadow in self._store.shadows.bindings() if shadow.task in self.left}

    def advance(self, scheduler: Scheduler | None = None) -> bool:
        """Swap the shadows that are ready; return whether a shadow is ready, but a transaction is running.

        Args:
            scheduler: runs the cycles on threads; None if no thread runs them.

        Raises:
            FencedError: another run has fenced this run.
        """
        ready = [name for name, shadow in self.present().items() if self._is_ready(shadow)]
        if not ready:
            return False
        with held_cycles(self._run, scheduler) as is_idle:
            if is_idle:
                for name in ready:
                    self._swap(name)
        return not is_idle

    def finish(self, scheduler: Scheduler, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Swap the shadows of an idle run, and let them replace the rows; return whether all shadows are swapped.

        A shadow is not swapped if it or its materialization has failed, if it waits for a person, or if nothing moves
        for half a minute.
        """
        moved_at = time.monotonic()
        while self.advance(scheduler) or self._waits():
            if scheduler.step():
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > PATIENCE_SECONDS:
                break
            else:
                sleep(PAUSE_SECONDS)
        return not self.left

    def _waits(self) -> bool:
        """Return whether the run itself will bring a shadow to its swap, or a swapped shadow to its rows."""
        shadows = self.present().values()
        is_filled = any(not (one.is_held or one.error or self._has_stopped(one.task)) for one in shadows)
        return is_filled or any(map(self._is_replacing, self.swapped))

    def _has_stopped(self, name: str) -> bool:
        """Return whether a permanent error has stopped a materialization with its live bindings."""
        task = self._run.tasks.get(name)
        return task is None or (task.error is not None and not task.error.heals)

    def _is_replacing(self, name: str) -> bool:
        """Return whether the rows of a swapped shadow have yet to replace the former rows."""
        task = self._run.tasks.get(name)
        return task is not None and task.error is None and bool(read_refills(self._store.root, name))

    def _is_ready(self, shadow: BindingShadow) -> bool:
        task = self._run.tasks.get(shadow.task)
        if shadow.is_held or shadow.error or task is None or task.error:
            return False
        return not self._store.shadows.behind(shadow)

    def _swap(self, name: str) -> None:
        reach("swap.committing")
        if not self._store.shadows.swap_bindings(name):
            return
        reach("swap.committed")
        note_swap(self._store, self.left.pop(name))
        self.swapped.append(name)
        self._reconciler.apply(self._run, with_shadows(self._catalog, self.present().values()))
        reach("swap.applied")


def swap_alone(store: Operable, catalog: CatalogSpec, shadow: BindingShadow) -> bool:
    """Swap the shadows of a materialization that no process runs, and let them replace the rows.

    Args:
        store: the data folder.
        catalog: the catalog, without shadows.
        shadow: the shadows.

    Returns:
        Whether the shadows were ready.

    Raises:
        FlowError: the rows could not be replaced; the next run of the materialization tries again.
    """
    name = shadow.task
    reach("swap.committing")
    if not store.shadows.swap_bindings(name):
        return False
    reach("swap.committed")
    note_swap(store, shadow)
    with closing(open_run(catalog, store, InProcessExecutor(), tasks=[name])) as run:
        is_moving = True
        while is_moving and read_refills(store.root, name):
            is_moving = run.step()
            if error := run.tasks[name].error:
                raise error
    return True


def note_swap(store: Operable, shadow: BindingShadow) -> None:
    """Record for other processes that the rows of swapped shadows have yet to replace the former rows."""
    state = store.task(shadow.task)
    positions = state.positions if state else {}
    limits = {key: positions[live] for key, live in shadow.keys.items() if live in positions}
    note_refills(store.root, shadow.task, {**read_refills(store.root, shadow.task), **limits})
