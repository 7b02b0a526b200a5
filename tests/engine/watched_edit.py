"""An edit of a catalog under a run that is in the middle of a transaction, as `flowctl run --watch` applies it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive import failpoint
from derive.cli.applying import AcceptanceQuestions, Applying, CatalogWatch, Edit
from derive.engine.executor import InProcessExecutor
from derive.engine.scheduler import Scheduler
from derive.engine.task_reconciler import open_changing_run
from derive.materialize.stages import AnyPlan
from derive.protocol.specs import CatalogSpec
from derive.shard.progress import Message, Progress
from derive.storage.store import Store


class Edits(CatalogWatch):
    """Edits that a test makes up."""

    def __init__(self) -> None:
        self.next: CatalogSpec | None = None

    def take(self) -> Edit | None:
        catalog, self.next = self.next, None
        return None if catalog is None else Edit(("flow.yaml",), catalog)


class Holds(InProcessExecutor):
    """Carries out the transactions of one task, and keeps them from being committed until it is let go on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.done, self.go_on = threading.Event(), threading.Event()

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        messages = super().execute(plan, progress)
        if plan.spec.name == self._name:
            self.done.set()
            assert self.go_on.wait(PATIENCE_SECONDS)
        return messages


def apply_edit(
    catalog: CatalogSpec, edited: CatalogSpec, store: Store, held: str, command: Callable[[], None], armed: str
) -> None:
    """Run a catalog, and edit it while all but one task, and what reads that one, are at rest.

    Args:
        catalog: what the run begins with.
        edited: what it is brought in line with.
        store: the data folder.
        held: a task whose transaction is carried out, and is committed once the rest of the edit was applied.
        command: what somebody else does as the catalog is edited.
        armed: a failpoint, from then on and until the edit is applied.
    """
    executor, edits = Holds(held), Edits()
    run, reconciler = open_changing_run(catalog, store, executor, shards=2)
    applying = Applying(run, reconciler, edits, AcceptanceQuestions(run.tasks, wake=lambda: None))
    now = run.seal()
    for cycle in run.cycles:
        while held not in cycle and run.advance(cycle, now):
            pass
    with Scheduler(run, threads=4) as scheduler:
        scheduler.look()
        assert executor.done.wait(PATIENCE_SECONDS)
        command()
        reconciler.accept(list(edited.tasks))
        edits.next = edited
        failpoint.arm(armed)
        try:
            while applying.advance(scheduler):
                executor.go_on.set()
                scheduler.watch()
                run.wait(0.01)
        finally:
            executor.go_on.set()
        failpoint.arm("")
        scheduler.step()
    errors = [task.error for task in run.tasks.values() if task.error]
    if errors:  # a run that was superseded may find its files collected first
        reconciler.find_superseded(run)
    run.close()
    if errors:
        raise errors[0]
