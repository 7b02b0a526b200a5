"""Applying catalog edits, resets and splits to a run, and reporting each change to the user."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derive.catalog.loading.resources import Resources
    from derive.cli.watching import CatalogWatch
    from derive.engine.run import Run
    from derive.engine.scheduler import Scheduler
    from derive.engine.task import Task
    from derive.engine.task_reconciler import Change, TaskReconciler
    from derive.protocol.specs import CatalogSpec
    from derive.storage.capability.table import Capability


class Applying:
    """Applies catalog edits, and the effects of `flowctl reset` and `flowctl split`, to the tasks of a run.

    Args:
        run: the run.
        reconciler: applies a catalog to the run's tasks.
        watch: source of catalog edits.
    """

    def __init__(self, run: Run, reconciler: TaskReconciler, watch: CatalogWatch) -> None:
        self._run, self._reconciler, self._watch = run, reconciler, watch
        self._edit: tuple[Sequence[str], CatalogSpec] | None = None
        self._left: Mapping[str, str] = {}
        self._shown: object = None
        self._waits: Mapping[str, Sequence[str]] = {}
        run.is_mended = True

    def advance(self, scheduler: Scheduler) -> bool:
        """Apply pending changes to tasks between transactions; return whether other tasks still wait for a change.

        Raises:
            FencedError: another run has fenced this run.
        """
        from derive.cli.console import note
        from derive.errors import FencedError

        self._take_edit()
        edit, done = self._edit, self._reconciler.find_superseded(self._run)
        if done is None:
            return True
        catalog = edit[1] if edit else self._run.task_graph.catalog
        left = self._reconciler.leave(self._run, catalog) if edit or self._left else {}
        free = [name for name in self._left if name not in left and name in catalog.tasks]
        if edit is None and not done and not free:
            return False
        affected = self._reconciler.affected(self._run, catalog)
        busy = scheduler.hold(affected)
        waiting = self._reconciler.waiting(self._run, catalog, busy)
        if waiting and (edit, done, left, waiting) == self._shown:
            return True
        try:
            change = self._reconciler.apply(self._run, catalog, waiting)
        except FencedError:  # another process was faster: the next call reports why
            return True
        scheduler.adopt([cycle for cycle in affected if not waiting.isdisjoint(cycle)])
        done = {**done, **dict.fromkeys(free, "is free")}
        reasons = [*([_edited(edit[0])] if edit else []), *(f"{name} {what}" for name, what in done.items())]
        self._show(", ".join(reasons), change, waiting)
        self._note_waits(waiting, sorted(name for cycle in busy for name in cycle))
        for name in left.keys() - self._left.keys():
            note(f"{name} is run by another flowctl ({left[name]}); this run starts it once that process has ended")
        self._left = left
        self._shown = (edit, done, left, waiting)
        if not waiting:
            self._edit = None
        return bool(waiting)

    def _show(self, why: str, change: Change, waiting: Collection[str]) -> None:
        from derive.cli.console import note

        note(f"{why}: {_describe(change, waiting)}")
        report_new(self._run.tasks[name] for name in (*change.restarted, *change.started))

    def _note_waits(self, waiting: Collection[str], busy: Sequence[str]) -> None:
        """Record, for other processes, the transactions that each waiting task waits for."""
        from derive.engine.edits import begin_wait, end_wait

        waits = {name: [name] if name in busy else busy for name in waiting}
        for name, tasks in waits.items():
            if self._waits.get(name) != tasks:
                begin_wait(self._reconciler.root, name, tasks)
        for name in self._waits.keys() - waits.keys():
            end_wait(self._reconciler.root, name)
        self._waits = waits

    def _take_edit(self) -> None:
        """Take the latest catalog edit; print its error if the catalog is wrong."""
        from derive.cli.console import note, print_error
        from derive.errors import FlowError

        edit = self._watch.take()
        if edit is None:
            return
        if isinstance(edit.outcome, FlowError):
            print_error(edit.outcome)
            note(f"{_edited(edit.files)}, but the catalog has errors: all tasks continue unchanged", level="warn")
        else:
            self._edit = edit.files, edit.outcome


@contextmanager
def applying_edits(
    run: Run,
    reconciler: TaskReconciler,
    load: Callable[[Resources], CatalogSpec],
    resources: Resources,
    wake: Callable[[], None],
) -> Iterator[Applying]:
    """Watch a catalog for the length of the block; see `Applying` and `CatalogWatch`."""
    from derive.cli.watching import CatalogWatch

    with CatalogWatch(load, resources, wake) as watch:
        yield Applying(run, reconciler, watch)


def _edited(files: Sequence[str]) -> str:
    return f"{', '.join(files)} changed"


def _describe(change: Change, waiting: Collection[str]) -> str:
    parts = []
    for verb, names in (("restart", change.restarted), ("start", change.started), ("stop", change.stopped)):
        if names:
            parts.append(f"{', '.join(names)} {verb}{'s' if len(names) == 1 else ''}")
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        parts.append(f"{', '.join(sorted(waiting))} {verb} for running transactions to end")
    count = sum(name not in waiting for name in change.kept)
    return ", ".join([*parts, f"{count} task{' continues' if count == 1 else 's continue'}"])


def report_superseded(runs: Mapping[str, Capability]) -> None:
    """Report the runs whose tasks this run has fenced.

    Args:
        runs: the previous capability to run each task, by task.
    """
    from derive.cli.console import note
    from derive.storage.metadata.process import show_process

    for process in sorted({run.process for run in runs.values() if run.purpose is None}):
        names = sorted(task for task, run in runs.items() if run.process == process)
        what = f"task '{names[0]}'" if len(names) == 1 else f"{len(names)} tasks"
        note(
            f"this run has taken over {what} from another flowctl run ({show_process(process)}), which ends",
            level="warn",
            tasks=names,
        )


def report_new(tasks: Iterable[Task]) -> None:
    """Report the sources that tasks read again from the start, and edits made after documents were derived."""
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339

    for task in tasks:
        for transform, since in task.beginning.compacted:
            note(
                f"{task.spec.name}: '{transform.name}' reads '{transform.source}', whose history before"
                f" {format_rfc3339(since)} is compacted to one document per key"
            )
        for transform in task.beginning.again:
            again = f", again because of 'backfill: {transform.backfill}'" if transform.backfill else ", as it is new"
            note(f"{task.spec.name}: '{transform.name}' reads '{transform.source}' from its start{again}")
        for edit in task.beginning.edits:
            note(f"{task.spec.name}: {edit.message} ({edit.hint})", level="warn", task=task.spec.name)


def report_accepted(tasks: Iterable[Task], accepted: Collection[str]) -> None:
    """Report the tasks in `accepted` that had no edit waiting to be accepted."""
    from derive.cli.console import note

    done = {task.spec.name for task in tasks if task.beginning.is_accepted}
    for name in dict.fromkeys(accepted):
        if name not in done:
            note(f"{name}: no edit waited to be accepted", task=name)
