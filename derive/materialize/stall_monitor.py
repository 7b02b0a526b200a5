"""Stalls: a connector that does not answer for long is reported in the log of its task.

A slow commit of an endpoint is never given up, because it would have to be repeated. So users are told what a task
waits for. A connector whose machine is gone ends its stream by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

_FIRST_SECONDS, _LOOK_SECONDS = 60.0, 5.0


class Stall:
    """Reports how long an answer has been missing: after a minute, two, four and so on; and when it has arrived.

    Args:
        name: name of the connector.
        report: function called with each message.
        seconds: seconds until the first message.
    """

    def __init__(self, name: str, report: Callable[[str], None], seconds: float = _FIRST_SECONDS) -> None:
        self._name = name
        self._report = report
        self._seconds = seconds
        self._begun: float | None = None
        self._due = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the wait for an answer during the block."""
        self._begun, self._due = time.monotonic(), self._seconds
        try:
            yield
            silent = time.monotonic() - self._begun
            if self._due > self._seconds:
                self._report(f"{self._name} has answered after {silent:.0f} s")
        finally:
            self._begun = None

    def look(self) -> None:
        """Report an answer that has been missing for long."""
        begun = self._begun
        if begun is None or time.monotonic() - begun < self._due:
            return
        self._report(
            f"{self._name} has not answered for {self._due:.0f} s; it is waited for until it does, it ends, or this run"
            " is stopped"
        )
        self._due *= 2


class StallMonitor:
    """A thread that checks all waits of a process.

    Args:
        every: seconds between checks.
    """

    def __init__(self, every: float = _LOOK_SECONDS) -> None:
        self._every = every
        self._stalls: WeakSet[Stall] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, stall: Stall) -> Stall:
        """Check a wait from now on, as long as the object exists."""
        with self._lock:
            self._stalls.add(stall)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no thread
                self._thread = threading.Thread(target=self._work, name="stall monitor", daemon=True)
                self._thread.start()
        return stall

    def _work(self) -> None:
        while True:
            time.sleep(self._every)
            with self._lock:
                stalls = list(self._stalls)
            for stall in stalls:
                stall.look()
            del stalls


WATCH = StallMonitor()
"""The watch of this process."""
