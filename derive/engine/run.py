"""Running a catalog: seal the sources, then let each task go as far as time allows, sources before readers.

Tasks that read one another form a cycle, and go on together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from derive.engine.inputs import Inputs
from derive.engine.joint import Joint
from derive.engine.lineup import Lineup
from derive.engine.news import Cycle, Due, News
from derive.engine.observer import Observer, Silent
from derive.engine.reset import start_over
from derive.engine.retries import Retries
from derive.engine.task import Task
from derive.engine.task_opening import reopen_task
from derive.engine.transaction import Committed
from derive.engine.waiting import Waiting, find_blamed
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
from derive.time.cycle import Step
from derive.time.frontier import BEGINNING, tick_end
from derive.time.positions import offset_of

_HELD_SECONDS = 0.1

_HEALING_SECONDS = 0.1
"""How often a run looks whether a task that has failed is to be tried again."""

_WORTH_COMPACTING = 32
"""How many small segments in a row a continuous run merges."""


class Run:
    """The tasks of a catalog, at work; `open_run` opens one.

    Args:
        catalog: what is defined.
        store: where it lives.
        tasks: those that run, by name.
        observer: is told what happens.
        retries: says when a task that has failed is tried again.
        joint: for cycles whose tasks may go on together, by their names, what does that.

    Attributes:
        lineup: its tasks, and who reads whom.
        is_mended: whether somebody opens a task anew that was superseded, which otherwise is the end of the run.
    """

    def __init__(
        self,
        catalog: CatalogSpec,
        store: Operable,
        tasks: Mapping[str, Task],
        observer: Observer | None = None,
        retries: Retries | None = None,
        joint: Mapping[Cycle, Joint] | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or Silent()
        self.lineup = Lineup(catalog, tasks, joint or {})
        self._stopped = self.is_mended = False
        self._retries = retries or Retries()
        self._missed: dict[str, str] = {}  # by task, the message of a file that was missing
        self._news = News(store, self.cycles, self._find_due)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Those that run, by name."""
        return self.lineup.tasks

    @property
    def cycles(self) -> list[Cycle]:
        """Names of those that read one another, sources before readers."""
        return list(self.lineup.absent)

    def change(self, lineup: Lineup) -> None:
        """Go on with other tasks; no thread is at a cycle that is not the same in both."""
        for name in self.tasks:
            if lineup.tasks.get(name) is not self.tasks[name]:
                self._retries.succeed(name)
        self.lineup = lineup
        self._news.change(self.cycles)

    def seal(self, cycles: Collection[Cycle] | None = None) -> int:
        """Seal the sources to the present, to look at some cycles, or at all; returns it."""
        self._news.look(self.cycles if cycles is None else cycles)
        return self._store.seal_now(self.lineup.sealable)

    def find_news(self) -> list[Cycle] | None:
        """The cycles that may have something to do since they looked last, and those whose documents they wait for.

        It is None if there is no need to look. Where a run has no cycles its sources are sealed all the same.
        """
        due = self._news.find()
        retried = [cycle for cycle in self.cycles if any(self._is_to_be_retried(self.tasks[name]) for name in cycle)]
        if due is None and not retried:
            return None
        waking = {*(due or ()), *retried}
        return [cycle for cycle in self.cycles if any(cycle in self.lineup.upstream[reader] for reader in waking)]

    def wait(self, seconds: float) -> None:
        """Wait until there may be news, but not longer than so many seconds."""
        is_healing = any(task.error and task.error.heals for task in self.tasks.values())
        self._news.wait(min(seconds, _HEALING_SECONDS) if is_healing else seconds)

    def _find_due(self, cycle: Cycle) -> Due | None:
        """When a cycle has something to do, found out without a commit."""
        due: list[Due] = []
        for task in (self.tasks[name] for name in cycle):
            if task.error:
                continue
            try:
                earliest = task.earliest(task.look())
            except FlowError:  # which the cycle meets, too, when it looks
                return Due(BEGINNING)
            if earliest is not None:
                end = tick_end(earliest, task.spec.tick)
                due.append(Due(end, is_held=self._is_held(task, end)))
        return min(due, default=None)

    def _is_held(self, task: Task, end: int) -> bool:
        """Whether somebody else writes a source of a task who does not let it become final up to an adjusted clock."""
        for spec in task.spec.inputs:
            held = None if spec.source in self.tasks else self._store.held(spec.source)
            if held is not None and held + offset_of(spec, task.spec.tick) < end:
                return True
        return False

    def renew(self) -> None:
        """Keep the right to write of tasks that have been in a transaction for long."""
        self._store.renew_tasks()

    def step(self) -> bool:
        """Seal, and run every task as far as it goes now; returns whether documents were processed or time moved."""
        now = self.seal()
        moved = False
        for cycle in self.cycles:
            while self.advance(cycle, now):
                moved = True
        return moved

    def advance(self, cycle: Cycle, now: int) -> bool:
        """Run a transaction of each task of a cycle; returns whether documents were processed or time moved.

        Threads may run different cycles at the same time.

        Args:
            cycle: one of `cycles`.
            now: what `seal` returned.

        Raises:
            FencedError: another run has taken over.
            EngineLostError: nothing can be run any more.
        """
        tasks = [self.tasks[name] for name in cycle]
        self._news.begin(cycle)
        if not all(self._may_run(task) and self._keep_up(task) for task in tasks):
            return False
        # Before looking: what the others publish meanwhile is not below what they had reached.
        absent = [self._store.upper(name) for name in self.lineup.absent[cycle]]
        looks: dict[str, Inputs] = {}
        for task in tasks:
            with self._stopping(task):
                looks[task.spec.name] = task.look()
        if len(looks) < len(tasks):
            return False
        steps = self._next_steps(cycle, looks, absent, now)
        joint = self.lineup.joint.get(cycle)
        if joint and len(steps) == len(tasks):
            if self._go_jointly(joint, tasks, looks, steps, now):
                return True
            if self._stopped or any(task.error for task in tasks):
                return False
        moved = False
        for task in tasks:
            moved = self._take(task, looks[task.spec.name], steps.get(task.spec.name)) or moved
            if task.error or self._stopped:
                return False
        if not moved:
            self._news.rest(cycle, self._next_due(looks), now)
        return moved

    def _keep_up(self, task: Task) -> bool:
        """Have a task follow its sources, from its beginning if it must; False if that has failed."""
        with self._stopping(task):
            if task.follow():
                name = task.spec.name
                materialized = [] if isinstance(task.spec, DerivationSpec) else [name]
                start_over(self._store, [name], materialized, ticks={other.spec.tick for other in self.tasks.values()})
                reopen_task(self._store, task)
            return True
        return False

    def _next_steps(
        self, cycle: Cycle, looks: Mapping[str, Inputs], absent: Sequence[int], now: int
    ) -> dict[str, Step | None]:
        """What the tasks of a cycle do next, by themselves, but for those that cannot say.

        Args:
            cycle: their names.
            looks: what each has seen.
            absent: the `upper` of each derivation on the cycle that does not run now, from before those looks.
            now: up to which the sources are sealed.
        """
        tasks = [self.tasks[name] for name in cycle]
        earliest = now
        if any(spec.feedback for task in tasks for spec in task.spec.inputs):
            # Those on the cycle that do not run now may publish later whatever is not below their `upper`.
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
        joint: Joint,
        tasks: Sequence[Task],
        looks: Mapping[str, Inputs],
        steps: Mapping[str, Step | None],
        now: int,
    ) -> bool:
        """Let the tasks of a cycle go on in one transaction; False if each of them has to go on by itself."""
        done: dict[str, Committed] = {}
        with self._stopping(tasks[0]):
            by_name = {task.spec.name: task for task in tasks}
            done = joint.advance(by_name, looks, steps, now, self._observer.working)
        for name, committed in done.items():
            self._retries.succeed(name)
            self._observer.committed(name, committed)
        return bool(done)

    def _next_due(self, looks: Mapping[str, Inputs]) -> int | None:
        """The end of the first tick in which a document waits for any of these tasks; None if none waits."""
        ends = []
        for name, inputs in looks.items():
            task = self.tasks[name]
            with self._stopping(task):
                earliest = task.earliest(inputs)
                if earliest is not None:
                    ends.append(tick_end(earliest, task.spec.tick))
        return min(ends, default=None)

    def _may_run(self, task: Task) -> bool:
        """Whether a task is well, or its error may have healed by now and has waited its time."""
        if task.error is None:
            return True
        if not self._is_to_be_retried(task):
            return False
        task.error = None
        return True

    def _is_to_be_retried(self, task: Task) -> bool:
        return task.error is not None and task.error.heals and self._retries.is_due(task.spec.name)

    def _take(self, task: Task, inputs: Inputs, step: Step | None) -> bool:
        """Let a task take a step by itself, if there is one; returns whether it did."""
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
        """Let what goes wrong with a task stop this one, and not the run."""
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
            if isinstance(error, SegmentMissingError) and not self._store.missing(task.spec.sources):
                unseen = self._look_again(task.spec.name, error)
                if unseen is None:
                    return
                error = unseen
            if not self._stopped:
                self._stop(task, error)

    def _look_again(self, task: str, error: SegmentMissingError) -> LostError | None:
        """Return None if a task looks at its sources again, as one that was reset meanwhile has other files now.

        A file that is missing twice was not replaced: it is there, and a worker cannot see it. That is the error.
        """
        if self._missed.get(task) != error.message:
            self._missed[task] = error.message
            return None
        return LostError(
            f"{error.message}; this machine has the file, and a worker cannot see it",
            hint="every machine of a cluster must have the data folder under the same path",
        )

    def _stop(self, task: Task, error: FlowError) -> None:
        name = task.spec.name
        try:
            task.fail(error)
        except FencedError:
            if self.is_mended:  # it was reset under the transaction, which has failed at that
                return
            raise
        if error.heals:
            self._retries.postpone(name)
        self._observer.failed(name, error)

    def waiting(self) -> list[Waiting]:
        """What is stored and not processed yet."""
        waiting: list[Waiting] = []
        for task in self.tasks.values():
            if not task.error:
                with self._stopping(task):
                    waiting += task.waiting()
        return waiting

    def until_idle(
        self, step: Callable[[], bool] | None = None, sleep: Callable[[float], None] | None = None
    ) -> list[Waiting]:
        """Run until everything ingested before now is processed, and what it caused by feedback.

        A tick ends before it is processed, so this may wait for the end of the present one. It does not wait for
        tasks that have failed or are not part of this run.

        Args:
            step: runs every task as far as it goes, and returns whether anything moved; None for one after the other.
            sleep: waits so many seconds; None for as long, unless there is something to do before.

        Returns:
            What still waits, for a read delay or for such a task.
        """
        start = self._store.timeline.read()
        while True:
            call = self._store.changes.call()
            moved = (step or self.step)()
            waiting = self.waiting()
            if not moved:
                waiting = self._tell_behind(waiting)
            soon = [documents for documents in waiting if documents.behind is None and self._is_due(documents, start)]
            if not soon:
                return waiting
            due = min(tick_end(documents.due, self.tasks[documents.task].spec.tick) for documents in soon)
            pause = (due - self._store.timeline.present()) / 1e6
            if pause > 0:
                (sleep or time.sleep)(min(pause, 1.0))
            elif not moved and sleep:
                sleep(_HELD_SECONDS)
            elif not moved:  # somebody ingests, or a tick has ended just now
                self._store.changes.wait_for_call(call, _HELD_SECONDS)

    def _tell_behind(self, waiting: list[Waiting]) -> list[Waiting]:
        """Say of documents which task they wait for, where that is one that does not go on by itself."""
        stopped = [name for name in self.lineup.catalog.derivations if name not in self.tasks or self.tasks[name].error]
        for name in self.lineup.sealable:  # a run of another catalog may derive it, and have failed at that
            state = self._store.task(name)
            if state is not None and state.error:
                stopped.append(name)
        blamed = find_blamed(stopped, {name: sorted(task.spec.sources) for name, task in self.tasks.items()})
        return [self._behind(documents, blamed) for documents in waiting]

    def _behind(self, documents: Waiting, blamed: Mapping[str, str]) -> Waiting:
        task = self.tasks[documents.task].spec
        end = tick_end(documents.due, task.tick)
        for spec in task.inputs:
            if spec.source in blamed and self._store.upper(spec.source) + offset_of(spec, task.tick) < end:
                return replace(documents, behind=blamed[spec.source])
        return documents

    def _is_due(self, documents: Waiting, start: int) -> bool:
        """Whether these documents are part of the work: due by `start`, or derived from what was."""
        if documents.due < start or documents.delay:
            return documents.due < start
        inputs = self.tasks[documents.task].spec.inputs
        return any(
            spec.name == documents.transform and spec.source in self.lineup.catalog.derivations for spec in inputs
        )

    def tidy(self) -> None:
        """Merge the small segments that many small transactions leave behind."""
        from derive.storage.compaction import compact

        for spec in self.lineup.catalog.collections.values():
            # There is nothing to lose, and whoever needs what it failed at is told.
            with suppress(DiskFullError, BusyError, SegmentError):
                compact(self._store, spec, fewest=_WORTH_COMPACTING, wait=False)

    def stop(self) -> None:
        """Make transactions fail that other threads are at, without a trace of it."""
        self._stopped = True
        for task in self.tasks.values():
            task.cancel()

    def close(self) -> None:
        """Give up the right to write."""
        for task in self.tasks.values():
            task.release()
