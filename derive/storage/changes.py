"""Changes: whoever waits for something to be committed is told, instead of asking for it over and over.

In this process a commit tells at once. Other processes are told by the bell of the data folder of what they may wait
for, and find anything else that is committed when they look: at SQLite's data version, which is in memory that
processes share, so that to look costs microseconds. They look now and then also where no bell is heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from derive.storage.metadata.database import Metadata

_LOOK_SECONDS = 0.02
"""How often who hears no bell looks."""

_DOUBT_SECONDS = 1.0
"""How often who hears one looks nevertheless: whoever commits may be killed before it rings."""


class Mark(NamedTuple):
    """What has been committed so far.

    Attributes:
        own: differs from what it was once this store has committed something.
        others: differs from what it was once another has committed something.
    """

    own: int
    others: int


class Call(NamedTuple):
    """Who has called so far for others to look whether there is something to do.

    Attributes:
        others: counts what other stores have committed with a call.
        own: counts what was nudged in this one.
    """

    others: int
    own: int


class Changes:
    """Commits in one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._nudges = 0

    def mark(self) -> Mark:
        """What has been committed so far. Whoever waits marks first, and then looks whether there is need to wait."""
        return Mark(self._metadata.told, self._metadata.version())

    def wait(self, mark: Mark, seconds: float) -> bool:
        """Wait until something is committed after a mark.

        What calls nobody, such as that time has moved, is seen when others call, or in the end.

        Args:
            mark: what had been committed before.
            seconds: how long to wait at most.

        Returns:
            False if nothing was committed for so long.
        """
        metadata = self._metadata
        return self._wait(lambda: metadata.told != mark.own or metadata.version() != mark.others, seconds)

    def call(self) -> Call:
        """Who has called so far. Whoever waits asks first, and then looks whether there is need to wait."""
        return Call(self._metadata.calls(), self._nudges)

    def call_others(self) -> None:
        """Call those of other stores, without anything that is new."""
        self._metadata.call()

    def nudge(self) -> None:
        """Call those of this store."""
        self._nudges += 1
        self._metadata.tell(others=True)

    def wait_for_call(self, call: Call, seconds: float) -> bool:
        """Wait until somebody calls.

        Args:
            call: who had called before.
            seconds: how long to wait at most.

        Returns:
            False if nobody called for so long.
        """
        return self._wait(lambda: self.call() != call, seconds)

    def settle(self) -> None:
        """Make what was committed so far survive a loss of power, before it is told to somebody who relies on that."""
        self._metadata.settle()

    def _wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self._metadata.bell.listener() as listener:
            while True:
                if listener is not None:
                    listener.forget()
                told = self._metadata.told
                if is_over():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if listener is not None:
                    listener.listen(min(left, _DOUBT_SECONDS))
                else:
                    self._metadata.wait(told, min(left, _LOOK_SECONDS))
