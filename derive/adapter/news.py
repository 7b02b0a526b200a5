"""News: a thread that waits for commits in the data folder, by whatever process, and tells the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from derive.errors import FlowError
from derive.storage.changes import Changes

_SECONDS = 0.5
"""How long nothing is looked at where nothing is committed."""


class News:
    """Tells of commits.

    Args:
        changes: of the data folder.
        work: done by the thread after each; it returns whether there is more to do.
    """

    def __init__(self, changes: Changes, work: Callable[[], bool] = lambda: False) -> None:
        self._changes = changes
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="flowctl-sql-news", daemon=True)
        self._thread.start()

    @property
    def next(self) -> asyncio.Event:
        """Set with the next news. Whoever waits asks for it first, and then looks whether there is need to wait."""
        return self._told

    async def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._changes.nudge()
        await asyncio.to_thread(self._thread.join)

    def _listen(self) -> None:
        while not self._is_closed:
            mark = self._changes.mark()
            try:
                has_more = self._work()
            except FlowError:  # it is tried again with the next news
                has_more = False
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell)
            if not has_more:
                self._changes.wait(mark, _SECONDS)

    def _tell(self) -> None:
        self._told.set()
        self._told = asyncio.Event()
