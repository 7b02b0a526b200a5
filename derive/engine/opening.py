"""Opening: a run takes its tasks over from whoever ran them before."""

from __future__ import annotations

from collections.abc import Sequence

from derive.engine.executor import Executor
from derive.engine.observer import Observer
from derive.engine.run import Run
from derive.engine.task_reconciler import TaskReconciler
from derive.protocol.specs import CatalogSpec
from derive.storage.roles import Operable
from derive.time.limits import Limits


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
    """Take over the tasks of a catalog; see `open_changing_run`."""
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
    """Take over the tasks of a catalog, and have what brings them in line with later ones.

    Args:
        catalog: what is defined.
        store: where it lives.
        executor: carries out transactions.
        tasks: names to run; None for all.
        shards: for tasks that have never run; None for the default.
        cores: default number of shards; materializations have one.
        limits: how work is cut.
        observer: is told what happens.
        accepted: names of those whose edits are accepted that wait for that.

    Raises:
        UsageError: the catalog has no task of such a name.
    """
    for name in (*(tasks or ()), *accepted):
        catalog.find_task(name)
    store.create(*catalog.collections.values())
    reconciler = TaskReconciler(store, executor, tasks=tasks, shards=shards, cores=cores, limits=limits or Limits())
    reconciler.accept(accepted)
    run = Run(catalog, store, {}, observer)
    reconciler.apply(run, catalog)
    reconciler.accept(())  # edits that nobody has seen yet
    return run, reconciler
