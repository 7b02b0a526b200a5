"""Capabilities: durable holds on the frontiers of collections, and the operations on them.

A read capability keeps `since` from passing its frontier, and a write capability does the same for `upper`.
Capabilities are durable, are checked at every use, and have an identifier that another process can use. Several actions
can be performed in one commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import apsw

from derive.errors import FencedError, FrontierError, UsageError
from derive.storage.metadata.capability import drop, drop_ended, is_live
from derive.storage.metadata.collection import advance_upper, frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.held import (
    Action,
    Capability,
    Downgrade,
    Release,
    Renew,
    Update,
    add_capability,
    clone_capability,
    find_capability,
    move_capability,
    renew_capability,
    take_capability,
)
from derive.storage.metadata.tables import forget_unread, name_of
from derive.storage.metadata.timeline import assign_up_to
from derive.storage.table import GlobalId, TableColumn, TableUpdate
from derive.storage.tables import Tables, write_update
from derive.time.frontier import BEGINNING, END_OF_TIME

Retained: TypeAlias = tuple[Sequence[Capability], Collection[GlobalId], int]
"""The present leases, the identifiers of the desired collections, and the desired frontier."""


class Capabilities:
    """Capabilities to read and write the collections of one data folder.

    Args:
        metadata: metadata database of the data folder.
        tables: tables of the data folder.
    """

    def __init__(self, metadata: Metadata, tables: Tables) -> None:
        self._metadata = metadata
        self._tables = tables

    def create(
        self, name: str, columns: Sequence[TableColumn], *, purpose: str | None = None
    ) -> tuple[Capability, Capability]:
        """Create a table, and acquire the capabilities to read and to write it.

        Raises:
            UsageError: the name is in use.
        """
        return self.acquire(self._tables.create(name, columns).id, purpose=purpose)

    def acquire(
        self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False
    ) -> tuple[Capability, Capability]:
        """Acquire the capabilities to read and to write a collection, at its `since` and at its `upper`.

        The capabilities of a dropped collection have empty frontiers.

        Args:
            collection: identifier of the collection.
            purpose: description of the use, for people.
            lasts: acquire capabilities without expiry instead of leases.

        Raises:
            UsageError: the identifier is unknown.
        """
        return self.acquire_read(collection, purpose=purpose, lasts=lasts), self.acquire_write(
            collection, purpose=purpose, lasts=lasts
        )

    def acquire_read(
        self, collection: GlobalId, at: int | None = None, *, purpose: str | None = None, lasts: bool = False
    ) -> Capability:
        """Acquire the capability to read a collection from a timestamp on, or from its `since`.

        Raises:
            UsageError: the identifier is unknown.
            FrontierError: the contents at that timestamp are compacted.
        """
        with self._metadata.transaction() as db:
            name, (since, _) = _known(db, collection)
            if at is not None and at < since:
                raise FrontierError(f"'{name}' is exact from {since} on, and not at {at}")
            frontier = since if at is None else at
            return add_capability(db, "read", (collection, name), frontier, purpose=purpose, lasts=lasts)

    def retain(
        self, held: Sequence[Capability], collections: Collection[GlobalId], frontier: int, *, purpose: str
    ) -> list[Capability]:
        """Replace leases by leases on exactly the given collections, in one commit.

        Each new lease begins at `frontier`, at most at the last known timestamp. The commit is durable once any later
        commit is; a loss of power ends leases anyway.

        Args:
            held: the present leases, which are moved up, renewed or dropped.
            collections: identifiers of the desired collections; dropped collections are skipped.
            frontier: the desired frontier, raised to `since` where earlier history is compacted.
            purpose: description of the use, for people.
        """
        (kept,) = self.retain_all([(held, collections, frontier)], purpose=purpose)
        return kept

    def retain_all(self, requests: Sequence[Retained], *, purpose: str) -> list[list[Capability]]:
        """Replace the leases of several holders, as `retain` does, in one commit.

        Args:
            requests: for each holder the present leases, the collections and the frontier.
            purpose: description of the use, for people.
        """
        with self._metadata.transaction(synced=False) as db:
            drop_ended(db)
            return [_retained(db, retained, purpose) for retained in requests]

    def acquire_write(self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False) -> Capability:
        """Acquire a capability to write a table from its `upper` on; other writers may exist.

        Raises:
            UsageError: the identifier is unknown.
        """
        with self._metadata.transaction() as db:
            name, (_, upper) = _known(db, collection)
            return add_capability(db, "write", (collection, name), upper, purpose=purpose, lasts=lasts)

    def find(self, identifier: str) -> Capability:
        """Return the present state of a capability.

        Raises:
            FencedError: the capability was dropped, or expired.
        """
        with self._metadata.snapshot() as db:
            return find_capability(db, identifier)

    def clone(self, capability: Capability) -> Capability:
        """Return a new capability of the same kind, on the same collection, at the same frontier.

        Raises:
            FencedError: the capability was dropped, or expired.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            return clone_capability(db, capability.id)

    def take(self, identifier: str) -> Capability:
        """Attach a capability of another process to this process, so that it lives as long as this process.

        Raises:
            FencedError: the capability was dropped, or expired.
        """
        with self._metadata.transaction() as db:
            return take_capability(db, identifier)

    def downgrade(self, capability: Capability, frontier: int) -> Capability:
        """Move a capability up to a frontier, and renew it; `since` or `upper` may follow.

        Raises:
            FencedError: the capability was dropped, or expired.
            FrontierError: the capability is already at a later frontier.
        """
        (moved,) = self.perform([Downgrade(capability, frontier)])
        assert moved is not None
        return moved

    def renew(self, *capabilities: Capability) -> None:
        """Extend capabilities by the duration of a new lease.

        Raises:
            FencedError: a capability was dropped, or expired.
        """
        self.perform([Renew(capability) for capability in capabilities])

    def drop(self, *capabilities: Capability) -> None:
        """Drop capabilities; dropped and expired ones are skipped.

        The contents of a dropped table are deleted with the last capability to read them.
        """
        self.perform([Release(capability) for capability in capabilities])

    def update_and_downgrade(self, *updates: Update) -> list[Capability]:
        """Write to tables and move the write capabilities up, in one commit.

        Raises:
            FencedError: a capability was dropped, or expired.
            FrontierError: a timestamp is out of bounds.
        """
        return [moved for moved in self.perform(updates) if moved is not None]

    def perform(self, actions: Sequence[Action]) -> list[Capability | None]:
        """Perform actions on capabilities in this order, in one commit.

        Returns:
            For each action, the capability after the action; None if the capability was dropped.

        Raises:
            FencedError: a capability was dropped, or expired.
            FrontierError: a frontier would move back, or a timestamp is out of bounds.
        """
        with self._metadata.transaction(wakes=True) as db:
            done = [_perform(db, action) for action in actions]
            if any(isinstance(action, Release) for action in actions):
                forget_unread(db)
            ends = [
                moved.frontier for moved in done if moved and moved.kind == "write" and moved.frontier < END_OF_TIME
            ]
            assign_up_to(db, max(ends, default=BEGINNING) - 1)
        return done


