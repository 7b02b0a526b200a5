"""Read leases: a reader or subscriber keeps the contents at its frontier from compaction.

A lease is durable once any later commit is, which suffices: a loss of power ends leases anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FrontierError, UsageError
from derive.storage.metadata.capability import ReadCapability, drop, is_live
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.read_rights import downgrade_read, lease_read
from derive.storage.metadata.renewal import Renewals
from derive.time.frontier import END_OF_TIME


class Leases:
    """Read leases on the collections of one data folder."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._renewals = Renewals(metadata.path)

    def lease(self, name: str, frontier: int | None = None) -> ReadCapability:
        """Acquire a read lease on a collection.

        A process that cannot write the metadata holds nothing back: it relies on the grace period of replaced files.

        Args:
            name: the collection.
            frontier: first timestamp of the read; None for the present contents.

        Raises:
            UsageError: nothing is stored under this name.
            FrontierError: the contents at that timestamp are compacted.
        """
        can_write = self._metadata.can_write
        with self._metadata.transaction(synced=False) if can_write else self._metadata.snapshot() as db:
            frontiers = frontiers_of(db, name)
            if frontiers is None:
                raise UsageError(f"nothing is stored in collection '{name}' yet")
            since, upper = frontiers
            if frontier is not None and frontier < since:
                raise FrontierError(
                    f"'{name}' is exact from {format_rfc3339(since)} on; its history at"
                    f" {format_rfc3339(frontier)} was compacted",
                    hint="ask for a later time",
                )
            begin = max(since, upper) if frontier is None else frontier
            return lease_read(db, name, begin) if can_write else ReadCapability("", name, begin)

    def upper(self, capability: ReadCapability) -> int:
        """Return the `upper` of a lease's collection.

        Raises:
            FencedError: the lease expired, or the collection was reset.
        """
        with self._metadata.snapshot() as db:
            frontiers = frontiers_of(db, capability.collection)
            is_leased = is_live(db, capability.id)
        assert frontiers is not None  # the lease proves that the collection existed
        since, upper = frontiers
        is_known = since <= capability.frontier <= upper
        if not (is_leased if self._metadata.can_write else is_known):
            raise _ended(capability)
        return upper

    def downgrade(self, capability: ReadCapability, frontier: int) -> ReadCapability:
        """Move a lease up to a later timestamp, and renew it; earlier contents may then be compacted.

        Raises:
            FencedError: the lease expired, or the collection was reset.
        """
        if self._metadata.can_write:
            with self._metadata.transaction(synced=False) as db:
                if not downgrade_read(db, capability, frontier):
                    raise _ended(capability)
        return replace(capability, frontier=max(capability.frontier, frontier))

    def drop(self, capability: ReadCapability) -> None:
        """Drop a lease, so that it holds `since` no longer."""
        with self._metadata.transaction(synced=False) as db:
            drop(db, capability.id)

    @contextmanager
    def kept(self, capability: ReadCapability) -> Iterator[None]:
        """Renew a lease in the background while the block runs, and drop it afterwards."""
        if not self._metadata.can_write:
            yield
            return
        try:
            with self._renewals.renewed(capability.id):
                yield
        finally:
            self.drop(capability)

    @contextmanager
    def all_kept(self) -> Iterator[None]:
        """Keep all files that are part of a collection when the block begins, while the block runs."""
        with self._metadata.transaction(synced=False) as db:
            query = "SELECT name, since FROM collection WHERE since < ?"
            rows: list[Any] = db.execute(query, (END_OF_TIME,)).fetchall()
            leased = [lease_read(db, name, since) for name, since in rows]
        try:
            with ExitStack() as renewing:
                for capability in leased:
                    renewing.enter_context(self._renewals.renewed(capability.id))
                yield
        finally:
            with self._metadata.transaction(synced=False) as db:
                for capability in leased:
                    drop(db, capability.id)


def _ended(capability: ReadCapability) -> FencedError:
    return FencedError(
        f"'{capability.collection}' was reset, or the lease to read it has expired", hint="run the command again"
    )
