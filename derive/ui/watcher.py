"""Notification of pages: one thread waits for commits, and all open pages are notified by server-sent events.

The thread runs while a page is open. A page loads its live part again at each event.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from derive.errors import FlowError
from derive.ui.folder import Folder

_LEAST_SECONDS = 0.5
"""Shortest time between two events."""

_MOST_SECONDS = 60.0
"""Longest time between two events: lags and rates change without a commit, too."""

_COST_SHARE = 10
"""Ratio of the time between two events to the time that the overview of the tasks takes."""

_LOOK_SECONDS = 1.0
"""Time after which the thread checks whether pages are open."""


class Watcher:
    """Notifies pages of commits.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._is_closed = False
        self._turn = threading.Lock()
        self._pages: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._thread: threading.Thread | None = None

    async def events(self, since: str) -> AsyncIterator[str]:
        """Yield the version of the data folder at each event, until `close`.

        Args:
            since: version that the page shows; if the data folder has another version, an event follows at once.
        """
        changed = asyncio.Event()
        with self._turn:
            self._pages[changed] = asyncio.get_running_loop()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
                self._thread.start()
        try:
            version = await asyncio.to_thread(self._version)
            if version != since:
                yield version
            while not self._is_closed:
                await changed.wait()
                changed.clear()
                if not self._is_closed:
                    yield await asyncio.to_thread(self._version)
        finally:
            with self._turn:
                del self._pages[changed]

    def close(self) -> None:
        """End all streams of events."""
        self._is_closed = True
        self._notify()

    def _version(self) -> str:
        try:
            return self._folder.version()
        except FlowError as error:  # the page shows the error
            return f"error {error.message}"

    def _watch(self) -> None:
        """Notify all pages of commits, until no page is open."""
        shown = self._version()
        while self._wait_for_commit(shown):
            begun = time.monotonic()
            shown = self._version()
            self._notify()
            with suppress(FlowError):  # the page shows the error
                self._folder.overview()
            time.sleep(max(_LEAST_SECONDS, _COST_SHARE * (time.monotonic() - begun)))

    def _wait_for_commit(self, shown: str) -> bool:
        """Wait for a commit, or for the longest time between two events; return false if no page is open.

        Args:
            shown: version of the data folder at the last event.
        """
        end = time.monotonic() + _MOST_SECONDS
        while time.monotonic() < end:
            with self._turn:
                if not self._pages or self._is_closed:
                    self._thread = None
                    return False
            try:
                changes = self._folder.store().changes
                mark = changes.mark()
                if self._version() != shown:
                    return True
                changes.wait(mark, _LOOK_SECONDS)
            except FlowError:
                time.sleep(_LOOK_SECONDS)
        return True

    def _notify(self) -> None:
        with self._turn:
            for changed, loop in self._pages.items():
                loop.call_soon_threadsafe(changed.set)
