"""The event loop of a module: it waits for no real time, and reports a wait that can never end.

The time of the loop is its own. When all tasks wait, the time jumps to the next timer, so `asyncio.sleep` takes no time
and tasks continue in the same order in every run. A module with permission to use the network has an ordinary loop.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from typing import Any


class EndlessWaitError(RuntimeError):
    """All tasks wait, and neither a timer nor a thread can wake one of them."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready descriptors; instead of waiting, move the time of the loop."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if threading.active_count() > 1:
            return super().select(None if timeout is None else min(timeout, 0.05))
        if timeout is None:
            raise EndlessWaitError("the module waits for an event that can never come")
        self._loop.skip(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps from timer to timer."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Return the time of the loop in seconds."""
        return self._seconds

    def renew(self) -> None:
        """Begin at the time 0 again, for the next document, unless a task still waits for a timer."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if self._seconds and all(timer.cancelled() for timer in timers):
            for timer in timers:
                timer._scheduled = False  # type: ignore[attr-defined]
            timers.clear()
            self._timer_cancelled_count = 0
            self._seconds = 0.0

    def skip(self, seconds: float) -> None:
        """Move the time forward."""
        # a timer is due only after its time, so the time moves by the least possible amount more
        self._seconds = math.nextafter(self._seconds + seconds, math.inf)


class Failures:
    """Errors of tasks that no task awaits.

    Attributes:
        first: the first error; None without one.
    """

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an error from the event loop."""
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        if self.first is None:
            self.first = error

    def check(self) -> None:
        """Raise the first error, and forget it; return if there is none."""
        if self.first is not None:
            error, self.first = self.first, None
            raise error
