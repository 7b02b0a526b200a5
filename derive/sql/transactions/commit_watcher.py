"""The commit watcher: a thread that waits for commits of any process in the data folder, and wakes the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from derive.backoff import Backoff
from derive.storage.changes import Changes

_SECONDS = 0.5
"""Longest wait for a commit, in seconds."""

_BACKOFF = Backoff(_SECONDS, 30.0)
"""Pauses, in seconds, before failed work is retried."""


class CommitWatcher:
    """A watcher of commits that wakes the event loop.

    Args:
        changes: commits of the data folder.
        work: a function that the thread runs after each commit; returns whether more work remains. Failed work is
            retried after a pause that doubles.
        report: a function that gets the error of each failure, and None after recovery.
    """

    def __init__(
        self,
        changes: Changes,
        work: Callable[[], bool] = lambda: False,
        report: Callable[[Exception | None], None] = lambda _: None,
    ) -> None:
        self._changes, self._work, self._report = changes, work, report
        self._due, self._failures = 0.0, 0
        self._loop = asyncio.get_running_loop()
        self._commit = asyncio.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="flowctl-sql-commits", daemon=True)
        self._thread.start()

    @property
    def next(self) -> asyncio.Event:
        """Return the event of the next commit; get the event before checking whether to wait."""
        return self._commit

    def notify(self) -> None:
        """Notify the waiting tasks, from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._notify)

    async def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        self._changes.wake()
        await asyncio.to_thread(self._thread.join)

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                mark = self._changes.mark()
                has_more = self._attempt()
                self.notify()
                if not has_more:
                    self._changes.wait(mark, _SECONDS)
            except Exception as error:
                self._fail(error)
                self._closing.wait(_SECONDS)

    def _attempt(self) -> bool:
        """Run the work unless a retry is not yet due; return whether more work remains."""
        if time.monotonic() < self._due:
            return False
        try:
            has_more = self._work()
        except Exception as error:
            self._fail(error)
            return False
        if self._failures:
            self._failures = 0
            self._report(None)
        return has_more

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._due = time.monotonic() + _BACKOFF.pause(self._failures)
        self._report(error)

    def _notify(self) -> None:
        self._commit.set()
        self._commit = asyncio.Event()
