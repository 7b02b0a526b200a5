"""The event loop of servers and clients: handover of items from other threads, and work that runs to completion."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the fastest installed kind."""
    if sys.platform != "win32":  # uvloop does not support Windows
        try:
            import uvloop
        except ImportError:  # uvloop supports CPython only
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


T = TypeVar("T")

_MOST = 8

_LOOK_SECONDS = 0.1

_MAKING = threading.Lock()


class Handover(Generic[T]):
    """A queue that any thread fills and one coroutine empties; it is created in the event loop.

    Most items arrive from the event loop's own thread before the coroutine waits. The event and the condition are
    therefore created at the first wait.

    Args:
        is_patient: returns true if threads wait while the queue is full. The event loop's own thread never waits.
    """

    __slots__ = ("_arrival", "_is_closed", "_is_patient", "_items", "_loop", "_room", "_thread")

    def __init__(self, *, is_patient: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._items: deque[T] = deque()
        self._arrival: asyncio.Event | None = None
        self._is_patient, self._is_closed = is_patient, False
        self._room: threading.Condition | None = None

    def __len__(self) -> int:
        """Return the number of items in the queue."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Append an item; discard the item if the queue is closed."""
        if threading.get_ident() == self._thread:
            self._items.append(item)
            self._notify()
            return
        room = self._made_room()
        with room:
            while not room.wait_for(self._has_room, _LOOK_SECONDS):
                pass  # No event marks the end of patience, so wake up and ask again.
            if self._is_closed:
                return
            self._items.append(item)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._notify)

    async def get(self, seconds: float | None = None) -> T | None:
        """Remove and return the first item; return None if the queue stays empty for `seconds`."""
        if self._arrival is None:
            self._arrival = asyncio.Event()
        if seconds is not None and not self._items:
            self._arrival.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), seconds)
            return self.get_nowait()
        while not self._items:  # an earlier get_nowait may have removed the item of this notification
            self._arrival.clear()
            await self._arrival.wait()
        return self.get_nowait()

    def get_nowait(self) -> T | None:
        """Remove and return the first item; return None if the queue is empty."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._notify_room()
        return item

    def close(self) -> None:
        """Discard all items, present and future, and wake the threads that wait for room."""
        with self._made_room():
            self._is_closed = True
            self._items.clear()
        self._notify_room()

    def _has_room(self) -> bool:
        return self._is_closed or not self._is_patient() or len(self._items) < _MOST

    def _notify(self) -> None:
        if self._arrival is not None:
            self._arrival.set()

    def _made_room(self) -> threading.Condition:
        with _MAKING:
            if self._room is None:
                self._room = threading.Condition()
            return self._room

    def _notify_room(self) -> None:
        # A waiting thread creates the condition before it checks for room, and checks before it waits.
        if self._room is not None:
            with self._room:
                self._room.notify_all()


async def settled(work: Awaitable[T]) -> T:
    """Await work to completion even if the caller is cancelled, and return its result.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and the work failed.
    """
    task, is_cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled and (failure := task.exception()):
        raise asyncio.CancelledError from failure
    return task.result()
