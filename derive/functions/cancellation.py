"""Whether the statement at hand is to end, for functions that work for long on one value.

SQLite asks between steps of a statement, but not while a function runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from derive.errors import SqlError


class _Running(threading.local):
    """Of each thread: what tells whether to end."""

    cancelled: Callable[[], bool] | None = None


_RUNNING = _Running()


def cancellation() -> SqlError:
    """What a statement fails with that was cancelled."""
    return SqlError("57014", "canceling statement due to user request")


class running:  # noqa: N801 (it is called as a function; a generator would cost a look-up more)
    """In this block, what runs in this thread ends when it is cancelled."""

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
    """Check that the statement at hand may go on.

    Raises:
        SqlError: 57014, it is cancelled.
    """
    if _RUNNING.cancelled is not None and _RUNNING.cancelled():
        raise cancellation()
