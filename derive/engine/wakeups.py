"""Wake-ups: the times at which tasks of a continuous run may have work. With them, an idle run costs almost nothing.

A look for work seals the sources, and then computes the upper of each derivation. A look pays off when the tick of a
waiting document has ended. These times are computed without a commit, after two events: another process notifies of
committed documents, or a cycle has finished its documents. Apart from these looks, an occasional look at all cycles
advances their uppers for readers.

A cycle that is due and cannot advance waits for another process, perhaps another run. The other process is notified,
and advances the time of its derivations.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

from derive.backoff import Backoff
from derive.storage.changes import Wakes
from derive.storage.roles import Sealable

Cycle: TypeAlias = tuple[str, ...]
"""Names of tasks that read one another."""

IDLE = 5_000_000
"""Interval between looks at all cycles in a time without notifications, microseconds."""

REST = 100_000
"""Delay from a notification to a look at all cycles, microseconds: another run may wait for this run's time."""

_BACKOFF = Backoff(20_000, 1_000_000)
"""Pauses, in microseconds, between looks at a cycle that is due and cannot advance."""

_STORM = 5_000
"""Interval after a notification in which later notifications are ignored, microseconds."""


class Due(NamedTuple):
    """The time when a cycle has work.

    Attributes:
        at: end of the first tick with a waiting document, a timestamp.
        is_held: whether another writer keeps a source from being final up to `at`; this writer will notify.
    """

    at: int
    is_held: bool = False


class Wakeups:
    """Schedules looks at cycles. Threads of cycles call `begin` and `rest`, and one thread calls the other methods.

    Args:
        store: the data folder.
        cycles: all cycles of the run.
        find_due: returns, without a commit, when a cycle has work; None if no document waits for the cycle.
    """

    def __init__(self, store: Sealable, cycles: Sequence[Cycle], find_due: Callable[[Cycle], Due | None]) -> None:
        self._store = store
        self._cycles = cycles
        self._find_due = find_due
        self._turn = threading.Lock()
        self._at: dict[Cycle, int] = {}
        self._stuck: Counter[Cycle] = Counter()
        self._wakes: Wakes | None = None
        self._heard = self._all_at = 0

    def change(self, cycles: Sequence[Cycle]) -> None:
        """Replace the cycles of the run, and look at all cycles."""
        with self._turn:
            self._cycles = cycles
            self._at = {cycle: at for cycle, at in self._at.items() if cycle in cycles}
            self._all_at = 0

    @property
    def expecting(self) -> Collection[Cycle]:
        """Return the cycles at which a look is scheduled, because a document waits for them."""
        with self._turn:
            return set(self._at)

    def look(self, cycles: Collection[Cycle]) -> None:
        """Begin to look at cycles; later commits of other processes count as new."""
        if len(cycles) == len(self._cycles):
            self._wakes = self._store.changes.wakes()
            _, elapsed = self._store.timeline.elapsed()
            self._all_at = elapsed + IDLE
        with self._turn:
            for cycle in cycles:
                self._at.pop(cycle, None)

    def begin(self, cycle: Cycle) -> None:
        """Record that a cycle looks for work; the look includes all commits until now."""
        with self._turn:
            self._at.pop(cycle, None)

    def rest(self, cycle: Cycle, due: int | None, now: int) -> None:
        """Record that a cycle has looked and has no work.

        Args:
            cycle: a cycle that has begun to look.
            due: end of the first tick with a waiting document; None if missing.
            now: timestamp up to which the sources were sealed.
        """
        is_stuck = due is not None and due <= now
        with self._turn:
            if not is_stuck:
                self._stuck.pop(cycle, None)
            wake = now + self._pause(cycle) if is_stuck else due
            is_first = wake is not None and self._wake(cycle, wake)
        if is_stuck:
            self._store.changes.wake_others()
        if is_first:
            self._store.changes.wake()

    def _pause(self, cycle: Cycle) -> int:
        """Return the pause of a cycle that cannot advance; each pause is longer than the previous pause."""
        self._stuck[cycle] += 1
        return int(_BACKOFF.pause(self._stuck[cycle]))

    def _wake(self, cycle: Cycle, at: int) -> bool:
        """Schedule a look at a cycle; return whether no other look is earlier."""
        first = min(self._at.values(), default=None)
        self._at[cycle] = min(at, self._at.get(cycle, at))
        return first is None or at < first

    def find(self) -> Collection[Cycle] | None:
        """Return the cycles that may have work now; None if no look is due."""
        _, elapsed = self._store.timeline.elapsed()
        wakes = self._store.changes.wakes()
        if self._wakes is None:
            return self._cycles
        if wakes.others != self._wakes.others and elapsed - self._heard >= _STORM:
            self._wakes, self._heard = wakes, elapsed
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
        """Compute when each cycle is due, after a notification."""
        present = self._store.timeline.present()
        for cycle in self._cycles:
            due = self._find_due(cycle)
            if due is not None:
                is_in_vain = due.is_held and due.at <= present
                with self._turn:
                    self._wake(cycle, present + REST if is_in_vain else due.at)

    def wait(self, seconds: float) -> None:
        """Wait for possible work, at most `seconds`."""
        wakes = self._store.changes.wakes()  # read before the state that a later notification may change
        _, elapsed = self._store.timeline.elapsed()
        left = [int(seconds * 1e6)]
        if self._wakes is not None:
            left.append(self._all_at - elapsed)
            if wakes.others != self._wakes.others:
                left.append(self._heard + _STORM - elapsed)
        with self._turn:
            first = min(self._at.values(), default=None)
        if first is not None:
            left.append(first - self._store.timeline.present())
        self._store.changes.wait_for_wake(wakes, max(0, min(left)) / 1e6)
