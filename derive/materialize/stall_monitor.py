"""Silence: connectors that are waited for, and do not answer, are told of in the logs of their tasks.

However long an endpoint takes for a commit, nothing is gained by giving it up: it would be done again. So nothing is,
and who wonders why nothing comes finds out. A connector whose machine is gone ends its stream by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

_FIRST_SECONDS, _LOOK_SECONDS = 60.0, 5.0


class Silence:
    """Tells how long somebody has not answered: after a minute, after two, after four and so on; and when it is over.

    Args:
        name: who is waited for.
        tell: told what there is to say.
        seconds: the first pause that is told of.
    """

    def __init__(self, name: str, tell: Callable[[str], None], seconds: float = _FIRST_SECONDS) -> None:
        self._name = name
        self._tell = tell
        self._seconds = seconds
        self._begun: float | None = None
        self._due = 0.0

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Note that an answer is waited for, as long as the block takes."""
        self._begun, self._due = time.monotonic(), self._seconds
        try:
            yield
            silent = time.monotonic() - self._begun
            if self._due > self._seconds:
                self._tell(f"{self._name} has answered after {silent:.0f} s")
        finally:
            self._begun = None

    def look(self) -> None:
        """Tell of an answer that is long in coming."""
        begun = self._begun
        if begun is None or time.monotonic() - begun < self._due:
            return
        self._tell(
            f"{self._name} has not answered for {self._due:.0f} s; it is waited for until it does, it ends, or this run"
            " is stopped"
        )
        self._due *= 2


class SilenceWatch:
    """Looks at all silences of a process, on one thread.

    Args:
        every: seconds from one look to the next.
    """

    def __init__(self, every: float = _LOOK_SECONDS) -> None:
        self._every = every
        self._silences: WeakSet[Silence] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, silence: Silence) -> Silence:
        """Look at one from now on, for as long as it is used."""
        with self._lock:
            self._silences.add(silence)
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._work, name="silence", daemon=True)
                self._thread.start()
        return silence

    def _work(self) -> None:
        while True:
            time.sleep(self._every)
            with self._lock:
                silences = list(self._silences)
            for silence in silences:
                silence.look()
            del silences


WATCH = SilenceWatch()
"""That of this process."""
