"""The read hold of a dataflow on a collection."""

from __future__ import annotations

import time
from contextlib import ExitStack

from derive.storage.metadata.capability import RENEW_SECONDS
from derive.storage.roles import Readable


class Hold:
    """A lease to read a collection, which is moved from time to time, because each move costs a commit.

    Args:
        store: the data folder.
        name: name of the collection.
        frontier: time from which on it is needed.

    Raises:
        UsageError: nothing is stored under this name.
        FrontierError: the contents at that time are compacted.
    """

    def __init__(self, store: Readable, name: str, frontier: int) -> None:
        self._store = store
        self._capability = store.leases.lease(name, frontier)
        self._moved = time.monotonic()
        self._stack = ExitStack()
        self._stack.enter_context(store.leases.kept(self._capability))

    def upper(self) -> int:
        """Return the `upper` of the collection.

        Raises:
            FencedError: the lease has expired, or the collection was reset.
        """
        return self._store.leases.upper(self._capability)

    def move(self, frontier: int) -> None:
        """Move the hold to a later time.

        Raises:
            FencedError: the lease has expired, or the collection was reset.
        """
        if time.monotonic() - self._moved > RENEW_SECONDS:
            self._capability = self._store.leases.downgrade(self._capability, frontier)
            self._moved = time.monotonic()

    def close(self) -> None:
        """Release the lease."""
        self._stack.close()
