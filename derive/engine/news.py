"""News: which tasks of a run that goes on may have something to do, and when; an idle run costs next to nothing.

To look for work is to seal the sources, and then to say of each derivation how far time has come. That is worth it for
a cycle of tasks when the tick of a document that waits for it has ended, which is found without a commit: when another
process calls that it has committed documents, and when the cycle is done with those it had. Otherwise to look now and
then is enough, and tells readers that nothing has happened.

A cycle that cannot go on when it is due waits for somebody else, who may be another run: that one is called, and lets
time move on in what it derives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

from derive.storage.changes import Call
from derive.storage.roles import Sealable

Cycle: TypeAlias = tuple[str, ...]
"""Names of tasks that read one another."""

IDLE = 5_000_000
"""How often all look where nothing happens, microseconds."""

REST = 100_000
"""How long after a call all look, microseconds: another run may wait for time to move on in what this one derives."""

_SHORTEST, _LONGEST = 20_000, 1_000_000
"""How long a cycle is left alone that is due and cannot go on, at first and in the end, microseconds."""

_STORM = 5_000
"""How long after a call others are not heard, microseconds."""


class Due(NamedTuple):
    """When a cycle has something to do.

    Attributes:
        at: the end of the first tick in which a document waits for it, a clock.
        is_held: somebody writes a source who does not let it become final up to then, and will call.
    """

    at: int
    is_held: bool = False


class News:
    """When to look, and at which cycles. Threads may use it at the same time, one of them all of it.

    Args:
        store: where it happens.
        cycles: all of the run.
        find_due: finds out, without a commit, when a cycle has something to do; None if no document waits for it.
    """

    def __init__(self, store: Sealable, cycles: Sequence[Cycle], find_due: Callable[[Cycle], Due | None]) -> None:
        self._store = store
        self._cycles = cycles
        self._find_due = find_due
        self._turn = threading.Lock()
        self._at: dict[Cycle, int] = {}
        self._pauses: dict[Cycle, int] = {}
        self._call: Call | None = None
        self._heard = self._all_at = 0

    def change(self, cycles: Sequence[Cycle]) -> None:
        """The run has these cycles from here on, and all look."""
        with self._turn:
            self._cycles = cycles
            self._at = {cycle: at for cycle, at in self._at.items() if cycle in cycles}
            self._all_at = 0

    def look(self, cycles: Collection[Cycle]) -> None:
        """Begin to look at cycles; what others commit from here on is news."""
        if len(cycles) == len(self._cycles):
            self._call = self._store.changes.call()
            _, elapsed = self._store.timeline.elapsed()
            self._all_at = elapsed + IDLE
        with self._turn:
            for cycle in cycles:
                self._at.pop(cycle, None)

    def begin(self, cycle: Cycle) -> None:
        """Note that a cycle looks: whatever was committed before, it will see."""
        with self._turn:
            self._at.pop(cycle, None)

    def rest(self, cycle: Cycle, due: int | None, now: int) -> None:
        """Note that a cycle has looked and has nothing to do.

        Args:
            cycle: has begun to look before.
            due: the end of the first tick in which a document waits for it; None if none waits.
            now: up to which the sources were sealed.
        """
        is_stuck = due is not None and due <= now
        with self._turn:
            if not is_stuck:
                self._pauses.pop(cycle, None)
            wake = now + self._pause(cycle) if is_stuck else due
            is_first = wake is not None and self._wake(cycle, wake)
        if is_stuck:
            self._store.changes.call_others()
        if is_first:
            self._store.changes.nudge()

    def _pause(self, cycle: Cycle) -> int:
        """How long to leave a cycle alone that cannot go on: longer each time."""
        pause = self._pauses[cycle] = min(2 * self._pauses.get(cycle, _SHORTEST // 2), _LONGEST)
        return pause

    def _wake(self, cycle: Cycle, at: int) -> bool:
        """Look at a cycle by a time; returns whether that is before any other is looked at."""
        first = min(self._at.values(), default=None)
        self._at[cycle] = min(at, self._at.get(cycle, at))
        return first is None or at < first

    def find(self) -> Collection[Cycle] | None:
        """Cycles that may have something to do now; None if there is no need to look."""
        _, elapsed = self._store.timeline.elapsed()
        call = self._store.changes.call()
        if self._call is None:
            return self._cycles
        if call.others != self._call.others and elapsed - self._heard >= _STORM:
            self._call, self._heard = call, elapsed
            self._all_at = min(self._all_at, elapsed + REST)
            self._survey()
        if elapsed >= self._all_at:
            return self._cycles
        with self._turn:
            waiting = dict(self._at)
        if not waiting:
            return None
        present = self._store.timeline.present()
        return [cycle for cycle, at in waiting.items() if at <= present] or None

    def _survey(self) -> None:
        """Find out when each cycle is due, now that others have called."""
        present = self._store.timeline.present()
        for cycle in self._cycles:
            due = self._find_due(cycle)
            if due is not None:
                is_in_vain = due.is_held and due.at <= present
                with self._turn:
                    self._wake(cycle, present + REST if is_in_vain else due.at)

    def wait(self, seconds: float) -> None:
        """Wait until there may be news, but not longer than so many seconds."""
        call = self._store.changes.call()  # before looking at what may change with one
        _, elapsed = self._store.timeline.elapsed()
        left = [int(seconds * 1e6)]
        if self._call is not None:
            left.append(self._all_at - elapsed)
            if call.others != self._call.others:
                left.append(self._heard + _STORM - elapsed)
        with self._turn:
            first = min(self._at.values(), default=None)
        if first is not None:
            left.append(first - self._store.timeline.present())
        self._store.changes.wait_for_call(call, max(0, min(left)) / 1e6)
