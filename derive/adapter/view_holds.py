"""What materialized views are made of is not forgotten beyond where they are written, whether maintained or not."""

from __future__ import annotations

import time
from collections.abc import Collection

from derive.compute.algebra.relation import GlobalId
from derive.storage.metadata.capability import RENEW_SECONDS
from derive.storage.store import Store


class ViewHolds:
    """Rights of materialized views to read, which outlive this process.

    A view whose inputs forgot what was before a time later than its `upper` could not tell what it held in between.

    Args:
        store: of the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moved: dict[GlobalId, float] = {}

    def follow(self, identifier: GlobalId, names: Collection[str], upper: int) -> None:
        """Hold what a view reads, from where it is written; now and then, as it costs a commit.

        Args:
            identifier: of the view.
            names: of what is stored that it is made of.
            upper: the time before which it is written.
        """
        moved = self._moved.get(identifier)
        if moved is None or time.monotonic() - moved > RENEW_SECONDS:
            self._store.rights.hold_for_view(identifier, names, upper - 1)
            self._moved[identifier] = time.monotonic()

    def keep(self, identifiers: Collection[GlobalId]) -> None:
        """Give back what other views hold, which are gone."""
        for identifier in self._store.rights.views() - set(identifiers):
            self._store.rights.forget_view(identifier)
            self._moved.pop(identifier, None)
