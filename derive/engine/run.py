"""Running a catalog: the task graph, and the steps of a run.

A step seals the sources, and then advances each task as far as time allows. Tasks that read one another form a cycle,
and advance together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from derive.backoff import Backoff, Retries
from derive.engine.cycle_transaction import CycleTransaction
from derive.engine.idle_time import Idle, commit_idle, find_idle
from derive.engine.inputs import Inputs, PendingDocuments, find_blamed
from derive.engine.reset import start_over
from derive.engine.task import Task
from derive.engine.task_opening import reopen_task
from derive.engine.transactor import Committed
from derive.engine.wakeups import Cycle, Due, Wakeups
from derive.errors import (
    BusyError,
    DiskFullError,
    EngineLostError,
    FencedError,
    FlowError,
    LostError,
    SegmentError,
    SegmentMissingError,
)
from derive.protocol.specs import CatalogSpec, DerivationSpec
from derive.storage.roles import Operable
from derive.storage.task_log import internal
from derive.time import BEGINNING, tick_end
from derive.time.cycle import Step
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The tasks of a run; an edit of the catalog creates another graph.

    Attributes:
        catalog: the catalog.
        tasks: running tasks, by name.
        cycle_transactions: cycle transactions of each cycle that uses them, by the names of the cycle.
        sealable: collections that no task derives.
        absent: for each cycle, the names of its tasks that do not run; cycles are in order, sources before readers.
        upstream: for each cycle, the cycle itself and its direct and indirect sources.
        readers: for each cycle, the other cycles that read it.
    """

    catalog: CatalogSpec
    tasks: Mapping[str, Task]
    cycle_transactions: Mapping[Cycle, CycleTransaction]
    sealable: tuple[str, ...] = field(init=False)
    absent: Mapping[Cycle, tuple[str, ...]] = field(init=False)
    upstream: Mapping[Cycle, set[Cycle]] = field(init=False)
    readers: Mapping[Cycle, set[Cycle]] = field(init=False)

    def __post_init__(self) -> None:
        catalog, tasks = self.catalog, self.tasks
        absent: dict[Cycle, tuple[str, ...]] = {}
        others = [(name,) for name in tasks if name not in catalog.derivations]
        for members in (*catalog.cycles, *others):
            cycle = tuple(name for name in members if name in tasks)
            if cycle:
                absent[cycle] = tuple(name for name in members if name not in tasks)
        cycle_of = {name: cycle for cycle in absent for name in cycle}
        upstream: dict[Cycle, set[Cycle]] = {}
        readers: dict[Cycle, set[Cycle]] = {cycle: set() for cycle in absent}
        for cycle in absent:
            sources = {source for name in cycle for source in tasks[name].spec.sources}
            read = {cycle_of[source] for source in sources if source in cycle_of} - {cycle}
            upstream[cycle] = {cycle}.union(*(upstream[source] for source in read))
            for source in read:
                readers[source].add(cycle)
        sealable = tuple(name for name in catalog.collections if name not in catalog.derivations)
        for name, value in (("sealable", sealable), ("absent", absent), ("upstream", upstream), ("readers", readers)):
            object.__setattr__(self, name, value)


class Observer(Protocol):
    """Receives the events of a run."""

    def working(self, task: str, documents: int) -> None:
        """Report the number of documents that a transaction of `task` has processed so far; the first call has 0."""

    def committed(self, task: str, done: Committed) -> None:
        """Report a committed transaction. Without documents only time has moved, and `working` was not called."""

    def failed(self, task: str, error: FlowError) -> None:
        """Report that the task has stopped."""


class SilentObserver:
    """An observer that ignores events."""

    def working(self, task: str, documents: int) -> None:
        """Ignore the event."""

    def committed(self, task: str, done: Committed) -> None:
        """Ignore the event."""

    def failed(self, task: str, error: FlowError) -> None:
        """Ignore the event."""


_HELD_SECONDS = 0.1

_STALLED = 10_000_000
"""Microseconds behind the present after which `until_idle` does not wait for a materialized view."""

_HEALING_SECONDS = 0.1
"""Interval between checks for due retries, in seconds."""

RETRY_BACKOFF = Backoff(1.0, 60.0)
"""Pauses, in seconds, before a task with a transient error is retried."""

_WORTH_COMPACTING = 32
"""Number of consecutive small segments that a continuous run merges."""


