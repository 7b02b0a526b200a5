"""Notification of pages: one thread waits for commits, and all open pages are notified by server-sent events.

The thread runs while a page is open. A page loads its live part again at each event. A run without work commits every
few seconds, because time passes; an event follows only if a commit changes more than times.
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

_LEAST_LOOK_SECONDS = 0.1
"""Shortest time between two checks of the facts."""

_LOOK_SECONDS = 1.0
"""Time after which the thread checks whether pages are open, and whether the catalog was edited."""


class Budget:
    """The processor time that updates may take: a tenth of a processor, and more for some seconds after a quiet time.

    So a commit after a quiet time shows at once, and many commits do not keep a processor busy.

    Args:
        now: present time in seconds, of any clock.
    """

    _SHARE = 10
    _SAVED_SECONDS = 10.0

    def __init__(self, now: float) -> None:
        self._paid = now - self._SAVED_SECONDS

    def pause(self, now: float, spent: float) -> float:
        """Return the seconds until the next update.

        Args:
            now: present time.
            spent: processor time of this update, in seconds.
        """
        self._paid = max(self._paid, now - self._SAVED_SECONDS) + self._SHARE * spent
        return max(0.0, self._paid - now)


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
        """Notify all pages of changed facts, until no page is open."""
        seen, shown = self._state(), self._facts()
        due = time.monotonic() + _MOST_SECONDS
        budget = Budget(time.monotonic())
        while self._wait_for_change(seen, due):
            begun, spent = time.monotonic(), time.thread_time()
            seen, facts = self._state(), self._facts()
            least = _LEAST_LOOK_SECONDS
            if facts != shown or begun >= due:
                shown, due, least = facts, begun + _MOST_SECONDS, _LEAST_SECONDS
                self._notify()
                with suppress(FlowError):  # the page shows the error
                    self._folder.overview()
            time.sleep(max(least, budget.pause(time.monotonic(), time.thread_time() - spent)))

    def _wait_for_change(self, seen: object, due: float) -> bool:
        """Wait for a commit, or for an edit of the catalog, until a time; return false if no page is open.

        Args:
            seen: the state after the last change.
            due: the monotonic time.
        """
        while True:
            with self._turn:
                if not self._pages or self._is_closed:
                    self._thread = None
                    return False
            left = due - time.monotonic()
            changes = mark = None
            with suppress(FlowError):
                changes = self._folder.store().changes
                mark = changes.mark()
            if left <= 0 or self._state() != seen:
                return True
            if changes is None or mark is None:
                time.sleep(_LOOK_SECONDS)
                continue
            with suppress(FlowError):  # the next state has the error
                changes.wait(mark, min(left, _LOOK_SECONDS))

    def _state(self) -> object:
        """Return a value that differs after each commit, and after each edit of the catalog."""
        try:
            return self._folder.version(), self._folder.catalog()
        except FlowError as error:
            return error.message

    def _facts(self) -> object:
        try:
            return self._folder.facts()
        except FlowError as error:
            return error.message

    def _notify(self) -> None:
        with self._turn:
            for changed, loop in self._pages.items():
                loop.call_soon_threadsafe(changed.set)