def _known(db: apsw.Connection, collection: GlobalId) -> tuple[str, tuple[int, int]]:
    """Return the name and the frontiers of a collection.

    Raises:
        UsageError: the identifier is unknown.
    """
    drop_ended(db)
    name = name_of(db, collection)
    frontiers = None if name is None else frontiers_of(db, name)
    if name is None or frontiers is None:
        raise UsageError(f"there is no collection {collection}")
    return name, frontiers


def _retained(db: apsw.Connection, retained: Retained, purpose: str) -> list[Capability]:
    held, collections, frontier = retained
    desired = set(collections)
    kept = {}
    for capability in held:
        if capability.collection not in desired or not is_live(db, capability.id):
            drop(db, capability.id)
        else:
            kept[capability.collection] = capability
    for collection in desired:
        name = name_of(db, collection)
        frontiers = None if name is None else frontiers_of(db, name)
        if name is None or frontiers is None:
            continue
        since, upper = frontiers
        bound = max(since, min(frontier, upper - 1))
        before = kept.get(collection)
        if before is None:
            lease = add_capability(db, "read", (collection, name), bound, purpose=purpose, lasts=False)
        else:
            lease = move_capability(db, before, max(bound, before.frontier))
        kept[collection] = lease
    return list(kept.values())


def _perform(db: apsw.Connection, action: Action) -> Capability | None:
    capability = action.capability
    match action:
        case Release():
            drop(db, capability.id)
            return None
        case Renew():
            find_capability(db, capability.id)
            renew_capability(db, capability.id)
            return find_capability(db, capability.id)
        case Downgrade(_, frontier):
            moved = move_capability(db, capability, frontier)
        case Update(_, updates, frontier):
            current = find_capability(db, capability.id)
            if current.kind != "write":
                raise FencedError(f"capability {capability.id} is to read, not to write")
            if any(update.clock < current.frontier for update in updates):
                raise FrontierError(f"capability {capability.id} is at {current.frontier}, and an update is earlier")
            moved = move_capability(db, capability, frontier)
            write_update(db, TableUpdate(current.collection, None, frontier, tuple(updates)), None)
    if moved.kind == "write":
        name = name_of(db, moved.collection)
        assert name is not None
        advance_upper(db, name, moved.frontier)
    return moved
