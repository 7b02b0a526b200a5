"""The scheduler: each cycle of tasks has a thread, which looks for work after an event that may cause work.

Such events are the progress of time, and commits of source tasks. The progress of other tasks changes only the division
of documents into transactions (law L1).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from derive.engine.run import Run
from derive.engine.wakeups import Cycle
from derive.errors import FlowError
from derive.storage.capability.table import RENEW_SECONDS
from derive.storage.compaction import CompactionThread

_PATIENCE = 10.0
"""Seconds to wait for the end of threads whose transactions were cancelled."""

_LOOK_SECONDS = 0.5
"""Seconds between looks for work of other cycles while a step waits for a long transaction."""

_SERVE_SECONDS, _APPLY_SECONDS = 1.0, 0.02
"""Seconds between looks at the run as a whole: without an edit, and while an edit waits for a transaction."""


class Scheduler:
    """Runs the cycles of a run on threads.

    Args:
        run: the run; only the scheduler may advance its cycles meanwhile.
        threads: maximum number of concurrent transactions.
    """

    def __init__(self, run: Run, threads: int) -> None:
        self._run = run
        self._turns = threading.Semaphore(threads)
        self._changed = threading.Condition()
        self._due: set[Cycle] = set()
        self._busy: set[Cycle] = set()
        self._held: set[Cycle] = set()
        self._passing: set[Cycle] = set()  # cycles that this thread moves
        self._nows: dict[Cycle, int] = {}  # timestamps up to which each cycle may process
        self._begun: Counter[Cycle] = Counter()  # number of transactions, to recognize a long one
        self._error: BaseException | None = None
        self._stopping = False
        self._moved = False
        self._threads: dict[Cycle, threading.Thread] = {}

    def __enter__(self) -> Scheduler:
        self.adopt()
        return self

    def hold(self, cycles: Sequence[Cycle]) -> list[Cycle]:
        """Keep cycles from starting transactions until `adopt`; return the cycles that are in a transaction."""
        with self._changed:
            self._held = set(cycles)
            return [cycle for cycle in cycles if cycle in self._busy]

    def adopt(self, held: Sequence[Cycle] = ()) -> None:
        """Start threads for new cycles of the run, and end the threads of removed cycles.

        Args:
            held: cycles that may not start transactions yet.
        """
        with self._changed:
            self._held = set(held)
            cycles = self._run.cycles
            self._due &= set(cycles)
            self._threads = {cycle: thread for cycle, thread in self._threads.items() if cycle in cycles}
            new = [
                threading.Thread(target=self._work, args=(cycle,), name=cycle[0], daemon=True)
                for cycle in cycles
                if cycle not in self._threads
            ]
            self._threads |= dict(zip([cycle for cycle in cycles if cycle not in self._threads], new, strict=True))
            self._changed.notify_all()
        for thread in new:
            thread.start()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            at_work = bool(self._busy)
        if at_work:
            self._run.stop()
        for thread in list(self._threads.values()):
            thread.join(_PATIENCE)

    def look(self, cycles: Sequence[Cycle] | None = None, resting: Collection[Cycle] = ()) -> None:
        """Seal the sources, and let idle cycles look for work.

        Args:
            cycles: the cycles that look; None for all.
            resting: cycles of these that probably have no documents, and so move together.

        Raises:
            FencedError: another run has fenced this run.
        """
        now = self._run.seal(cycles)
        looking = self._run.cycles if cycles is None else cycles
        with self._changed:
            if self._error:
                raise self._error
            self._nows |= dict.fromkeys(looking, now)
            self._due.update(cycle for cycle in looking if cycle not in resting)
            self._passing = {cycle for cycle in resting if cycle not in self._busy | self._due | self._held}
            self._changed.notify_all()
        if resting:
            self._pass_time(resting, now)

    def _pass_time(self, resting: Collection[Cycle], now: int) -> None:
        """Move the cycles without due documents to the present in one commit, and let the others look."""
        idle: list[Cycle] = []
        moved: list[Cycle] = []
        try:
            idle, moved = self._run.pass_time(self._passing, now)
        finally:
            with self._changed:
                self._passing = set()
                self._due.update(cycle for cycle in resting if cycle not in idle)
                self._note_moved(moved, now)
                self._changed.notify_all()

    def _note_moved(self, moved: Sequence[Cycle], now: int) -> None:
        """Let the readers of cycles look, except those that have moved with them."""
        for cycle in moved:
            self._moved = True
            readers = self._run.task_graph.readers[cycle].difference(moved)
            self._due.update(readers)
            self._nows = dict.fromkeys(readers, now) | self._nows  # a new cycle has not looked yet

    def watch(self) -> None:
        """Let each cycle look for work that may have new work since the last call.

        Raises:
            FencedError: another run has fenced this run.
        """
        cycles = self._run.find_woken()
        if cycles is not None:
            expecting = self._run.expecting
            is_all = 1 < len(cycles) == len(self._run.cycles)
            self.look(cycles, [cycle for cycle in cycles if cycle not in expecting] if is_all else ())
        with self._changed:
            if self._error:
                raise self._error

    def serve(
        self,
        *,
        advance: Callable[[], bool] = lambda: False,
        failed: Callable[[FlowError], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run tasks until the caller stops the run.

        Args:
            advance: applies edits; returns whether to call it soon again, because it waits for a transaction.
            failed: called with an error of the run itself; may raise the error, or wait until the next try.
            is_stopped: returns whether to return; it is called at least once a second while no transaction runs.
        """
        with CompactionThread(self._run.compact) as compaction:
            while not is_stopped():
                try:
                    self.watch()
                    is_applying = advance()
                    compaction.check()
                    self._run.wait(_APPLY_SECONDS if is_applying else _SERVE_SECONDS)
                except FlowError as error:
                    failed(error)

    def step(self) -> bool:
        """Seal, and advance every task as far as possible; return whether documents were processed or time moved.

        Raises:
            FencedError: another run has fenced this run.
        """
        self._moved = False
        self.look()
        renewed, begun = time.monotonic(), Counter[Cycle]()
        while not self._wait(_LOOK_SECONDS):
            if time.monotonic() - renewed >= RENEW_SECONDS:
                self._run.renew()
                renewed = time.monotonic()
            begun = self._look_beside(begun)
        return self._moved

    def _look_beside(self, begun: Counter[Cycle]) -> Counter[Cycle]:
        """Let idle cycles look for work while another cycle is in a long transaction.

        Args:
            begun: the result of the previous call.

        Returns:
            The number of transactions that each cycle has begun.
        """
        woken = self._run.find_woken() or ()
        with self._changed:
            is_long = any(self._begun[cycle] == begun[cycle] for cycle in self._busy)
            idle = [cycle for cycle in woken if cycle not in self._busy and cycle not in self._due]
            begun = self._begun.copy()
        if is_long and idle:
            self.look(idle)
        return begun

    def _wait(self, seconds: float) -> bool:
        """Wait until no cycle works; return False after `seconds`."""
        with self._changed:
            at_rest = self._changed.wait_for(lambda: self._error or not (self._due or self._busy), seconds)
            if self._error:
                raise self._error
            return bool(at_rest)

    def _work(self, cycle: Cycle) -> None:
        while self._begin(cycle):
            try:
                with self._turns:
                    moved = self._run.advance(cycle, self._nows[cycle])
            except BaseException as error:  # the thread of the run raises every error again
                self._end(cycle, moved=False, error=error)
                return
            self._end(cycle, moved=moved)

    def _begin(self, cycle: Cycle) -> bool:
        """Wait until there may be work; return False after the cycle is removed or the scheduler stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over(cycle) or self._may_begin(cycle))
            if self._is_over(cycle):
                return False
            self._due.discard(cycle)
            self._busy.add(cycle)
            self._begun[cycle] += 1
            return True

    def _may_begin(self, cycle: Cycle) -> bool:
        if cycle not in self._due or cycle in self._held or cycle in self._passing:
            return False
        background = self._run.background
        others = (self._due - self._held) | self._busy if background.issuperset(cycle) else ()
        return all(background.issuperset(other) for other in others)

    def _is_over(self, cycle: Cycle) -> bool:
        return self._stopping or self._threads.get(cycle) is not threading.current_thread()

    def _end(self, cycle: Cycle, *, moved: bool, error: BaseException | None = None) -> None:
        with self._changed:
            self._busy.discard(cycle)
            self._error = self._error or error
            if moved:
                self._moved = True
                readers = self._run.task_graph.readers[cycle]
                self._due.update((cycle, *readers))
                self._nows = dict.fromkeys(readers, self._nows[cycle]) | self._nows  # a new cycle has not looked yet
            self._changed.notify_all()
