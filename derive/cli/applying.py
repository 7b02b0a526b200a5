"""Applying edits: a run that goes on is brought in line with its catalog, and says what becomes of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derive.catalog.loading.resources import Resources
    from derive.cli.watching import CatalogWatch, Edit
    from derive.engine.run import Run
    from derive.engine.scheduler import Scheduler
    from derive.engine.task import Task
    from derive.engine.task_reconciler import Change, TaskReconciler
    from derive.protocol.specs import CatalogSpec


class Applying:
    """Applies the edits of a catalog to a run.

    Args:
        run: the run.
        reconciler: brings its tasks in line with a catalog.
        watch: tells of edits.
    """

    def __init__(self, run: Run, reconciler: TaskReconciler, watch: CatalogWatch) -> None:
        self._run, self._reconciler, self._watch = run, reconciler, watch
        self._edit: Edit | None = None

    def advance(self, scheduler: Scheduler) -> bool:
        """Apply an edit once the tasks that it changes are between two transactions; whether one has yet to be."""
        from derive.cli.console import note, print_error
        from derive.errors import FlowError

        edit = self._watch.take()
        if edit is not None and isinstance(edit.outcome, FlowError):
            print_error(edit.outcome)
            note(f"{_edited(edit)}, and is wrong: what runs goes on unchanged", level="warn")
        elif edit is not None:
            self._edit = edit
        if self._edit is None or isinstance(self._edit.outcome, FlowError):
            return False
        catalog = self._edit.outcome
        if not scheduler.hold(self._reconciler.affected(self._run, catalog)):
            return True
        change = self._reconciler.apply(self._run, catalog)
        scheduler.adopt()
        note(f"{_edited(self._edit)}: {_describe(change)}")
        tell_new(self._run.tasks[name] for name in (*change.restarted, *change.started))
        self._edit = None
        return False


@contextmanager
def applying_edits(
    run: Run,
    reconciler: TaskReconciler,
    load: Callable[[Resources], CatalogSpec],
    resources: Resources,
    wake: Callable[[], None],
) -> Iterator[Applying]:
    """Watch a catalog for as long as the block takes; see `Applying` and `CatalogWatch`."""
    from derive.cli.watching import CatalogWatch

    with CatalogWatch(load, resources, wake) as watch:
        yield Applying(run, reconciler, watch)


def _edited(edit: Edit) -> str:
    return f"{', '.join(edit.files)} changed"


def _describe(change: Change) -> str:
    parts = []
    for verb, names in (("restart", change.restarted), ("start", change.started), ("stop", change.stopped)):
        if names:
            parts.append(f"{', '.join(names)} {verb}{'s' if len(names) == 1 else ''}")
    count = len(change.kept)
    return ", ".join([*parts, f"{count} task{' goes' if count == 1 else 's go'} on"])


def tell_new(tasks: Iterable[Task]) -> None:
    """Say with what tasks begin: what they read again, and what was edited under what they had derived."""
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339

    for task in tasks:
        for transform, since in task.beginning.compacted:
            note(
                f"{task.spec.name}: '{transform.name}' reads '{transform.source}', of which the history before"
                f" {format_rfc3339(since)} is compacted to one document per key"
            )
        for transform in task.beginning.again:
            again = f", again because of 'backfill: {transform.backfill}'" if transform.backfill else ", as it is new"
            note(f"{task.spec.name}: '{transform.name}' reads '{transform.source}' from its start{again}")
        for edit in task.beginning.edits:
            note(f"{task.spec.name}: {edit.message} ({edit.hint})", level="warn", task=task.spec.name)
