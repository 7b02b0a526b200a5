"""Capabilities by their identifiers: whoever presents one has the right that it stands for.

The process that holds a lease keeps it alive by being there, and by renewing it in time. One that has been handed to
another process is held by that one from when it takes it.
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
    """The right to read or to write one collection at or above a frontier.

    Attributes:
        id: what identifies it, a UUID.
        kind: `read`: the collection's `since` does not pass the frontier; `write`: its `upper` does not.
        collection: identifies the collection.
        frontier: clock; `END_OF_TIME` is the empty frontier, at which the right is good for nothing.
    """

    id: str
    kind: Literal["read", "write"]
    collection: GlobalId
    frontier: int


@dataclass(frozen=True, slots=True)
class Update:
    """Write to a table, and move the right to write it up.

    Attributes:
        capability: to write.
        updates: with clocks at or above the capability's frontier and below the new one.
        frontier: the new one.
    """

    capability: Capability
    updates: Sequence[RowUpdate]
    frontier: int


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Move a right up to a later frontier, and renew it."""

    capability: Capability
    frontier: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Have a right go on for as long as a new lease does."""

    capability: Capability


@dataclass(frozen=True, slots=True)
class Release:
    """Give a right back, for good."""

    capability: Capability


Action: TypeAlias = Update | Downgrade | Renew | Release
"""What is done with a capability."""


def add_capability(
    db: apsw.Connection,
    kind: Literal["read", "write"],
    collection: tuple[GlobalId, str],
    frontier: int,
    *,
    purpose: str | None,
    lasts: bool,
) -> Capability:
    """Add a right that this process holds.

    Args:
        db: in a write transaction.
        kind: to read or to write.
        collection: its identifier and its name.
        frontier: clock.
        purpose: what it is for, for people.
        lasts: it is no lease, and stays until it is given back.
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
    """The right that an identifier stands for, as it is now.

    Raises:
        FencedError: there is none, or none any more.
    """
    row: Any = db.execute(
        "SELECT capability.id, capability.kind, collection.id, frontier FROM capability JOIN collection"
        " ON collection.name = capability.collection WHERE capability.id = ? AND kind IN ('read', 'write')",
        (identifier,),
    ).fetchone()
    if row is None:
        raise FencedError(f"capability {identifier} was given back, or ran out", hint="acquire another one")
    return Capability(*row)


def clone_capability(db: apsw.Connection, identifier: str) -> Capability:
    """Another right to the same, at the same frontier, held by this process.

    Raises:
        FencedError: there is no such right.
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
    """Have this process hold a right that it was told of.

    Raises:
        FencedError: there is no such right.
    """
    db.execute("UPDATE capability SET holder = ? WHERE id = ?", (this_process(), identifier))
    renew_capability(db, identifier)
    return find_capability(db, identifier)


def renew_capability(db: apsw.Connection, identifier: str) -> None:
    """Begin the lease of a right anew, if it is one."""
    now = wall_clock()
    db.execute(
        "UPDATE capability SET expires = iif(expires IS NULL, NULL, ?), at = iif(kind = 'read', ?, NULL) WHERE id = ?",
        (now + LEASE, now, identifier),
    )


def move_capability(db: apsw.Connection, capability: Capability, frontier: int) -> Capability:
    """Move a right up to a frontier, and renew it.

    Raises:
        FencedError: there is no such right.
        FrontierError: it is at a later frontier already.
    """
    current = find_capability(db, capability.id)
    if frontier < current.frontier:
        raise FrontierError(f"capability {capability.id} is at {current.frontier}, and cannot go back to {frontier}")
    db.execute("UPDATE capability SET frontier = ? WHERE id = ?", (frontier, capability.id))
    renew_capability(db, capability.id)
    return find_capability(db, capability.id)
