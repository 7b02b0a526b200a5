"""The right of a dataflow to read a collection from where it is."""

from __future__ import annotations

import time
from contextlib import ExitStack

from derive.storage.metadata.capability import RENEW_SECONDS
from derive.storage.roles import Readable


class Hold:
    """A lease to read a collection, which follows a dataflow now and then: each time costs a commit.

    Args:
        store: holds the collection.
        name: of the collection.
        frontier: from which time on it is needed.

    Raises:
        UsageError: nothing is stored under this name.
        FrontierError: the contents at that time are no longer known.
    """

    def __init__(self, store: Readable, name: str, frontier: int) -> None:
        self._store = store
        self._capability = store.leases.lease(name, frontier)
        self._moved = time.monotonic()
        self._stack = ExitStack()
        self._stack.enter_context(store.leases.kept(self._capability))

    def upper(self) -> int:
        """The `upper` of the collection.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        return self._store.leases.upper(self._capability)

    def move(self, frontier: int) -> None:
        """Need it from a later time on.

        Raises:
            FencedError: the lease ran out, or the collection was reset.
        """
        if time.monotonic() - self._moved > RENEW_SECONDS:
            self._capability = self._store.leases.downgrade(self._capability, frontier)
            self._moved = time.monotonic()

    def close(self) -> None:
        """Give the lease back."""
        self._stack.close()