class Run:
    """The running tasks of a catalog; `open_run` opens a run.

    Args:
        catalog: the catalog.
        store: the data folder.
        tasks: running tasks, by name.
        observer: receives the run's events.
        retries: schedules retries of failed tasks.

    Attributes:
        task_graph: its tasks, and their reading relations.
        is_mended: whether the run opens fenced tasks again; otherwise a fenced task ends the run.
        bounds: timestamps that some tasks do not pass, by name.
        background: tasks that run only while no other task has work.
    """

    def __init__(
        self,
        catalog: CatalogSpec,
        store: Operable,
        tasks: Mapping[str, Task],
        observer: Observer | None = None,
        retries: Retries[str] | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or SilentObserver()
        self.task_graph = TaskGraph(catalog, tasks, {})
        self._stopped = self.is_mended = False
        self.bounds: Mapping[str, int] = {}
        self.background: frozenset[str] = frozenset()
        self._retries = retries or Retries(RETRY_BACKOFF)
        self._missed: dict[str, str] = {}  # by task, the message about a missing file
        self._wakeups = Wakeups(store, self.cycles, self._find_due)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Return the running tasks, by name."""
        return self.task_graph.tasks

    @property
    def cycles(self) -> list[Cycle]:
        """Return the cycles of task names, sources before readers."""
        return list(self.task_graph.absent)

    def change(self, task_graph: TaskGraph) -> None:
        """Replace the tasks of the run; no thread may run a changed cycle meanwhile."""
        for name in self.tasks:
            if task_graph.tasks.get(name) is not self.tasks[name]:
                self._retries.succeed(name)
        self.task_graph = task_graph
        self._wakeups.change(self.cycles)

    def seal(self, cycles: Collection[Cycle] | None = None) -> int:
        """Seal the sources of some or all cycles up to the present, and return the present time."""
        self._wakeups.look(self.cycles if cycles is None else cycles)
        return self._store.seal_now(self.task_graph.sealable)

    def find_woken(self) -> list[Cycle] | None:
        """Return the cycles that may have new work, together with all cycles upstream of them.

        Return None if no cycle may have work. A run without cycles seals its sources, too.
        """
        due = self._wakeups.find()
        retried = [cycle for cycle in self.cycles if any(self._is_to_be_retried(self.tasks[name]) for name in cycle)]
        if due is None and not retried:
            return None
        waking = {*(due or ()), *retried}
        return [cycle for cycle in self.cycles if any(cycle in self.task_graph.upstream[reader] for reader in waking)]

    @property
    def expecting(self) -> Collection[Cycle]:
        """Return the cycles for which a document is known to wait."""
        return self._wakeups.expecting

    def wake(self) -> None:
        """Let all cycles look for work."""
        self._wakeups.change(self.cycles)

    def wait(self, seconds: float) -> None:
        """Wait for possible work, at most `seconds`."""
        is_healing = any(task.error and task.error.heals for task in self.tasks.values())
        self._wakeups.wait(min(seconds, _HEALING_SECONDS) if is_healing else seconds)

    def _find_due(self, cycle: Cycle) -> Due | None:
        """Return the time when a cycle has work, without a commit; None without waiting documents."""
        due: list[Due] = []
        for task in (self.tasks[name] for name in cycle):
            if task.error:
                continue
            try:
                earliest = task.earliest(task.look())
            except FlowError:  # the next look of the cycle raises the same error
                return Due(BEGINNING)
            if earliest is not None:
                end = tick_end(earliest, task.spec.tick)
                due.append(Due(end, is_held=self._is_held(task, end)))
        return min(due, default=None)

    def _is_held(self, task: Task, end: int) -> bool:
        """Return whether another writer keeps a source of a task from being final before an adjusted timestamp."""
        for spec in task.spec.inputs:
            held = None if spec.source in self.tasks else self._store.write_frontier(spec.source)
            if held is not None and held + offset_of(spec, task.spec.tick) < end:
                return True
        return False

    def renew(self) -> None:
        """Renew the capabilities of tasks in long transactions."""
        self._store.renew_tasks()

    def step(self) -> bool:
        """Seal the sources and advance every task as far as possible; return whether any task has advanced."""
        now = self.seal()
        moved = False
        for cycle in self.cycles:
            while self.advance(cycle, now):
                moved = True
        return moved

    def advance(self, cycle: Cycle, now: int) -> bool:
        """Run a transaction of each task of a cycle; return whether documents were processed or time moved.

        Threads may run different cycles at the same time.

        Args:
            cycle: one of `cycles`.
            now: the result of `seal`.

        Raises:
            FencedError: another run has fenced this run.
            EngineLostError: the executor is lost.
        """
        tasks = [self.tasks[name] for name in cycle]
        now = min(now, *(self.bounds.get(name, now) for name in cycle))
        self._wakeups.begin(cycle)
        if not all(self._may_run(task) and self._keep_up(task) for task in tasks):
            return False
        # Read before the inputs: these tasks publish nothing below their present uppers.
        absent = [self._store.upper(name) for name in self.task_graph.absent[cycle]]
        looks: dict[str, Inputs] = {}
        is_joint = cycle in self.task_graph.cycle_transactions
        # An input of a lower priority waits for all documents of the higher priorities.
        is_whole = is_joint and len({spec.priority for task in tasks for spec in task.spec.inputs}) > 1
        for task in tasks:
            with self._stopping(task):
                looks[task.spec.name] = task.look(is_whole=is_whole, is_joint=is_joint)
        if len(looks) < len(tasks):
            return False
        steps = self._next_steps(cycle, looks, absent, now)
        cycle_transaction = self.task_graph.cycle_transactions.get(cycle)
        if cycle_transaction and len(steps) == len(tasks):
            if self._go_jointly(cycle_transaction, tasks, looks, steps, now):
                return True
            if self._stopped or any(task.error for task in tasks):
                return False
        moved = False
        for task in tasks:
            moved = self._take(task, looks[task.spec.name], steps.get(task.spec.name)) or moved
            if task.error or self._stopped:
                return False
        if not moved:
            self._wakeups.rest(cycle, self._next_due(looks), now)
        return moved

    def pass_time(self, cycles: Collection[Cycle], now: int) -> tuple[list[Cycle], list[Cycle]]:
        """Move the derivations without due documents to the present in one commit.

        Args:
            cycles: cycles that no thread runs meanwhile.
            now: the result of `seal`.

        Returns:
            The cycles that rest, and those of them that have moved.
        """
        idle: dict[Cycle, Idle] = {}
        moved: dict[str, int] = {}
        with suppress(FlowError):  # the next transaction of the task raises the same error
            for cycle in self.cycles:
                if cycle in cycles and (one := self._find_idle(cycle, moved, now)):
                    idle[cycle], moved[cycle[0]] = one, one.upper
            committed = commit_idle(self._store, idle.values())
            for name, done in committed.items():
                self._observer.committed(name, done)
            for cycle, one in idle.items():
                self._wakeups.rest(cycle, self._next_due({cycle[0]: one.inputs}), now)
            return list(idle), [cycle for cycle in idle if cycle[0] in committed]
        return [], []

    def _find_idle(self, cycle: Cycle, moved: Mapping[str, int], now: int) -> Idle | None:
        """Return the derivation of a cycle if it has no due documents; None for other cycles."""
        name, *others = cycle
        task = self.tasks[name]
        feeds = any(spec.feedback for spec in task.spec.inputs)
        if others or feeds or task.error or name in self.background or self.task_graph.absent[cycle]:
            return None
        self._wakeups.begin(cycle)
        return find_idle(task, moved, min(now, self.bounds.get(name, now))) if self._keep_up(task) else None

    def _keep_up(self, task: Task) -> bool:
        """Move a task's inputs to the present relations of their sources; return False if that has failed.

        The bindings of a materialization are independent, so only bindings that must start over are read again.
        """
        with self._stopping(task):
            # The reopened task has a switch that was recorded before, whose rows `follow` writes again.
            while keys := task.follow():
                name, ticks = task.spec.name, {other.spec.tick for other in self.tasks.values()}
                is_derived = isinstance(task.spec, DerivationSpec)
                parts = {} if is_derived or len(keys) == len(task.spec.inputs) else {name: keys}
                start_over(self._store, [name], [] if is_derived else [name], parts, ticks)
                reopen_task(self._store, task)
            return True
        return False

    def _next_steps(
        self, cycle: Cycle, looks: Mapping[str, Inputs], absent: Sequence[int], now: int
    ) -> dict[str, Step | None]:
        """Return the step that each task of a cycle would take by itself; tasks with errors take none.

        Args:
            cycle: names of the tasks.
            looks: inputs of each task.
            absent: uppers of the cycle's derivations that do not run now, read before the inputs.
            now: timestamp up to which the sources are sealed.
        """
        tasks = [self.tasks[name] for name in cycle]
        earliest = now
        if any(spec.feedback for task in tasks for spec in task.spec.inputs):
            # Tasks of the cycle that do not run now may later publish anything at or above their `upper`.
            causes = [*absent]
            for task in tasks:
                with self._stopping(task):
                    causes.append(task.earliest_cause(looks[task.spec.name]))
            if len(causes) < len(cycle) + len(absent):
                return {}
            earliest = min(now, *causes)
        steps: dict[str, Step | None] = {}
        for task in tasks:
            with self._stopping(task):
                steps[task.spec.name] = task.next_step(looks[task.spec.name], earliest, now)
        return steps

    def _go_jointly(
        self,
        cycle_transaction: CycleTransaction,
        tasks: Sequence[Task],
        looks: Mapping[str, Inputs],
        steps: Mapping[str, Step | None],
        now: int,
    ) -> bool:
        """Advance the tasks of a cycle in one transaction; return False if each task must take its own step."""
        done: dict[str, Committed] = {}
        with self._stopping(tasks[0]):
            by_name = {task.spec.name: task for task in tasks}
            done = cycle_transaction.advance(by_name, looks, steps, now, self._observer.working)
        for name, committed in done.items():
            self._retries.succeed(name)
            self._observer.committed(name, committed)
        return bool(done)

    def _next_due(self, looks: Mapping[str, Inputs]) -> int | None:
        """Return the end of the first tick with a document that waits for one of these tasks; None if missing."""
        ends = []
        for name, inputs in looks.items():
            task = self.tasks[name]
            with self._stopping(task):
                earliest = task.earliest(inputs)
                if earliest is not None:
                    ends.append(tick_end(earliest, task.spec.tick))
        return min(ends, default=None)

    def _may_run(self, task: Task) -> bool:
        """Return whether a task has no error, or a transient error whose retry is due."""
        if task.error is None:
            return True
        if not self._is_to_be_retried(task):
            return False
        task.error = None
        return True

    def _is_to_be_retried(self, task: Task) -> bool:
        return task.error is not None and task.error.heals and self._retries.is_due(task.spec.name)

    def _take(self, task: Task, inputs: Inputs, step: Step | None) -> bool:
        """Run a step of one task, apart from its cycle; return whether the task has advanced."""
        name = task.spec.name
        done = None
        if step is not None:
            with self._stopping(task):
                done = task.take(inputs, step, lambda count: self._observer.working(name, count))
        if done is None:
            return False
        self._retries.succeed(name)
        self._observer.committed(name, done)
        return True

    @contextmanager
    def _stopping(self, task: Task) -> Iterator[None]:
        """Stop the task, and not the run, after an error in the block."""
        try:
            yield
        except EngineLostError:
            raise
        except FencedError as fenced:
            if not self.is_mended:
                raise
            task.error = fenced
        except Exception as exc:
            error = internal(self._store.root, task.spec.name, exc)
            if isinstance(error, SegmentMissingError) and not self._store.is_missing(error.path):
                unseen = self._look_again(task.spec.name, error)
                if unseen is None:
                    return
                error = unseen
            if not self._stopped:
                self._stop(task, error)

    def _look_again(self, task: str, error: SegmentMissingError) -> LostError | None:
        """Return None if a task should look at its sources again: a source was reset, and has new files.

        If the same file is missing a second time, only a worker lacks the file: then return the error.
        """
        if self._missed.get(task) != error.message:
            self._missed[task] = error.message
            return None
        return LostError(
            f"{error.message}; this machine has the file, but a worker cannot read it",
            hint="every machine of a cluster must have the data folder under the same path",
        )

    def _stop(self, task: Task, error: FlowError) -> None:
        name = task.spec.name
        try:
            task.fail(error)
        except FencedError:
            if self.is_mended:  # the task was reset during the failed transaction
                return
            raise
        if error.heals:
            self._retries.fail(name)
        self._observer.failed(name, error)

    def waiting(self) -> list[PendingDocuments]:
        """Return the stored documents that have not been processed yet."""
        waiting: list[PendingDocuments] = []
        for task in self.tasks.values():
            if not task.error:
                with self._stopping(task):
                    waiting += task.waiting()
        return waiting

    def until_idle(
        self, step: Callable[[], bool] | None = None, sleep: Callable[[float], None] | None = None
    ) -> list[PendingDocuments]:
        """Run until all documents ingested before now, and their results, are processed, and refills are complete.

        A tick is processed after its end, so the function may wait for the end of the present tick. The function does
        not wait for failed tasks, for tasks of other runs, for materialized views that are far behind the present, and
        for refills from derivations whose sources are gone.

        Args:
            step: advances every task, and returns whether anything moved; None to advance one task after the other.
            sleep: waits for the given seconds; None to wait for work, at most for the given seconds.

        Returns:
            Documents that still wait for a read delay or for one of these tasks.
        """
        start = self._store.timeline.read()
        while True:
            wakes = self._store.changes.wakes()
            moved = (step or self.step)()
            waiting = self.waiting()
            if not moved:
                waiting = self._without_held_refills(self._report_behind(waiting))
            soon = [documents for documents in waiting if documents.behind is None and self._is_due(documents, start)]
            if not soon:
                return [documents for documents in waiting if documents.documents]
            due = min(tick_end(documents.due, self.tasks[documents.task].spec.tick) for documents in soon)
            pause = (due - self._store.timeline.present()) / 1e6
            if pause > 0:
                (sleep or time.sleep)(min(pause, 1.0))
            elif not moved and sleep:
                sleep(_HELD_SECONDS)
            elif not moved:  # a process ingests, or a tick has just ended
                self._store.changes.wait_for_wake(wakes, _HELD_SECONDS)

    def _without_held_refills(self, waiting: list[PendingDocuments]) -> list[PendingDocuments]:
        """Return the pending documents without refills from derivations that do not advance."""
        held = [name for name, task in self.tasks.items() if not task.error and task.waits_for_relation]
        if not held:
            return waiting
        sources = {name: sorted(task.spec.sources) for name, task in self.tasks.items()}
        blamed = find_blamed(held, sources)
        return [
            documents for documents in waiting if documents.documents or self._behind(documents, blamed).behind is None
        ]

    def _report_behind(self, waiting: list[PendingDocuments]) -> list[PendingDocuments]:
        """Set, for documents that wait for a stopped task or materialized view, the name of that task or view."""
        stopped = [
            name for name in self.task_graph.catalog.derivations if name not in self.tasks or self.tasks[name].error
        ]
        for name in self.task_graph.sealable:  # a run of another catalog may derive the collection, and have failed
            state = self._store.task(name)
            if (state is not None and state.error) or self._is_stalled(name):
                stopped.append(name)
        blamed = find_blamed(stopped, {name: sorted(task.spec.sources) for name, task in self.tasks.items()})
        return [self._behind(documents, blamed) for documents in waiting]

    def _is_stalled(self, name: str) -> bool:
        """Return whether a name belongs to a materialized view that is far behind; runs seal all other relations."""
        known = self._store.collection(name)
        if known is None or known.upper >= self._store.timeline.present() - _STALLED:
            return False
        return self._store.tables.of_relation(known.relation) is not None

    def _behind(self, documents: PendingDocuments, blamed: Mapping[str, str]) -> PendingDocuments:
        task, beginning = self.tasks[documents.task], self.tasks[documents.task].beginning
        tick = task.spec.tick
        end = tick_end(documents.due, tick)
        for spec in task.spec.inputs:
            if spec.source not in blamed or (beginning.is_per_input and spec.name != documents.transform):
                continue
            if self._store.upper(spec.source) + offset_of(spec, tick) < end or task.has_other(spec):
                return replace(documents, behind=blamed[spec.source])
        return documents

    def _is_due(self, documents: PendingDocuments, start: int) -> bool:
        """Return whether `until_idle` waits for documents: due by `start`, derived from such documents, or a refill."""
        if not documents.documents:
            return True
        if documents.due < start or documents.delay:
            return documents.due < start
        inputs = self.tasks[documents.task].spec.inputs
        return any(
            spec.name == documents.transform and spec.source in self.task_graph.catalog.derivations for spec in inputs
        )

    def compact(self) -> None:
        """Merge the small segments of many small transactions."""
        from derive.storage.compaction import compact

        for spec in self.task_graph.catalog.collections.values():
            # Compaction can be repeated, and these errors are reported elsewhere.
            with suppress(DiskFullError, BusyError, SegmentError):
                compact(self._store, spec, fewest=_WORTH_COMPACTING, wait=False)

    def stop(self) -> None:
        """Make running transactions in other threads fail, without recording an error."""
        self._stopped = True
        for task in self.tasks.values():
            task.cancel()

    def close(self) -> None:
        """Release the capabilities of all tasks."""
        for task in self.tasks.values():
            task.release()
