"""Capabilities: the durable right to read or write one collection, and what it holds back.

While a write capability is live its collection's `upper` does not pass its frontier, so a writer that is still at work
is never sealed out. A task's write capability is exclusive: acquiring it supersedes the one before (law L5). Writers
that ingest share a collection. Both are leases, which a crash lets end.

While a read capability is live its collection's `since` does not pass its frontier, and files that compaction replaced
under it stay. A task holds one on each of its sources for as long as it exists; whoever else reads holds a lease.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE = 60_000_000
"""Microseconds for which a leased capability lives without being renewed."""

RENEW_SECONDS = 15.0
"""After how long a lease is worth renewing."""


@dataclass(frozen=True, slots=True)
class WriteCapability:
    """The right to write a collection at or above `frontier`.

    Attributes:
        id: what identifies it, a UUID.
        collection: name of the collection.
        frontier: clock; `upper` does not pass it.
        epoch: for an exclusive capability, counts its holders; 0 for a shared one.
    """

    id: str
    collection: str
    frontier: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReadCapability:
    """The right to read a collection at or above `frontier`: `since` does not pass it.

    Attributes:
        id: what identifies it, a UUID.
        collection: name of the collection.
        frontier: clock.
    """

    id: str
    collection: str
    frontier: int
