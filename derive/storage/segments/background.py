"""Background: one piece of work at a time in another thread, while who asked for it goes on.

Encoding a row group holds no lock of Python's, so it costs a processor that idles, and nobody waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does one thing after the other; once something has failed nothing more is done, and all who wait are told."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin work, once the work before is done; where there can be no thread, do it.

        Raises:
            BaseException: whatever work before has failed with.
        """
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,), name="background")
        try:
            self._thread.start()
        except RuntimeError:  # there are as many as there may be
            self._thread = None
            self._do(work)

    def do(self, work: Callable[[], None]) -> None:
        """Do work here, once the work before is done.

        Raises:
            BaseException: whatever it, or work before, has failed with.
        """
        self.wait()
        self._do(work)
        self.wait()

    def join(self) -> None:
        """Wait until nothing is being done, whatever has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait until nothing is being done.

        Raises:
            BaseException: whatever work has failed with.
        """
        self.join()
        if self._error is not None:
            raise self._error

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # who waits is told of it
            self._error = error
