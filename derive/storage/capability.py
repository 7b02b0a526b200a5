"""Capabilities: the durable right to read or write one collection, and what it holds back.

While a write capability is live its collection's `upper` does not pass its frontier, so a writer that is still at work
is never sealed out. A task's write capability is exclusive: acquiring it supersedes the one before (law L5). Writers
that ingest share a collection, and hold a lease that a crash lets expire.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE = 60_000_000
"""Microseconds for which a shared write capability lives without being renewed."""


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
