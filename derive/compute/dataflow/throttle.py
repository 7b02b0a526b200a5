"""Throttling of background work: it pauses if others wait for processors.

A low priority decides the order of processes, but background work also empties the caches of a shared processor. So the
work pauses for as long as it has run, whenever it had to wait for a processor. Linux reports this waiting time; on
other systems, and with free processors, it never pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_MOST_WAITING = 0.05
"""Fraction of the running time spent waiting for a processor from which on the work pauses."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Throttle:
    """Pauses the work of one thread from time to time.

    Args:
        seconds: approximate duration of a run, and of a pause.
        waited: returns the seconds that the thread has waited for a processor so far.
        clock: returns seconds.
        sleep: sleeps for the given seconds.
    """

    def __init__(
        self,
        seconds: float,
        waited: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds, self._waited = seconds, waited or waited_seconds
        self._clock, self._sleep = clock, sleep
        self._begin()

    def pause(self) -> None:
        """Pause, if it is time. Called every few milliseconds."""
        worked = self._clock() - self._begun
        if worked < self._seconds:
            return
        if self._waited() - self._waited_before > _MOST_WAITING * worked:
            self._sleep(min(worked, 2 * self._seconds))
        self._begin()

    def _begin(self) -> None:
        self._begun, self._waited_before = self._clock(), self._waited()


def waited_seconds() -> float:
    """Return the seconds that this thread has waited for a processor so far; 0 if the system does not report them."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
