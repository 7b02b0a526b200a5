"""Cancellation of the running statement, for functions that compute for long on one value.

SQLite checks for cancellation between steps of a statement, but not during a function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from derive.errors import SqlError


class _Running(threading.local):
    """The cancellation check of each thread."""

    cancelled: Callable[[], bool] | None = None


_RUNNING = _Running()


def cancellation() -> SqlError:
    """Return the error of a cancelled statement."""
    return SqlError("57014", "canceling statement due to user request")


class running:  # noqa: N801 (it is called as a function; a generator would cost a look-up more)
    """A context in which the work of this thread can be cancelled."""

    __slots__ = ("_cancelled", "_outer")

    def __init__(self, cancelled: Callable[[], bool] | None) -> None:
        self._cancelled = cancelled
        self._outer: Callable[[], bool] | None = None

    def __enter__(self) -> None:
        self._outer, _RUNNING.cancelled = _RUNNING.cancelled, self._cancelled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _RUNNING.cancelled = self._outer


def check_cancelled() -> None:
    """Check that the running statement may continue.

    Raises:
        SqlError: 57014, the statement is cancelled.
    """
    if _RUNNING.cancelled is not None and _RUNNING.cancelled():
        raise cancellation()
