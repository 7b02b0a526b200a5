"""Notifications of commits, so that waiting callers do not poll the metadata database.

A commit notifies waiting threads of this process at once, and other processes through the signal of the data folder.
Without a signal, a waiting process polls SQLite's data version, which is in shared memory and takes microseconds to
read. With a signal, it also polls, but rarely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from derive.storage.metadata.database import Listener, Metadata

_LOOK_SECONDS = 0.02
"""Poll interval of a caller without a commit signal."""

_DOUBT_SECONDS = 1.0
"""Poll interval of a caller with a commit signal, because a process may be killed between its commit and the signal."""


class Mark(NamedTuple):
    """A position in the sequence of commits.

    Attributes:
        own: counter of this store's commits.
        others: data version, which changes with commits of other stores.
    """

    own: int
    others: int


class Wakes(NamedTuple):
    """A position in the sequence of wake-ups.

    Attributes:
        others: counter of other stores' commits that wake waiting tasks.
        own: counter of this store's own wake-ups.
    """

    others: int
    own: int


class Changes:
    """Commits and wake-ups in one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._wakes = 0

    def mark(self) -> Mark:
        """Return the present position. A caller calls this before it checks its condition."""
        return Mark(self._metadata.notifications, self._metadata.version_seen())

    def version(self) -> int:
        """Return a number that changes with commits of other stores."""
        return self._metadata.version()

    def wait(self, mark: Mark, seconds: float) -> bool:
        """Wait until a commit follows a mark.

        A change without a notification, such as the progress of time, ends the wait only at the next notification or
        at the time limit.

        Args:
            mark: position before the wait.
            seconds: time limit.

        Returns:
            False if the time limit passed without a commit.
        """
        metadata = self._metadata
        return self._wait(
            lambda listener: metadata.notifications != mark.own or metadata.version_seen(listener) != mark.others,
            seconds,
        )

    def wakes(self) -> Wakes:
        """Return the present wake-ups. A caller calls this before it checks its condition."""
        return Wakes(self._metadata.wakes(), self._wakes)

    def wake_others(self) -> None:
        """Wake waiting tasks of other stores without a commit of data."""
        self._metadata.wake()

    def wake(self) -> None:
        """Wake waiting tasks of this store."""
        self._wakes += 1
        self._metadata.notify(others=True, is_urgent=True)

    def hurry(self) -> None:
        """Wake listeners now if their wake-up is delayed."""
        self._metadata.hurry()

    def wait_for_wake(self, wakes: Wakes, seconds: float) -> bool:
        """Wait for a wake-up.

        Args:
            wakes: wake-ups before the wait.
            seconds: time limit.

        Returns:
            False if the time limit passed without a wake-up.
        """
        return self._wait(lambda _: self.wakes() != wakes, seconds)

    def settle(self) -> None:
        """Sync all commits so far; a caller does this before it reports commits to a client."""
        self._metadata.settle()

    def _wait(self, is_over: Callable[[Listener | None], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self._metadata.commit_signal.listener() as listener:
            while True:
                if listener is not None:
                    listener.forget()
                notifications = self._metadata.notifications
                if is_over(listener):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if listener is not None:
                    listener.listen(min(left, _DOUBT_SECONDS))
                else:
                    self._metadata.wait(notifications, min(left, _LOOK_SECONDS))
