"""The automatic split of derivations that stay far behind, while a run is at work.

A split copies the state of a task, so a thread makes it, and the other tasks continue. The task itself waits: it starts
no transaction after the choice, and is opened again with the new shards. A split that fails or is killed changes
nothing; see `derive/engine/reset.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from derive.engine.reset import split
from derive.engine.run import Run
from derive.engine.shard_advice import EVERY_SECONDS, Pressure, can_be_split
from derive.engine.wakeups import Cycle
from derive.errors import FlowError
from derive.plural import counted
from derive.protocol.derive import DividesState
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.storage.roles import Operable
from derive.storage.task_log import internal


class Holder(Protocol):
    """The scheduler of a run."""

    def hold(self, cycles: Sequence[Cycle]) -> list[Cycle]:
        """Keep cycles from starting transactions; return the cycles that are in a transaction."""

    def adopt(self, held: Sequence[Cycle] = ()) -> None:
        """Work on the present cycles of the run."""


class Reopener(Protocol):
    """The reconciler of a run."""

    def reopen(self, run: Run) -> bool:
        """Open the superseded tasks of a run again; return False to be called again later."""


@dataclass(slots=True)
class AutoSplit:
    """Splits tasks of a run that stay far behind, one at a time.

    Attributes:
        run: the run.
        store: the data folder.
        reconciler: opens a split task again.
        most: greatest number of shards.
        report: prints a message.
        clock: returns seconds.
    """

    run: Run
    store: Operable
    reconciler: Reopener
    most: int
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _pressures: dict[str, Pressure] = field(default_factory=dict)
    _observed: float = float("-inf")
    _chosen: str | None = None
    _split: _Split | None = None
    _was_mended: bool = False

    def advance(self, scheduler: Holder, apply: Callable[[], bool] = lambda: False) -> bool:
        """Observe the tasks, and split a task that needs more shards; return whether to call this again soon.

        Args:
            scheduler: the scheduler of the run.
            apply: applies edits, and opens the tasks again that other processes have fenced; returns whether it waits
                for transactions, and so holds tasks. It is not called during a split, which would seem such a process.

        Raises:
            FencedError: another run has fenced this run.
        """
        if self._split is None and apply():
            return True
        if self._split is not None:
            if self._split.is_alive():
                return True
            self._finish(self._split, scheduler)
        elif self._chosen is not None:
            self._begin(self._chosen, scheduler)
        elif self.clock() - self._observed >= EVERY_SECONDS:
            self._observed = self.clock()
            self._chosen = next(filter(self._needs_shards, self.run.tasks), None)
        return self._split is not None or self._chosen is not None

    def _needs_shards(self, name: str) -> bool:
        task, state = self.run.tasks[name], self.store.task(name)
        if task.error is not None or state is None or not can_be_split(task.spec, task.shards, self.most):
            return False
        try:
            due = task.estimate_waiting(self.store.timeline.present()).due
        except FlowError:  # the next look of the task raises the same error
            return False
        return self._pressures.setdefault(name, Pressure()).observe(self.clock(), due, state.documents_in)

    def _begin(self, name: str, scheduler: Holder) -> None:
        """Begin a split once the task is not in a transaction."""
        task = self.run.tasks.get(name)
        if task is None or task.error is not None or not can_be_split(task.spec, task.shards, self.most):
            self._chosen = None  # an edit was applied meanwhile
            scheduler.adopt()
            return
        if scheduler.hold([(name,)]):
            return
        assert isinstance(task.spec, DerivationSpec)
        self.report(f"{name} stays far behind with {counted(task.shards, 'shard')}: splitting it")
        self._was_mended, self.run.is_mended = self.run.is_mended, True  # the split fences the task, and not the run
        self._chosen = None
        self._split = _Split(self.store, task.spec)
        self._split.start()

    def _finish(self, done: _Split, scheduler: Holder) -> None:
        if not self.reconciler.reopen(self.run):
            return
        self._split, self.run.is_mended = None, self._was_mended
        self._pressures.setdefault(done.name, Pressure()).rest(self.clock())
        scheduler.adopt()
        if done.error is None:
            self.report(f"{done.name} has {counted(done.shards, 'shard')}")
        else:
            self.report(f"{done.name} was not split, and continues: {done.error}")


class _Split(threading.Thread):
    """The split of one task, which copies its state."""

    def __init__(self, store: Operable, spec: DerivationSpec) -> None:
        super().__init__(name="split", daemon=True)
        self.name = spec.name
        self.shards = 0
        self.error: FlowError | None = None
        self._store, self._spec = store, spec

    @override
    def run(self) -> None:
        runtime = find_runtime(self._spec.connector)
        try:
            self.shards = split(
                self._store, self._spec.name, connector=runtime if isinstance(runtime, DividesState) else None
            )
        except Exception as error:  # the task continues with its former shards
            self.error = internal(self._store.root, self._spec.name, error)
