"""Reconciliation of a run's tasks with their desired state: at its start, and after edits.

An edit is applied in stages. These tasks stay unchanged until the transaction of a changed task has ended:

- the changed task;
- the tasks on a cycle with the changed task, in the present or the edited catalog;
- the readers of a collection that the edit redefines;
- the materializations into the same endpoint.

All other tasks are redefined at once.

The desired state is the catalog, and the epoch of each task in the data folder. A start, reset or split of a task
raises its epoch, and a run with an older epoch opens the task again. A new run replaces other runs: an older run does
not open a task again that a newer run has fenced. An edit starts no run: if an edit adds a task to a run, and another
process runs the task already, the task stays with that process.

A task with the same definition continues. A changed task is released and opened again, as by a restart. A removed task
is released together with its capability. A failed task is opened again after every edit, because the edit may correct
the error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from derive.catalog.graph import cycles
from derive.engine.cycle_transaction import CycleTransaction
from derive.engine.derivation import Derivation, default_shards, has_feedback
from derive.engine.executor import Executor
from derive.engine.reset import SPLIT
from derive.engine.run import Observer, Run, TaskGraph
from derive.engine.task import Task
from derive.engine.task_opening import open_task
from derive.engine.wakeups import Cycle
from derive.errors import BusyError, DiskFullError, FencedError, StorageError
from derive.position import Position, Script
from derive.protocol.collection import owner_of_version
from derive.protocol.materialization import MaterializationSpec
from derive.protocol.specs import CatalogSpec, CollectionSpec, DerivationSpec
from derive.reconcile import Reconciliation
from derive.storage.metadata.process import show_process
from derive.storage.roles import Operable
from derive.storage.task_log import TaskLog
from derive.time.extent import Limits

if TYPE_CHECKING:
    from derive.engine.materialization import Materialization


def is_same_definition(one: object, other: object) -> bool:
    """Return true if two specs, or parts of them, differ in positions only.

    Two maps with different orders of entries differ, because the order of properties can be the order of columns.
    """
    if one is other:  # an edit leaves most parts of a catalog the same
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Position):
        return True
    if isinstance(one, Script) and isinstance(other, Script):
        return one.text == other.text
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return one == other
    return list(parts) == list(others) and all(is_same_definition(parts[name], others[name]) for name in parts)


def _parts(value: object) -> Mapping[Any, object] | None:
    """Return the parts of a value by name or index; None for a value without parts."""
    if is_dataclass(value):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else None


Spec = TypeVar("Spec")


def find_waiting(present: CatalogSpec, edited: CatalogSpec, busy: Collection[str]) -> frozenset[str]:
    """Return the names of tasks that stay unchanged until busy tasks have ended their transactions.

    Args:
        present: the present catalog of the run.
        edited: the edited catalog.
        busy: names of changed tasks that are in transactions.
    """
    waiting = frozenset(busy)
    while True:
        mixed = stage(present, edited, waiting)
        grown = {
            name
            for group in (*present.cycles, *edited.cycles, *mixed.cycles)
            if not waiting.isdisjoint(group)
            for name in group
        }
        grown |= _readers(present, edited, waiting) | _sharing(present, edited, waiting)
        if waiting.issuperset(grown):
            return waiting
        waiting |= grown


def stage(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> CatalogSpec:
    """Return the edited catalog with the present definitions of waiting tasks and their collections.

    New waiting tasks are left out.
    """
    if not waiting:
        return edited
    derivations = _mixed(present.derivations, edited.derivations, waiting)
    groups = cycles({name: [read.source for read in spec.inputs] for name, spec in derivations.items()})
    ordered = {name: derivations[name] for group in groups for name in group}
    return replace(
        edited,
        collections=_mixed(present.collections, edited.collections, waiting),
        derivations=ordered,
        cycles=groups,
        materializations=_mixed(present.materializations, edited.materializations, waiting),
    )


def _mixed(present: Mapping[str, Spec], edited: Mapping[str, Spec], waiting: Collection[str]) -> dict[str, Spec]:
    """Return the edited entries, with the present entries of waiting tasks in place of the edited entries."""
    others = {name: spec for name, spec in edited.items() if name not in waiting}
    return others | {name: spec for name, spec in present.items() if name in waiting}


def _readers(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Return tasks that read a collection which a waiting task still writes, and which the edit redefines."""
    changed = {
        name
        for name in waiting
        if name in present.derivations
        and name in edited.collections
        and not is_same_definition(present.derivations[name].collection, edited.collections[name])
    }
    return {name for name, spec in edited.tasks.items() if not changed.isdisjoint(spec.sources)}


