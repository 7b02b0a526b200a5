"""Rights to read in the metadata database: leases of readers, and what tasks hold for as long as they exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

import apsw

from derive.storage.metadata.capability import LEASE, CapabilityRow, ReadCapability, insert_capability
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.descriptions import Hold
from derive.storage.metadata.process import is_dead, show_process
from derive.storage.timeline import wall_clock
from derive.time.frontier import END_OF_TIME

# Leases


def lease_read(db: apsw.Connection, name: str, frontier: int) -> ReadCapability:
    """Lease a right to read a collection."""
    now = wall_clock()
    capability = ReadCapability(str(uuid4()), name, frontier)
    row = CapabilityRow(capability.id, "read", collection=name, frontier=frontier, expires=now + LEASE, at=now)
    insert_capability(db, row)
    return capability


def downgrade_read(db: apsw.Connection, capability: ReadCapability, frontier: int) -> bool:
    """Move a leased right up to a later time, and renew it; False if it has ended."""
    now = wall_clock()
    db.execute(
        "UPDATE capability SET frontier = max(frontier, ?), expires = ?, at = ? WHERE id = ?",
        (frontier, now + LEASE, now, capability.id),
    )
    return db.changes() > 0


# Rights of tasks

_VIEW = "view:"
"""Begins the name under which a materialized view holds rights; no task of a catalog has a colon in its name."""


_INDEX = "index:"
"""The same for an index."""


def holder_of_view(identifier: int) -> str:
    """The name under which a materialized view holds rights to read what it is made of."""
    return f"{_VIEW}{identifier}"


def view_of_holder(task: str) -> int | None:
    """The materialized view that holds rights under a name; None if that is a task's."""
    return int(task.removeprefix(_VIEW)) if task.startswith(_VIEW) else None


def holder_of_index(identifier: int) -> str:
    """The name under which an index holds rights to read what it is on."""
    return f"{_INDEX}{identifier}"


def index_of_holder(task: str) -> int | None:
    """The index that holds rights under a name; None if that is not one's."""
    return int(task.removeprefix(_INDEX)) if task.startswith(_INDEX) else None


def hold(db: apsw.Connection, task: str, transform: str, name: str, frontier: int) -> None:
    """Give a transform of a task a right to read a collection that lasts until it is taken away."""
    identifier = str(uuid4())
    insert_capability(db, CapabilityRow(identifier, "read", name, task, transform, frontier, at=wall_clock()))


def hold_only(db: apsw.Connection, holder: str, names: Collection[str], frontier: int) -> None:
    """Give a view or an index the right to read collections from a frontier on, and to read nothing else."""
    take_holds(db, holder)
    for name in names:
        if frontiers_of(db, name) is not None:
            hold(db, holder, name, name, frontier)


def take_holds(db: apsw.Connection, task: str) -> dict[tuple[str, str], int]:
    """Take from a task its rights to read; returns their frontiers by transform and collection."""
    rows: list[Any] = db.execute(
        "DELETE FROM capability WHERE task = ? AND kind = 'read' RETURNING transform, collection, frontier", (task,)
    ).fetchall()
    return {(transform, name): frontier for transform, name, frontier in rows}


def move_holds(db: apsw.Connection, task: str, needs: Mapping[str, int], *, may_step_back: bool = False) -> None:
    """Move a task's rights to read, by transform, up to where it needs its sources now; back only if that is said."""
    now = wall_clock()
    db.executemany(
        "UPDATE capability SET frontier = iif(?, ?2, max(frontier, ?2)), at = ? WHERE task = ? AND transform = ?"
        " AND kind = 'read'",
        [(may_step_back, frontier, now, task, transform) for transform, frontier in needs.items()],
    )


def rewind_holds(db: apsw.Connection, task: str, transforms: Collection[str] | None = None) -> None:
    """Move a task's rights to read back to the beginning of what its sources still know; it is reading no files.

    Args:
        db: in a write transaction.
        task: its name.
        transforms: state keys of the inputs that begin again; None for all.
    """
    rows: list[Any] = db.execute(
        "SELECT id, transform FROM capability WHERE task = ? AND kind = 'read'", (task,)
    ).fetchall()
    db.executemany(
        "UPDATE capability SET at = NULL, frontier = (SELECT since FROM collection WHERE name = capability.collection)"
        " WHERE id = ?",
        [(identifier,) for identifier, transform in rows if transforms is None or transform in transforms],
    )


# Who reads


def frontiers_of_holders(db: apsw.Connection) -> dict[str, int]:
    """For each task that holds a right to read anything, the time from which on it may read all of that."""
    rows: list[Any] = db.execute(
        "SELECT task, max(frontier) FROM capability WHERE kind = 'read' AND task IS NOT NULL GROUP BY task"
    ).fetchall()
    return dict(rows)


def holders(db: apsw.Connection) -> dict[str, set[str]]:
    """For each task that holds a right to read anything, the collections."""
    rows: list[Any] = db.execute(
        "SELECT task, collection FROM capability WHERE task IS NOT NULL AND kind = 'read'"
    ).fetchall()
    collections: dict[str, set[str]] = {}
    for task, collection in rows:
        collections.setdefault(task, set()).add(collection)
    return collections


def read_holds(db: apsw.Connection, name: str) -> tuple[Hold, ...]:
    """Who holds the `since` of a collection back, the least first."""
    rows: list[Any] = db.execute(
        "SELECT min(frontier), task, holder, purpose FROM capability WHERE collection = ? AND kind = 'read'"
        " GROUP BY coalesce(task, id) ORDER BY 1, task, holder",
        (name,),
    ).fetchall()
    return tuple(Hold(frontier, task, show_process(holder), purpose) for frontier, task, holder, purpose in rows)


def write_holds(db: apsw.Connection, name: str) -> tuple[Hold, ...]:
    """Who holds the `upper` of a collection back, the least first."""
    rows: list[Any] = db.execute(
        "SELECT frontier, task, holder, purpose FROM capability WHERE collection = ? AND kind = 'write'"
        " AND frontier < ? ORDER BY 1, task, holder",
        (name, END_OF_TIME),
    ).fetchall()
    return tuple(Hold(frontier, task, show_process(holder), purpose) for frontier, task, holder, purpose in rows)


def reading_since(db: apsw.Connection) -> dict[str, int]:
    """For each collection that is being read, since when: files replaced later may be needed."""
    rows: list[Any] = db.execute(
        "SELECT collection, at, holder FROM capability WHERE kind = 'read' AND at IS NOT NULL ORDER BY at DESC"
    ).fetchall()
    dead = {holder: is_dead(holder) for holder in {row[2] for row in rows}}
    return {collection: at for collection, at, holder in rows if not dead[holder]}
