"""Changes: whoever waits for something to be committed is told, instead of asking for it over and over.

In this process a commit tells at once. Those of other processes are told by SQLite's data version, which is in memory
that processes share: to look at it costs microseconds, and no query.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from derive.storage.metadata.database import Metadata

_LOOK_SECONDS = 0.02
"""How often the data version is looked at."""


class Mark(NamedTuple):
    """What has been committed so far.

    Attributes:
        own: counts what this store has committed.
        others: differs from what it was once another has committed something.
    """

    own: int
    others: int


class Changes:
    """Commits in one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def mark(self) -> Mark:
        """What has been committed so far. Whoever waits marks first, and then looks whether there is need to wait."""
        return Mark(self._metadata.commits, self._metadata.version())

    def wait(self, mark: Mark, seconds: float, *, own: bool = True, least: float = 0.0) -> bool:
        """Wait until something is committed after a mark.

        Args:
            mark: what had been committed before.
            seconds: how long to wait at most.
            own: what this store commits counts as well.
            least: how long to wait at least, whatever is committed.

        Returns:
            False if nothing was committed for so long.
        """
        end = time.monotonic() + seconds
        time.sleep(least)
        while (now := self.mark()).others == mark.others and (now.own == mark.own or not own):
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._metadata.wait(now.own, min(left, _LOOK_SECONDS))
        return True
