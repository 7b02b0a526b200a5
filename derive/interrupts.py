"""Ctrl-C during requests to other machines.

A client that waits for an answer blocks its thread, and Python handles no signal while its main thread is blocked. So
such a request is made in a helper thread, and the caller waits in a way that a signal ends. After the first Ctrl-C,
requests in flight have some seconds to end; after the second one, none. The helper of a request that was abandoned is
left behind, because the process is about to end.

Only a process that calls `handle_interrupts`, and so ends after Ctrl-C, has helpers: in other processes, requests are
made in the thread of the caller.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 3.0
"""Time after the first Ctrl-C for which requests in flight may go on."""

_POLL_SECONDS = 0.25

_received: list[float] = []
"""Times of the interrupts of this process, on the monotonic clock."""


class AbandonedError(Exception):
    """A request was abandoned after Ctrl-C; whether it took effect is unknown."""


def handle_interrupts() -> None:
    """Let SIGINT and SIGTERM, which supervisors send, end requests in flight, and raise `KeyboardInterrupt`.

    A background job of a shell ignores SIGINT, and continues to ignore it.
    """
    signal.signal(signal.SIGTERM, _handle)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _handle)


def handles_interrupts() -> bool:
    """Return whether this process has called `handle_interrupts`."""
    return signal.getsignal(signal.SIGTERM) is _handle


def _handle(_number: int, _frame: FrameType | None) -> None:
    _received.append(time.monotonic())
    raise KeyboardInterrupt


def is_abandoned() -> bool:
    """Return whether requests in flight are abandoned."""
    return bool(_received) and (len(_received) > 1 or time.monotonic() - _received[0] > GRACE_SECONDS)


def pause(seconds: float) -> None:
    """Wait before a request is repeated.

    Raises:
        AbandonedError: Ctrl-C was pressed.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if is_abandoned():
            raise AbandonedError
        time.sleep(min(left, _POLL_SECONDS))


def made(request: Callable[[], T]) -> T:
    """Make a request, and return its result.

    Raises:
        AbandonedError: Ctrl-C was pressed, and the request has not ended.
    """
    if not handles_interrupts():
        return request()
    helper = _idle.pop() if _idle else _Helper()
    return helper.make(request)


class _Helper:
    """A thread that makes requests, one at a time."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]]]
        self._requests = SimpleQueue()
        threading.Thread(target=self._work, name="requests", daemon=True).start()

    def make(self, request: Callable[[], T]) -> T:
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._requests.put((request, answers))
        while True:
            try:
                result, error = answers.get(timeout=_POLL_SECONDS)
                break
            except Empty:
                if is_abandoned():
                    raise AbandonedError from None
        _idle.append(self)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _work(self) -> None:
        while True:
            request, answers = self._requests.get()
            try:
                answers.put((request(), None))
            except BaseException as error:  # it is raised where the request was made
                answers.put((None, error))
            del request, answers


_idle: list[_Helper] = []
"""Helpers without a request."""

os.register_at_fork(after_in_child=_idle.clear)
