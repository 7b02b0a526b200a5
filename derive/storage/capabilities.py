"""The verbs of collections as time-varying ones: who may read or write what, from when on, and handing that on.

A collection's `since` passes no right to read it, and its `upper` no right to write it. Rights are durable, checked at
every use, and known by an identifier that may be told to another process. Actions may be gathered and done as one.
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
"""Leases as they were before, of which collections they are to be, and from when on."""


class Capabilities:
    """Rights to read and to write the collections of one data folder.

    Args:
        metadata: keeps them.
        tables: of the data folder.
    """

    def __init__(self, metadata: Metadata, tables: Tables) -> None:
        self._metadata = metadata
        self._tables = tables

    def create(
        self, name: str, columns: Sequence[TableColumn], *, purpose: str | None = None
    ) -> tuple[Capability, Capability]:
        """Create a table, and acquire the rights to read and to write it.

        Raises:
            UsageError: something is stored under the name.
        """
        return self.acquire(self._tables.create(name, columns).id, purpose=purpose)

    def acquire(
        self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False
    ) -> tuple[Capability, Capability]:
        """The rights to read and to write a collection, at its `since` and at its `upper`.

        Those of a collection that was dropped have empty frontiers.

        Args:
            collection: identifies it.
            purpose: what they are for, for people.
            lasts: they are no leases, and stay until they are given back.

        Raises:
            UsageError: nothing was ever stored under that identifier.
        """
        return self.acquire_read(collection, purpose=purpose, lasts=lasts), self.acquire_write(
            collection, purpose=purpose, lasts=lasts
        )

    def acquire_read(
        self, collection: GlobalId, at: int | None = None, *, purpose: str | None = None, lasts: bool = False
    ) -> Capability:
        """The right to read a collection from a time on, or from its `since`.

        Raises:
            UsageError: nothing was ever stored under that identifier.
            FrontierError: what it held at that time is no longer known.
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
        """Lease the rights to read just these collections from a time on, or from the last time that is known; at once.

        It is durable once any later commit is: a loss of power ends leases anyway.

        Args:
            held: such rights as they were before: they move up, are renewed, or are given back.
            collections: identify them; those that are no more are left out.
            frontier: the time. What is forgotten of it already stays so.
            purpose: what they are for, for people.
        """
        (kept,) = self.retain_all([(held, collections, frontier)], purpose=purpose)
        return kept

    def retain_all(self, wishes: Sequence[Retained], *, purpose: str) -> list[list[Capability]]:
        """The same for several holders of such rights, in one commit.

        Args:
            wishes: of each, what is held, the collections, and the time.
            purpose: what they are for, for people.
        """
        with self._metadata.transaction(synced=False) as db:
            drop_ended(db)
            return [_retained(db, wish, purpose) for wish in wishes]

    def acquire_write(self, collection: GlobalId, *, purpose: str | None = None, lasts: bool = False) -> Capability:
        """The right to write a table from its `upper` on, beside others who may have it.

        Raises:
            UsageError: nothing was ever stored under that identifier.
        """
        with self._metadata.transaction() as db:
            name, (_, upper) = _known(db, collection)
            return add_capability(db, "write", (collection, name), upper, purpose=purpose, lasts=lasts)

    def find(self, identifier: str) -> Capability:
        """The right that an identifier stands for, as it is now.

        Raises:
            FencedError: it was given back, or ran out.
        """
        with self._metadata.snapshot() as db:
            return find_capability(db, identifier)

    def clone(self, capability: Capability) -> Capability:
        """Another right to the same, at the same frontier.

        Raises:
            FencedError: it was given back, or ran out.
        """
        with self._metadata.transaction() as db:
            drop_ended(db)
            return clone_capability(db, capability.id)

    def take(self, identifier: str) -> Capability:
        """Hold a right that another process was told to have, or told of; it lives with this process from here on.

        Raises:
            FencedError: it was given back, or ran out.
        """
        with self._metadata.transaction() as db:
            return take_capability(db, identifier)

    def downgrade(self, capability: Capability, frontier: int) -> Capability:
        """Move a right up to a frontier, and renew it; `since`, or `upper`, may follow.

        Raises:
            FencedError: it was given back, or ran out.
            FrontierError: it is at a later frontier already.
        """
        (moved,) = self.perform([Downgrade(capability, frontier)])
        assert moved is not None
        return moved

    def renew(self, *capabilities: Capability) -> None:
        """Have rights go on for as long as a new lease does.

        Raises:
            FencedError: one was given back, or ran out.
        """
        self.perform([Renew(capability) for capability in capabilities])

    def drop(self, *capabilities: Capability) -> None:
        """Give rights back. Those that were given back, or ran out, stay so.

        What a dropped table held is forgotten with the last right to read it.
        """
        self.perform([Release(capability) for capability in capabilities])

    def update_and_downgrade(self, *updates: Update) -> list[Capability]:
        """Write to tables, and move the rights to write them up; all of it or nothing, in one commit.

        Raises:
            FencedError: a right was given back, or ran out.
            FrontierError: a clock is out of bounds.
        """
        return [moved for moved in self.perform(updates) if moved is not None]

    def perform(self, actions: Sequence[Action]) -> list[Capability | None]:
        """Do what is to be done with capabilities, in this order; all of it or nothing, in one commit.

        Returns:
            For each action, the right as it is after it; None if it was given back.

        Raises:
            FencedError: a right was given back, or ran out.
            FrontierError: a right would go back, or a clock is out of bounds.
        """
        with self._metadata.transaction(calls=True) as db:
            done = [_perform(db, action) for action in actions]
            if any(isinstance(action, Release) for action in actions):
                forget_unread(db)
            ends = [
                moved.frontier for moved in done if moved and moved.kind == "write" and moved.frontier < END_OF_TIME
            ]
            assign_up_to(db, max(ends, default=BEGINNING) - 1)
        return done


def _known(db: apsw.Connection, collection: GlobalId) -> tuple[str, tuple[int, int]]:
    """The name and the frontiers of a collection."""
    drop_ended(db)
    name = name_of(db, collection)
    frontiers = None if name is None else frontiers_of(db, name)
    if name is None or frontiers is None:
        raise UsageError(f"there is no collection {collection}")
    return name, frontiers


def _retained(db: apsw.Connection, wish: Retained, purpose: str) -> list[Capability]:
    held, collections, frontier = wish
    wanted = set(collections)
    kept = {}
    for capability in held:
        if capability.collection not in wanted or not is_live(db, capability.id):
            drop(db, capability.id)
        else:
            kept[capability.collection] = capability
    for collection in wanted:
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
