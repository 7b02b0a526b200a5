"""Tidying: a run that goes on merges small segments now and then, beside its transactions, which do not wait for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType

EVERY_SECONDS = 60.0
"""How often there may be something to tidy."""

_PATIENCE_SECONDS = 10.0

_SWITCH_SECONDS = 0.0005
"""How long a thread that tidies keeps others waiting."""


class Tidying:
    """Tidies in a thread of its own, for as long as the block takes.

    Args:
        tidy: does it.
        every: seconds from one time to the next.
    """

    def __init__(self, tidy: Callable[[], None], every: float = EVERY_SECONDS) -> None:
        self._tidy = tidy
        self._every = every
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="tidying", daemon=True)

    def __enter__(self) -> Tidying:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def check(self) -> None:
        """Raise what went wrong since the last time, if anything did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while not self._over.wait(self._every):
            before = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            try:
                self._tidy()
            except BaseException as error:  # whatever it is, it is raised where the run was started
                self._error = error
            finally:
                sys.setswitchinterval(before)
