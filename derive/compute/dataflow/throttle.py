"""Work that nobody waits for rests where others wait for processors.

Low priority decides who goes first, but not what the work costs those who do: it empties the caches of a processor that
others use in turn. So it rests for as long as it has gone on, whenever it had to wait for a processor itself. Linux
tells how long that was; elsewhere, and where processors are free, it never rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_MOST_WAITING = 0.05
"""It rests if it has waited for a processor for more than this part of the time that it went on."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Throttle:
    """Has the work of one thread rest now and then.

    Args:
        seconds: about how long it goes on, and rests, at a time.
        waited: tells for how many seconds the thread has waited for a processor so far.
        clock: counts seconds.
        sleep: for so many seconds.
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
        """Rest, if it is time to. It is called again and again, every few milliseconds."""
        worked = self._clock() - self._begun
        if worked < self._seconds:
            return
        if self._waited() - self._waited_before > _MOST_WAITING * worked:
            self._sleep(min(worked, 2 * self._seconds))
        self._begin()

    def _begin(self) -> None:
        self._begun, self._waited_before = self._clock(), self._waited()


def waited_seconds() -> float:
    """For how many seconds this thread has waited for a processor so far; 0 where no system tells."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
