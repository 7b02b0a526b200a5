"""Applies catalog edits, resets and splits to a run: polls the files of the catalog, and reports each change.

A separate thread loads and checks the catalog, because this may take seconds. An edit ends when two polls see the same
files, so several files that are saved together are one edit.

A run asks on the terminal whether an edit that waits for acceptance is accepted, if standard input and standard error
are terminals. In other cases the task waits, and the run prints the reason and the commands.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from derive.catalog.loading import Resources
from derive.errors import CatalogError, FlowError, UnacceptedError
from derive.position import is_remote
from derive.protocol.specs import CatalogSpec

if TYPE_CHECKING:
    from derive.engine.run import Run
    from derive.engine.scheduler import Scheduler
    from derive.engine.task import Task
    from derive.engine.task_reconciler import Change, TaskReconciler
    from derive.storage.capability.table import Capability
    from derive.storage.roles import Maintainable


def ask_acceptance(
    store: Maintainable,
    catalog: CatalogSpec,
    tasks: Sequence[str] | None,
    accepted: Collection[str],
    shown: set[str],
) -> list[str]:
    """Ask for each task with a waiting edit whether the edit is accepted, and return the tasks with the answer yes.

    Args:
        store: the data folder.
        catalog: the catalog.
        tasks: names of the tasks to run; None for all.
        accepted: names of tasks whose edits are accepted already.
        shown: gets the message of each edit that was printed with its question, and has the answer no.
    """
    from derive.cli.console import is_interactive, print_error
    from derive.engine.edits import refusal_of, reset_command
    from derive.planning.plan import find_waiting_tasks

    if not is_interactive():
        return []
    agreed = []
    for name, edits in find_waiting_tasks(store, catalog, tasks).items():
        error = refusal_of(name, edits, reset_command(store, name))
        if error is not None and name not in accepted:
            print_error(error)
            if _ask(_question(name)):
                agreed.append(name)
            else:
                shown.add(error.message)
    return agreed


def _question(name: str) -> str:
    return f"accept this edit of '{name}'?"


def _ask(question: str) -> bool:
    from derive.cli.console import note

    note(f"{question} [y/N]", level="warn")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def ask_to_fence(runs: Mapping[str, Capability]) -> Mapping[str, Capability]:
    """Ask on a terminal whether this run may fence the processes that run its tasks now, and return `runs`.

    Args:
        runs: the present capability to run each task, by task.

    Raises:
        click.exceptions.Exit: the answer is no.
    """
    from derive.cli.console import is_interactive, note
    from derive.storage.metadata.process import show_process

    processes = sorted({show_process(run.process) for run in runs.values() if run.purpose is None})
    if processes and is_interactive():
        note(f"another flowctl run derives new documents already ({', '.join(processes)})", level="warn")
        if not _ask("end it, and run here instead?"):
            note("nothing was started: the other run continues")
            raise click.exceptions.Exit(1)
    return runs


class AcceptanceQuestions:
    """Questions about edits that begin to wait while a run is at work; a thread waits for the answers.

    Args:
        tasks: the tasks of the run. There are no questions about their present edits, which were asked before the run.
        wake: called when an answer has arrived.
    """

    def __init__(self, tasks: Mapping[str, Task], wake: Callable[[], None]) -> None:
        self._asked = set(_waiting(tasks).items())
        self._wake = wake
        self._questions: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._agreed: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def update(self, tasks: Mapping[str, Task]) -> list[str]:
        """Ask about new waiting edits, and return the tasks whose present edits have the answer yes.

        Args:
            tasks: the tasks of the run.
        """
        from derive.cli.console import is_interactive

        waiting = _waiting(tasks)
        failed = {question for question in waiting.items() if tasks[question[0]].error is not None}
        new = failed - self._asked
        self._asked = (self._asked & set(waiting.items())) | new
        if new and is_interactive():
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="questions", daemon=True)
                self._thread.start()
            for question in sorted(new):
                self._questions.put(question)
        return [name for name, message in list(self._agreed.items()) if (name, message) in failed]

    def forget(self) -> None:
        """Drop the answers, because they were used, or because the catalog was edited after them."""
        self._agreed.clear()

    def _work(self) -> None:
        while True:
            name, message = self._questions.get()
            if (name, message) in self._asked and _ask(_question(name)):  # not if the edit was undone meanwhile
                self._agreed[name] = message
                self._wake()


def _waiting(tasks: Mapping[str, Task]) -> dict[str, str]:
    """Return the message of each task that was opened with a waiting edit."""
    errors = {name: task.beginning.error for name, task in tasks.items()}
    return {name: error.message for name, error in errors.items() if isinstance(error, UnacceptedError)}


_EVERY_SECONDS = 0.25
"""Interval between two polls, in seconds; an edit ends when two polls see the same files."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The result of loading a catalog after an edit.

    Attributes:
        files: names of the edited files.
        outcome: the catalog, or its error.
    """

    files: tuple[str, ...]
    outcome: CatalogSpec | FlowError


class CatalogWatch:
    """While the block runs, loads a catalog again after each edit of one of its files.

    Args:
        load: loads and checks the catalog.
        resources: the files of the first load.
        wake: called when an edit is loaded.
    """

    def __init__(
        self,
        load: Callable[[Resources], CatalogSpec],
        resources: Resources,
        wake: Callable[[], None],
    ) -> None:
        self._load, self._wake = load, wake
        self._files = _local(resources)
        self._known = _contents(self._files, resources)
        self._stats: Mapping[str, object] = {}
        self._edit: Edit | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="catalog", daemon=True)

    def __enter__(self) -> CatalogWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def take(self) -> Edit | None:
        """Return the latest edit after the last call; None without an edit."""
        if self._error is not None:
            raise self._error
        edit, self._edit = self._edit, None
        return edit

    def _work(self) -> None:
        try:
            while not self._over.wait(_EVERY_SECONDS):
                self._look()
        except BaseException as error:  # `take` raises every error again
            self._error = error
            self._wake()

    def _look(self) -> None:
        stats = {file: _stat(file) for file in self._files}
        if stats == self._stats:
            return
        self._stats = stats
        if self._over.wait(_EVERY_SECONDS) or stats != {file: _stat(file) for file in self._files}:
            self._stats = {}  # a program is still writing
            return
        contents = _contents(self._files)
        edited = tuple(sorted(file for file in self._files if contents[file] != self._known.get(file)))
        if not edited:
            return
        resources = Resources()
        outcome: CatalogSpec | FlowError
        try:
            outcome = self._load(resources)
        except FlowError as error:
            outcome = error
        # A broken catalog may lack the reference to the file that the user corrects next, so the former files are
        # still watched.
        self._files = _local(resources) | (self._files if isinstance(outcome, CatalogError) else frozenset())
        self._known = {**contents, **_contents(_local(resources), resources)}
        self._stats = {}
        self._edit = Edit(tuple(Path(file).name for file in edited), outcome)
        self._wake()


def _local(resources: Resources) -> frozenset[str]:
    return frozenset(url.removeprefix("file://") for url in resources.asked if not is_remote(url))


def _stat(file: str) -> object:
    try:
        stat = os.stat(file)
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _contents(files: Iterable[str], resources: Resources | None = None) -> dict[str, str]:
    """Return a hash of each file's content: the content that `resources` has loaded, or the present content."""
    hashes = {}
    for file in files:
        if resources is not None and file in resources.hashes:
            hashes[file] = resources.hashes[file]
            continue
        try:
            hashes[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (OSError, ValueError):
            hashes[file] = ""
    return hashes


class Applying:
    """Applies catalog edits, and the effects of `flowctl reset` and `flowctl split`, to the tasks of a run.

    Args:
        run: the run.
        reconciler: applies a catalog to the run's tasks.
        watch: source of catalog edits.
        questions: asks whether waiting edits are accepted.
    """

    def __init__(
        self, run: Run, reconciler: TaskReconciler, watch: CatalogWatch, questions: AcceptanceQuestions
    ) -> None:
        self._run, self._reconciler, self._watch, self._questions = run, reconciler, watch, questions
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
        accepted = self._accepted()
        if edit is None and not done and not free and not accepted:
            return False
        affected = self._reconciler.affected(self._run, catalog)
        busy = scheduler.hold(affected)
        waiting = self._reconciler.waiting(self._run, catalog, busy)
        if waiting and (edit, done, left, waiting) == self._shown:
            return True
        try:
            change = self._apply(catalog, waiting, accepted)
        except FencedError:  # another process was faster, and the next call reports why
            return True
        scheduler.adopt([cycle for cycle in affected if not waiting.isdisjoint(cycle)])
        done = {**done, **dict.fromkeys(free, "is free"), **dict.fromkeys(accepted, "had its edit accepted")}
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

    def _accepted(self) -> list[str]:
        """Return the tasks whose present edits a person has accepted."""
        accepted = self._questions.update(self._run.tasks)
        if self._edit is None:
            return accepted
        self._questions.forget()  # the answers are about the catalog before its last edit
        return []

    def _apply(self, catalog: CatalogSpec, waiting: Collection[str], accepted: Collection[str]) -> Change:
        """Apply a catalog, and the acceptance of edits; see `TaskReconciler.apply`."""
        if not accepted:
            return self._reconciler.apply(self._run, catalog, waiting)
        self._reconciler.accept(accepted)
        try:
            change = self._reconciler.apply(self._run, catalog, waiting)
        finally:
            self._reconciler.accept(())
        if set(waiting).isdisjoint(accepted):
            self._questions.forget()
        return change

    def _show(self, why: str, change: Change, waiting: Collection[str]) -> None:
        from derive.cli.console import note

        note(f"{why}: {_describe(change, waiting)}")
        report_new(self._run.tasks[name] for name in (*change.restarted, *change.started))

    def _note_waits(self, waiting: Collection[str], busy: Sequence[str]) -> None:
        """Record, for other processes, the transactions for which each waiting task waits."""
        from derive.engine.edits import begin_wait, end_wait

        waits = {name: [name] if name in busy else busy for name in waiting}
        for name, tasks in waits.items():
            if self._waits.get(name) != tasks:
                begin_wait(self._reconciler.root, name, tasks)
        for name in self._waits.keys() - waits.keys():
            end_wait(self._reconciler.root, name)
        self._waits = waits

    def _take_edit(self) -> None:
        """Take the latest catalog edit; if the catalog is wrong, print its error."""
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
    """Watch a catalog while the block runs; see `Applying` and `CatalogWatch`."""
    with CatalogWatch(load, resources, wake) as watch:
        yield Applying(run, reconciler, watch, AcceptanceQuestions(run.tasks, wake))


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
            f"this run continues {what} of another flowctl run ({show_process(process)}), which ends",
            level="warn",
            tasks=names,
        )


def report_new(tasks: Iterable[Task]) -> None:
    """Report the sources that tasks read again from the start, and edits that are later than some documents."""
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
