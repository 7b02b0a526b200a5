"""Run one piece of work at a time in another thread.

Encoding a row group releases Python's lock, so it uses an idle processor while the caller continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs pieces of work one after the other; after a failure all later calls raise its error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Start work in the thread after the previous work has ended; run it here if no thread can start.

        Raises:
            BaseException: error of the previous work.
        """
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,), name="background")
        try:
            self._thread.start()
        except RuntimeError:  # the limit of threads is reached
            self._thread = None
            self._do(work)

    def do(self, work: Callable[[], None]) -> None:
        """Run work here after the previous work has ended.

        Raises:
            BaseException: error of this or the previous work.
        """
        self.wait()
        self._do(work)
        self.wait()

    def join(self) -> None:
        """Wait until the work has ended, and ignore errors."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait until the work has ended.

        Raises:
            BaseException: error of the work.
        """
        self.join()
        if self._error is not None:
            raise self._error

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised in the waiting thread
            self._error = error
