"""Opening: a run fences earlier runs of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from derive.engine.executor import Executor
from derive.engine.run import Observer, Run
from derive.engine.task_reconciler import TaskReconciler
from derive.protocol.specs import CatalogSpec
from derive.storage.roles import Operable
from derive.time.extent import Limits


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
