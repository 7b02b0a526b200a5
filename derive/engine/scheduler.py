"""The scheduler: each cycle of tasks has a thread, which looks for work when there may be some.

There may be work when time has moved, and when a source task has committed. The progress of other tasks changes only
how documents are divided into transactions (law L1).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from derive.engine.run import Run
from derive.engine.wakeups import Cycle
from derive.storage.metadata.capability import RENEW_SECONDS

_PATIENCE = 10.0
"""Seconds to wait for the end of threads whose transactions were cancelled."""


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
        self._now = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._moved = False
        self._threads: dict[Cycle, threading.Thread] = {}

    def __enter__(self) -> Scheduler:
        self.adopt()
        return self

    def hold(self, cycles: Sequence[Cycle]) -> list[Cycle]:
        """Prevent cycles from starting transactions until `adopt`; return the cycles that are in a transaction."""
        with self._changed:
            self._held = set(cycles)
            return [cycle for cycle in cycles if cycle in self._busy]

    def adopt(self, held: Sequence[Cycle] = ()) -> None:
        """Start threads for new cycles of the run, and end those of removed cycles.

        Args:
            held: cycles that still start no transactions.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            at_work = bool(self._busy)
        if at_work:
            self._run.stop()
        for thread in list(self._threads.values()):
            thread.join(_PATIENCE)

    def look(self, cycles: Sequence[Cycle] | None = None) -> None:
        """Seal, and let cycles look for work once they are at rest.

        Args:
            cycles: cycles to look; None for all.

        Raises:
            FencedError: another run has fenced this run.
        """
        now = self._run.seal(cycles)
        with self._changed:
            if self._error:
                raise self._error
            self._now = now
            self._due.update(self._run.cycles if cycles is None else cycles)
            self._changed.notify_all()

    def watch(self) -> None:
        """Let the cycles look that may have work since the last look.

        Raises:
            FencedError: another run has fenced this run.
        """
        cycles = self._run.find_news()
        if cycles is not None:
            self.look(cycles)
        with self._changed:
            if self._error:
                raise self._error

    def step(self) -> bool:
        """Seal, and advance every task as far as possible; return whether documents were processed or time moved.

        Raises:
            FencedError: another run has fenced this run.
        """
        self._moved = False
        self.look()
        while not self._wait(RENEW_SECONDS):
            self._run.renew()
        return self._moved

    def _wait(self, seconds: float) -> bool:
        """Wait until every cycle is at rest; return False after `seconds`."""
        with self._changed:
            at_rest = self._changed.wait_for(lambda: self._error or not (self._due or self._busy), seconds)
            if self._error:
                raise self._error
            return bool(at_rest)

    def _work(self, cycle: Cycle) -> None:
        while self._begin(cycle):
            try:
                with self._turns:
                    moved = self._run.advance(cycle, self._now)
            except BaseException as error:  # any error is raised again in the thread of the run
                self._end(cycle, moved=False, error=error)
                return
            self._end(cycle, moved=moved)

    def _begin(self, cycle: Cycle) -> bool:
        """Wait until there may be work; return False once the cycle is removed or the scheduler stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over(cycle) or (cycle in self._due and cycle not in self._held))
            if self._is_over(cycle):
                return False
            self._due.discard(cycle)
            self._busy.add(cycle)
            return True

    def _is_over(self, cycle: Cycle) -> bool:
        return self._stopping or self._threads.get(cycle) is not threading.current_thread()

    def _end(self, cycle: Cycle, *, moved: bool, error: BaseException | None = None) -> None:
        with self._changed:
            self._busy.discard(cycle)
            self._error = self._error or error
            if moved:
                self._moved = True
                self._due.update((cycle, *self._run.lineup.readers[cycle]))
            self._changed.notify_all()