def _sharing(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Return materializations into an endpoint into which a waiting materialization still stores."""
    endpoints = [spec.endpoint for name, spec in present.materializations.items() if name in waiting]
    return {
        name
        for name, spec in edited.materializations.items()
        if any(is_same_definition(spec.endpoint, endpoint) for endpoint in endpoints)
    }


@dataclass(frozen=True, slots=True)
class Change:
    """Names of tasks by their change.

    Attributes:
        kept: tasks that continue.
        restarted: tasks that were redefined, or had failed.
        started: new tasks.
        stopped: removed tasks.
    """

    kept: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


class TaskReconciler:
    """Reconciles the tasks of a run with their desired state.

    Args:
        store: the data folder.
        executor: executes transactions.
        tasks: names of tasks that may run; None for all.
        shards: number of shards of tasks that have never run; None for the default.
        cores: default number of shards; materializations have one.
        limits: limits for cutting the work.
    """

    def __init__(
        self,
        store: Operable,
        executor: Executor,
        *,
        tasks: Sequence[str] | None,
        shards: int | None,
        cores: int,
        limits: Limits,
    ) -> None:
        self._store, self._executor, self._names = store, executor, tasks
        self._shards, self._cores, self._limits = shards, cores, limits
        self._tasks: dict[str, Task] = {}
        self._superseded: frozenset[str] = frozenset()
        self._accepted: frozenset[str] = frozenset()
        self._left: Mapping[str, str] = {}
        self._has_begun = False
        self._waiting: Collection[str] = ()
        self._shadows: Mapping[str, str] = {}
        self._reconciliation: Reconciliation[str, DerivationSpec | MaterializationSpec] = Reconciliation(
            self._difference, self._open, self._release
        )

    @property
    def root(self) -> Path:
        """Return the data folder."""
        return self._store.root

    def accept(self, names: Collection[str]) -> None:
        """Accept the pending edits of these tasks, once, when they are opened, and replace earlier acceptances."""
        self._accepted = frozenset(names)

    def find_superseded(self, run: Run) -> Mapping[str, str] | None:
        """Return tasks that other processes have fenced, each with the reason; `apply` opens them again.

        Returns:
            None while a process still resets or splits a task of the run.

        Raises:
            FencedError: another run has fenced a task of the run.
        """
        fenced = [task.error for task in run.tasks.values() if isinstance(task.error, FencedError)]
        tasks = {**run.tasks, **self._tasks}  # tasks that only `self._tasks` has remain from an incomplete `apply`
        names = self._store.task_capabilities.superseded(task.capability for task in tasks.values())
        if fenced and not names:
            raise fenced[0]  # fenced outside of this data folder, for example by an endpoint
        done: dict[str, str] = {}
        for name in names:
            other = self._store.task_capabilities.runs([name]).get(name)
            if other is not None and other.purpose != SPLIT:
                raise FencedError(
                    f"another flowctl run ({show_process(other.process)}) runs '{name}' now, so this run ends",
                    hint="that run continues the work; one run at a time suffices for a data folder",
                )
            state = self._store.task(name)
            if other is not None:
                return None
            is_split = state is not None and state.shards != tasks[name].shards
            done[name] = "was reset" if state is None else "was split" if is_split else "had lost its capability"
        self._superseded = frozenset(done)
        return done

    def reopen(self, run: Run) -> bool:
        """Open the superseded tasks of a run again, with the present catalog; no thread runs their cycles.

        Returns:
            False while another process still resets or splits a task of the run; nothing was done.

        Raises:
            FencedError: another run has fenced a task of the run.
        """
        done = self.find_superseded(run)
        if done:
            self.apply(run, run.task_graph.catalog)
        return done is not None

    def leave(self, run: Run, catalog: CatalogSpec) -> Mapping[str, str]:
        """Return the new tasks of a catalog that another process runs, each with this process; the tasks stay there."""
        self._left = {}
        new = [name for name in self._desired(catalog) if name not in run.tasks]
        others = self._store.task_capabilities.runs(new)
        self._left = {name: show_process(other.process) for name, other in others.items()}
        return self._left

    def affected(self, run: Run, catalog: CatalogSpec) -> list[Cycle]:
        """Return the cycles of a run that change with another catalog."""
        self._waiting = ()
        desired, present = self._desired(catalog), self._reconciliation.present
        same = {
            name for name in present if name in desired and not self._difference(name, present[name], desired[name])
        }
        others = [(name,) for name in catalog.materializations]
        groups = {tuple(name for name in members if name in desired) for members in (*catalog.cycles, *others)}
        return [cycle for cycle in run.cycles if cycle not in groups or not same.issuperset(cycle)]

    def waiting(self, run: Run, catalog: CatalogSpec, busy: Sequence[Cycle]) -> frozenset[str]:
        """Return the tasks that stay unchanged while some of the affected cycles are in transactions."""
        return find_waiting(run.task_graph.catalog, catalog, {name for cycle in busy for name in cycle})

    def apply(self, run: Run, catalog: CatalogSpec, waiting: Collection[str] = ()) -> Change:
        """Reconcile the tasks of a run with a catalog.

        After an error, the next call does the remaining work. If the data folder refuses a collection, its task is
        opened and stops with this error.

        Args:
            run: the run.
            catalog: the desired catalog.
            waiting: names of tasks that stay unchanged, from `waiting`; no thread runs any other affected cycle.

        Raises:
            FencedError: another run has fenced a task meanwhile.
            UsageError: another process has begun or ended a shadow of a task meanwhile.
            FlowError: the data folder cannot be changed now.
        """
        self._waiting, self._shadows = waiting, catalog.shadows
        catalog = stage(run.task_graph.catalog, catalog, waiting)
        desired = self._desired(catalog)
        before = run.tasks
        self._reconciliation.begin()
        for name, spec in desired.items():
            if not self._reconciliation.name(name, spec):
                self._move(spec)
        self._reconciliation.complete()
        read = {source for spec in desired.values() for source in (spec.name, *spec.sources)}
        for name, collection in catalog.collections.items():
            if name not in read:
                self._create([collection])
        self._has_begun = True
        run.change(TaskGraph(catalog, {name: self._tasks[name] for name in desired}, self._cycle_transactions(catalog)))
        kept = [name for name in desired if before.get(name) is self._tasks[name]]
        return Change(
            kept=tuple(kept),
            restarted=tuple(name for name in desired if name in before and name not in kept),
            started=tuple(name for name in desired if name not in before),
            stopped=tuple(name for name in before if name not in desired),
        )

    def _desired(self, catalog: CatalogSpec) -> Mapping[str, DerivationSpec | MaterializationSpec]:
        return {name: spec for name, spec in catalog.tasks.items() if self._is_desired(name, spec)}

    def _is_desired(self, name: str, spec: DerivationSpec | MaterializationSpec) -> bool:
        return (self._names is None or name in self._names) and not spec.disabled and name not in self._left

    def _difference(
        self, name: str, present: DerivationSpec | MaterializationSpec, desired: DerivationSpec | MaterializationSpec
    ) -> str | None:
        if name in self._waiting:
            return None
        if name in self._superseded:
            return "was superseded"
        if self._tasks[name].error is not None:
            return "had failed"
        return None if is_same_definition(present, desired) else "has another definition"

    def _transactor(self, spec: DerivationSpec | MaterializationSpec) -> Derivation | Materialization:
        if isinstance(spec, DerivationSpec):
            shards = self._shards or self._default_shards(spec)
            return Derivation(self._store, self._executor, spec, shards, self._shadows.get(spec.name, ""))
        from derive.engine.materialization import Materialization  # imports gRPC

        shadow = self._shadows.get(spec.name, "")
        return Materialization(self._store, self._executor, spec, self._shards or 1, shadow)

    def _default_shards(self, spec: DerivationSpec) -> int:
        """Return the number of shards of a derivation that has never run; a shadow has those of the live derivation."""
        owner = owner_of_version(spec.name)
        live = None if owner is None or has_feedback(spec) else self._store.task(owner)
        return (live.shards if live else 0) or default_shards(spec, self._cores)

    def _open(self, name: str, spec: DerivationSpec | MaterializationSpec) -> None:
        own = [spec.collection] if isinstance(spec, DerivationSpec) else []
        refused = self._create([*spec.sources.values(), *own])
        self._tasks[name] = open_task(
            self._store,
            self._transactor(spec),
            self._limits,
            refused,
            if_free=self._has_begun,
            is_accepted=name in self._accepted,
        )
        self._superseded -= {name}
        self._accepted -= {name}

    def _create(self, collections: Sequence[CollectionSpec]) -> StorageError | None:
        """Bind the names of collections; return the error if the data folder refuses them."""
        try:
            self._store.create(*collections)
        except (BusyError, DiskFullError):
            raise
        except StorageError as error:
            return error
        return None

    def _release(self, name: str, _: DerivationSpec | MaterializationSpec) -> None:
        self._tasks.pop(name).release()
        if name not in self._superseded:
            TaskLog(self._store.root, name).write("info", "stopped, because the catalog was edited")

    def _move(self, spec: DerivationSpec | MaterializationSpec) -> None:
        if spec != self._reconciliation.present[spec.name]:
            self._reconciliation.present[spec.name] = spec
            self._tasks[spec.name].move(self._transactor(spec))

    def _cycle_transactions(self, catalog: CatalogSpec) -> dict[Cycle, CycleTransaction]:
        derivations: dict[str, Derivation] = {}
        for name, spec in self._desired(catalog).items():
            transactor = self._transactor(spec)
            if isinstance(transactor, Derivation):
                derivations[name] = transactor
        return {
            cycle: CycleTransaction(self._store, self._executor, [derivations[name] for name in cycle], self._limits)
            for cycle in catalog.cycles
            if all(name in derivations for name in cycle) and has_feedback(catalog.derivations[cycle[0]])
        }


def open_run(
    catalog: CatalogSpec,
    store: Operable,
    executor: Executor,
    *,
    tasks: Sequence[str] | None = None,
    shards: int | None = None,
    cores: int = 1,
    limits: Limits | None = None,
    observer: Observer | None = None,
) -> Run:
    """Open the tasks of a catalog; see `open_changing_run`."""
    run, _ = open_changing_run(
        catalog, store, executor, tasks=tasks, shards=shards, cores=cores, limits=limits, observer=observer
    )
    return run


def open_changing_run(  # noqa: PLR0913 (what a command line may say)
    catalog: CatalogSpec,
    store: Operable,
    executor: Executor,
    *,
    tasks: Sequence[str] | None = None,
    shards: int | None = None,
    cores: int = 1,
    limits: Limits | None = None,
    observer: Observer | None = None,
    accepted: Sequence[str] = (),
) -> tuple[Run, TaskReconciler]:
    """Open the tasks of a catalog, and return the run with the reconciler that applies later catalogs.

    Args:
        catalog: the catalog.
        store: the data folder.
        executor: executes transactions.
        tasks: names of the tasks to run; None for all.
        shards: number of shards of tasks that have never run; None for the default.
        cores: default number of shards; materializations have one.
        limits: limits for cutting the work.
        observer: receives the run's events.
        accepted: names of tasks whose edits are accepted.

    Raises:
        UsageError: the catalog has no task with such a name.
    """
    for name in (*(tasks or ()), *accepted):
        catalog.find_task(name)
    store.create(*catalog.collections.values())
    reconciler = TaskReconciler(store, executor, tasks=tasks, shards=shards, cores=cores, limits=limits or Limits())
    reconciler.accept(accepted)
    run = Run(catalog, store, {}, observer)
    reconciler.apply(run, catalog)
    reconciler.accept(())  # later edits are not accepted
    return run, reconciler
