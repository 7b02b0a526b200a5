"""What other threads hand over to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 8

_LOOK_SECONDS = 0.1

_MAKING = threading.Lock()


class Handover(Generic[T]):
    """A queue that any thread fills, and one coroutine empties. It is made in the event loop.

    Most answers are there before anybody waits for them, in the event loop's own thread: what it takes to wait is made
    where somebody does.

    Args:
        is_patient: tells whether threads that fill it wait while it is full. The event loop's own thread never does.
    """

    __slots__ = ("_is_closed", "_is_patient", "_items", "_loop", "_news", "_room", "_thread")

    def __init__(self, *, is_patient: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._items: deque[T] = deque()
        self._news: asyncio.Event | None = None
        self._is_patient, self._is_closed = is_patient, False
        self._room: threading.Condition | None = None

    def __len__(self) -> int:
        """How much was not taken yet."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Hand something over; nothing if nobody takes it any more."""
        if threading.get_ident() == self._thread:
            self._items.append(item)
            self._tell()
            return
        room = self._made_room()
        with room:
            while not room.wait_for(self._has_room, _LOOK_SECONDS):
                pass  # nobody tells when patience has come to an end
            if self._is_closed:
                return
            self._items.append(item)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell)

    async def get(self, seconds: float | None = None) -> T | None:
        """What was handed over first; None if there is nothing for so long."""
        if self._news is None:
            self._news = asyncio.Event()
        if seconds is not None and not self._items:
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), seconds)
            return self.get_nowait()
        while not self._items:  # what was told of late may have been taken before
            self._news.clear()
            await self._news.wait()
        return self.get_nowait()

    def get_nowait(self) -> T | None:
        """What was handed over first; None if there is nothing."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._tell_room()
        return item

    def close(self) -> None:
        """Nobody takes anything any more; who waits to hand something over goes on."""
        with self._made_room():
            self._is_closed = True
            self._items.clear()
        self._tell_room()

    def _has_room(self) -> bool:
        return self._is_closed or not self._is_patient() or len(self._items) < _MOST

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    def _made_room(self) -> threading.Condition:
        with _MAKING:
            if self._room is None:
                self._room = threading.Condition()
            return self._room

    def _tell_room(self) -> None:
        # A thread that waits for room has made this before it has looked, and looks before it waits.
        if self._room is not None:
            with self._room:
                self._room.notify_all()
