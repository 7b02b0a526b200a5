"""The swap of a run with shadows: when all members of a group are at one time, their shadows replace the members.

Once every shadow is near, the run chooses the time T, which is a boundary of the ticks of all members. No member goes
past T. When all members have reached T, one metadata transaction exchanges the documents and the progress. Bindings
that read the group start over in the same transaction: their connectors store the new rows beside the old rows, and
replace the old rows in one transaction of the endpoint.

A materialization with shadows of bindings swaps when its shadows have reached its live rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from math import lcm

from derive.engine.executor import InProcessExecutor
from derive.engine.reset import choose_resets
from derive.engine.run import Run
from derive.engine.scheduler import Scheduler
from derive.engine.shadow import Group, with_shadows
from derive.engine.task_reconciler import TaskReconciler, open_run
from derive.errors import CatalogError, UsageError
from derive.failpoint import reach
from derive.materialize.restarts import last_reset, read_refills, require_known_facts
from derive.protocol.specs import CatalogSpec, MaterializationSpec
from derive.storage.metadata.swap import BindingShadow, Shadow
from derive.storage.roles import Maintainable, Operable
from derive.time import BEGINNING

_NEAR = 5_000_000
"""Distance of a shadow to the live collections at which the time of the swap is chosen, microseconds."""

PATIENCE_SECONDS, PAUSE_SECONDS = 30.0, 0.02
"""Longest wait for members that do not advance, and shortest pause before another look, in seconds."""

_LOOK_SECONDS = 0.5
"""Shortest time between two looks at all cycles while the members meet, in seconds."""


def swap_group(store: Maintainable, group: Group, accepted: Collection[str] = ()) -> int | None:
    """Replace the live derivations of a group by their shadows; nothing may run them in this process meanwhile.

    Args:
        store: the data folder.
        group: the group.
        accepted: materializations whose bindings may start over although their connector cannot replace rows at once.

    Returns:
        The timestamp of the swap; None if the group is not ready, or if a materialization has started meanwhile.

    Raises:
        UsageError: a binding that reads the group cannot replace its rows at once, and is not accepted.
    """
    # A materialization that starts from here on, perhaps with its first binding of a member, has another epoch at the
    # commit, which then is refused: connectors, which are asked below, may take long.
    names = group.present.materializations
    epochs = {**dict.fromkeys(names, 0), **store.task_capabilities.epochs(names)}
    restarts = find_restarts(store, group.present, group.members)
    require_replaceable(store, group.present, restarts, accepted)
    ticks = {task.tick for task in group.present.tasks.values()}
    chosen = choose_resets(store, restarts, ticks, is_swap=True)
    reach("swap.committing")
    at = store.shadows.swap(group.definitions, restarts, epochs, chosen.restarts)
    reach("swap.committed")
    return at


def find_restarts(store: Maintainable, catalog: CatalogSpec, members: Collection[str]) -> dict[str, list[str]]:
    """Return the bindings that have read one of the members, as state keys by materialization."""
    restarts = {}
    for name in catalog.materializations:
        state = store.task(name)
        places = state.places if state else {}
        keys = sorted(key for key, place in places.items() if place.source in members)
        if keys:
            restarts[name] = keys
    return restarts


def require_replaceable(
    store: Maintainable, catalog: CatalogSpec, restarts: Mapping[str, Collection[str]], accepted: Collection[str]
) -> None:
    """Raise an error if a binding that starts over cannot replace its rows at once.

    Raises:
        UsageError: a binding cannot replace its rows at once, and its materialization is not accepted.
        FlowError: a connector does not answer.
    """
    for name, keys in restarts.items():
        if name in accepted:
            continue
        reason = _obstacle(store, catalog.materializations[name], keys)
        if reason is not None:
            raise UsageError(
                f"the derivations cannot be replaced at one time, because '{name}' {reason}",
                position=catalog.materializations[name].position,
                hint=f"to swap nevertheless, add --accept {name}; or drop the shadow: flowctl shadow drop",
            )


def _obstacle(store: Maintainable, spec: MaterializationSpec, keys: Collection[str]) -> str | None:
    """Return the reason why bindings of a materialization cannot replace their rows at once; None if they can."""
    from derive.engine.stored_bindings import StoredParts, stored_fields  # imports gRPC
    from derive.materialize.preparation import prepare
    from derive.materialize.worker import connectors

    state = store.task(spec.name)
    prints = state.fingerprints if state else {}
    deltas = [key for key in keys if key in prints and StoredParts.from_text(prints[key]).is_delta]
    if deltas:
        return f"would send all delta updates of {', '.join(deltas)} again"
    connector = connectors().connect(spec.endpoint)
    if not connector.schemas().refills:
        return f"cannot replace the rows of {', '.join(keys)} at once: rows of keys that are gone would stay"
    try:
        prepare(spec, connector, stored_fields(prints), last_reset(store, spec.name))
    except CatalogError as error:
        return f"would stop, and keep the rows of the former version: {error.issues[0].message}"
    return None


@contextmanager
def held_cycles(run: Run, scheduler: Scheduler | None) -> Iterator[bool]:
    """Keep all cycles from starting transactions while the block runs; yield whether no transaction is running.

    Args:
        run: the run.
        scheduler: runs the cycles on threads; None if no thread runs them.
    """
    if scheduler is None:
        yield True
        return
    busy = scheduler.hold(run.cycles)
    try:
        yield not busy
    finally:
        scheduler.adopt()


class Swapping:
    """Brings a run with shadows to the swap.

    Args:
        store: the data folder.
        run: the run.
        reconciler: applies the catalog after the swap.
        group: the group.
        accepted: materializations whose bindings may start over although their connector cannot replace rows at once.

    Attributes:
        at: timestamp at which the members meet; None while the shadows are not near.
        is_met: whether all members are at this timestamp, and the swap waits for a person.
        swapped: timestamp of the swap; None before it.
        error: the error that ended the attempts to swap; None if missing.
    """

    def __init__(
        self, store: Operable, run: Run, reconciler: TaskReconciler, group: Group, accepted: Collection[str] = ()
    ) -> None:
        self._store, self._run, self._reconciler, self._group = store, run, reconciler, group
        self._accepted = accepted
        self.at: int | None = None
        self.is_met = self._is_applied = False
        self._looked_at = 0.0
        self.swapped: int | None = None
        self.error: UsageError | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the swap is done, or another process has dropped the shadow."""
        return self.swapped is not None or not self._store.shadows.members()

    def advance(self, scheduler: Scheduler | None = None, *, is_last: bool = False) -> bool:
        """Do the next step of the swap, if it is possible now.

        Args:
            scheduler: runs the cycles on threads; None if no thread runs them.
            is_last: whether the run ends soon, so that the members meet although the swap waits for a person.

        Returns:
            True if the members are meeting, so that the next step will soon be possible.

        Raises:
            FencedError: another run has fenced this run.
        """
        if self.swapped is not None:
            return self._apply_alone(scheduler)
        shadows = self._store.shadows.members()
        if self.error is not None or not shadows or self._is_disturbed(shadows):
            self._meet(None, shadows)
            return False
        is_held = any(shadow.is_held for shadow in shadows)
        if self.at is None or self.at < self._last(shadows):  # a transaction that began earlier may go past the time
            self._meet(None if is_held and not is_last else self._choose(shadows, is_last=is_last), shadows)
            if self.at is None:
                return False
        meeting = self._store.shadows.meeting()
        if meeting is None or meeting.behind:
            self._look(scheduler)
            return True
        self.is_met = is_held
        if is_held:
            if not is_last:
                self._meet(None, shadows)
            return False
        with held_cycles(self._run, scheduler) as is_idle:
            if is_idle:
                self._swap(shadows)
        return not is_idle

    def finish(self, scheduler: Scheduler, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Bring the members of a group without waiting documents to one time, and swap.

        Return whether the swap is done.

        The swap is not done if a shadow fails, if it waits for a person, or if nothing moves for half a minute.
        """
        moved_at = time.monotonic()
        while self.advance(scheduler, is_last=True):
            if scheduler.step():
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > PATIENCE_SECONDS:
                break
            else:
                pause = ((self.at or BEGINNING) - self._store.timeline.present()) / 1e6
                sleep(min(max(pause, PAUSE_SECONDS), 1.0))
        return self.swapped is not None

    def _is_disturbed(self, shadows: Collection[Shadow]) -> bool:
        """Return whether a shadow has failed, or a live member has an error that a retry may resolve."""
        errors = {name: task.error for name, task in self._run.tasks.items() if task.error}
        return any(shadow.name in errors or (shadow.task in errors and errors[shadow.task].heals) for shadow in shadows)

    def _look(self, scheduler: Scheduler | None) -> None:
        """Let all cycles advance to the time of the swap, once this time has passed.

        Idle cycles would wait for documents.
        """
        is_past = self.at is not None and self._store.timeline.present() >= self.at
        if scheduler is not None and is_past and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            scheduler.look()

    def _last(self, shadows: Collection[Shadow]) -> int:
        """Return the greatest `upper` of all members and their shadows."""
        return max(self._store.upper(name) for shadow in shadows for name in (shadow.task, shadow.name))

    def _choose(self, shadows: Collection[Shadow], *, is_last: bool) -> int | None:
        """Return the time at which the members meet; None while a shadow is not near.

        Members without a live collection have no time of their own. If the run ends soon, no shadow has documents to
        process, so a distant shadow is only the result of a long transaction.
        """
        live = max(self._store.upper(shadow.task) for shadow in shadows)
        others = [self._store.upper(shadow.name) for shadow in shadows]
        if (min(others) < live - _NEAR and not is_last) or min(others) <= BEGINNING:
            return None
        names = {name for shadow in shadows for name in (shadow.task, shadow.name)}
        tick = lcm(*(spec.tick for name, spec in self._run.task_graph.catalog.derivations.items() if name in names))
        return -(-self._last(shadows) // tick) * tick

    def _meet(self, at: int | None, shadows: Collection[Shadow]) -> None:
        if at is None and self.at is None:
            return
        self.at = at
        names = [name for shadow in shadows for name in (shadow.task, shadow.name)]
        self._run.bounds = {} if at is None else dict.fromkeys(names, at)
        if at is None:
            self._run.wake()

    def _swap(self, shadows: Collection[Shadow]) -> None:
        try:
            self.swapped = swap_group(self._store, self._group, self._accepted)
        except UsageError as error:
            self.error = error
        finally:
            self._meet(None, shadows)
        if self.swapped is not None:
            self._apply()

    def _apply_alone(self, scheduler: Scheduler | None) -> bool:
        """Apply the catalog after the swap, unless it is applied; return whether a later attempt is needed."""
        if not self._is_applied:
            with held_cycles(self._run, scheduler) as is_idle:
                if is_idle:
                    self._apply()
        return not self._is_applied

    def _apply(self) -> None:
        """Continue with the catalog: without the shadows, whose tasks are fenced."""
        self._reconciler.find_superseded(self._run)
        self._reconciler.apply(self._run, self._group.present)
        self._is_applied = True
        reach("swap.applied")


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
        return task is not None and task.error is None and bool(read_refills(self._store, name))

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
        del self.left[name]
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
    require_known_facts(store, name)
    store.adopt_materialization(name)  # an earlier release may have filled the shadows
    reach("swap.committing")
    if not store.shadows.swap_bindings(name):
        return False
    reach("swap.committed")
    with closing(open_run(catalog, store, InProcessExecutor(), tasks=[name])) as run:
        is_moving = True
        while is_moving and read_refills(store, name):
            is_moving = run.step()
            if error := run.tasks[name].error:
                raise error
    return True
