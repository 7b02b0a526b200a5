"""Compaction in the background: a continuous run merges small segments from time to time, beside its transactions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

EVERY_SECONDS = 60.0
"""Interval between compactions, in seconds."""

_PATIENCE_SECONDS = 10.0

_SWITCH_SECONDS = 0.0005
"""Python's thread switch interval during a compaction, which bounds delays of other threads."""


class CompactionThread:
    """Runs compactions in a separate thread while the block runs.

    Args:
        compact: runs a compaction.
        every: seconds between two runs.
    """

    def __init__(self, compact: Callable[[], None], every: float = EVERY_SECONDS) -> None:
        self._compact = compact
        self._every = every
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="compaction", daemon=True)

    def __enter__(self) -> CompactionThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def check(self) -> None:
        """Raise the error of a compaction that failed after the last call, if there is one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while not self._over.wait(self._every):
            before = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            try:
                self._compact()
            except BaseException as error:  # `check` raises every error again
                self._error = error
            finally:
                sys.setswitchinterval(before)
