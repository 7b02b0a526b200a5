"""Capabilities by identifier: any process that knows the identifier can use the capability.

A lease lives as long as its process, if it is renewed in time. A process that takes over a capability from another one
becomes its holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import apsw

from derive.errors import FencedError, FrontierError
from derive.storage.metadata.capability import LEASE, CapabilityRow, insert_capability
from derive.storage.metadata.process import this_process
from derive.storage.table import GlobalId, RowUpdate
from derive.storage.timeline import wall_clock


@dataclass(frozen=True, slots=True)
class Capability:
    """A capability to read or to write one collection at or above a frontier.

    Attributes:
        id: identifier, a UUID.
        kind: `read` keeps the collection's `since` from passing the frontier, and `write` keeps its `upper`.
        collection: identifier of the collection.
        frontier: timestamp; `END_OF_TIME` is the empty frontier, at which nothing can be read or written.
    """

    id: str
    kind: Literal["read", "write"]
    collection: GlobalId
    frontier: int


@dataclass(frozen=True, slots=True)
class Update:
    """Write to a table, and move the write capability up.

    Attributes:
        capability: write capability.
        updates: row updates with timestamps at or above the capability's frontier and below the new one.
        frontier: the new frontier.
    """

    capability: Capability
    updates: Sequence[RowUpdate]
    frontier: int


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Move a capability up to a later frontier, and renew it."""

    capability: Capability
    frontier: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend a capability by the duration of a new lease."""

    capability: Capability


@dataclass(frozen=True, slots=True)
class Release:
    """Drop a capability."""

    capability: Capability


Action: TypeAlias = Update | Downgrade | Renew | Release
"""An operation on a capability."""


def add_capability(
    db: apsw.Connection,
    kind: Literal["read", "write"],
    collection: tuple[GlobalId, str],
    frontier: int,
    *,
    purpose: str | None,
    lasts: bool,
) -> Capability:
    """Add a capability with this process as the holder.

    Args:
        db: a write transaction.
        kind: `read` or `write`.
        collection: identifier and name of the collection.
        frontier: timestamp.
        purpose: description of the use, for people.
        lasts: the capability never expires.
    """
    identifier, name = collection
    now = wall_clock()
    capability = Capability(str(uuid4()), kind, identifier, frontier)
    expires = None if lasts else now + LEASE
    at = now if kind == "read" else None
    insert_capability(db, CapabilityRow(capability.id, kind, name, frontier=frontier, expires=expires, at=at))
    db.execute("UPDATE capability SET purpose = ? WHERE id = ?", (purpose, capability.id))
    return capability


def find_capability(db: apsw.Connection, identifier: str) -> Capability:
    """Return the present state of a capability.

    Raises:
        FencedError: the capability was dropped, or expired.
    """
    row: Any = db.execute(
        "SELECT capability.id, capability.kind, collection.id, frontier FROM capability JOIN collection"
        " ON collection.name = capability.collection WHERE capability.id = ? AND kind IN ('read', 'write')",
        (identifier,),
    ).fetchone()
    if row is None:
        raise FencedError(f"capability {identifier} was dropped, or has expired", hint="acquire another one")
    return Capability(*row)


def clone_capability(db: apsw.Connection, identifier: str) -> Capability:
    """Copy a capability, with this process as the holder.

    Raises:
        FencedError: the capability was dropped, or expired.
    """
    find_capability(db, identifier)
    copy = str(uuid4())
    db.execute(
        "INSERT INTO capability (id, kind, collection, frontier, expires, at, purpose, holder)"
        " SELECT ?, kind, collection, frontier, iif(expires IS NULL, NULL, ?), at, purpose, ? FROM capability"
        " WHERE id = ?",
        (copy, wall_clock() + LEASE, this_process(), identifier),
    )
    return find_capability(db, copy)


def take_capability(db: apsw.Connection, identifier: str) -> Capability:
    """Make this process the holder of a capability.

    Raises:
        FencedError: the capability was dropped, or expired.
    """
    db.execute("UPDATE capability SET holder = ? WHERE id = ?", (this_process(), identifier))
    renew_capability(db, identifier)
    return find_capability(db, identifier)


def renew_capability(db: apsw.Connection, identifier: str) -> None:
    """Restart the lease of a capability, if it is a lease."""
    now = wall_clock()
    db.execute(
        "UPDATE capability SET expires = iif(expires IS NULL, NULL, ?), at = iif(kind = 'read', ?, NULL) WHERE id = ?",
        (now + LEASE, now, identifier),
    )


def move_capability(db: apsw.Connection, capability: Capability, frontier: int) -> Capability:
    """Move a capability up to a frontier, and renew it.

    Raises:
        FencedError: the capability was dropped, or expired.
        FrontierError: the capability is already at a later frontier.
    """
    current = find_capability(db, capability.id)
    if frontier < current.frontier:
        raise FrontierError(f"capability {capability.id} is at {current.frontier}, and cannot go back to {frontier}")
    db.execute("UPDATE capability SET frontier = ? WHERE id = ?", (frontier, capability.id))
    renew_capability(db, capability.id)
    return find_capability(db, capability.id)
