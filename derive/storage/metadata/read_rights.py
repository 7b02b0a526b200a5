"""Read capabilities in the metadata database: leases of readers, and durable holds of tasks."""

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
    """Acquire a read lease on a collection."""
    now = wall_clock()
    capability = ReadCapability(str(uuid4()), name, frontier)
    row = CapabilityRow(capability.id, "read", collection=name, frontier=frontier, expires=now + LEASE, at=now)
    insert_capability(db, row)
    return capability


def downgrade_read(db: apsw.Connection, capability: ReadCapability, frontier: int) -> bool:
    """Move a read lease up to a later timestamp, and renew it; return False if it has ended."""
    now = wall_clock()
    db.execute(
        "UPDATE capability SET frontier = max(frontier, ?), expires = ?, at = ? WHERE id = ?",
        (frontier, now + LEASE, now, capability.id),
    )
    return db.changes() > 0


# Durable holds of tasks

_VIEW = "view:"
"""Prefix of the holder name of a materialized view; no task of a catalog has a colon in its name."""


_INDEX = "index:"
"""Prefix of the holder name of an index."""


def holder_of_view(identifier: int) -> str:
    """Return the holder name of a materialized view."""
    return f"{_VIEW}{identifier}"


def view_of_holder(task: str) -> int | None:
    """Return the materialized view of a holder name; None for other holders."""
    return int(task.removeprefix(_VIEW)) if task.startswith(_VIEW) else None


def holder_of_index(identifier: int) -> str:
    """Return the holder name of an index."""
    return f"{_INDEX}{identifier}"


def index_of_holder(task: str) -> int | None:
    """Return the index of a holder name; None for other holders."""
    return int(task.removeprefix(_INDEX)) if task.startswith(_INDEX) else None


def hold(db: apsw.Connection, task: str, transform: str, name: str, frontier: int) -> None:
    """Give a transform of a task a read capability on a collection that never expires."""
    identifier = str(uuid4())
    insert_capability(db, CapabilityRow(identifier, "read", name, task, transform, frontier, at=wall_clock()))


def hold_only(db: apsw.Connection, holder: str, names: Collection[str], frontier: int) -> None:
    """Give a view or an index read capabilities on exactly these collections, at a frontier."""
    take_holds(db, holder)
    for name in names:
        if frontiers_of(db, name) is not None:
            hold(db, holder, name, name, frontier)


def take_holds(db: apsw.Connection, task: str) -> dict[tuple[str, str], int]:
    """Drop a task's read capabilities; return their frontiers by transform and collection."""
    rows: list[Any] = db.execute(
        "DELETE FROM capability WHERE task = ? AND kind = 'read' RETURNING transform, collection, frontier", (task,)
    ).fetchall()
    return {(transform, name): frontier for transform, name, frontier in rows}


def move_holds(db: apsw.Connection, task: str, needs: Mapping[str, int], *, may_step_back: bool = False) -> None:
    """Move a task's read capabilities to the needed frontiers, by transform; back only if `may_step_back`."""
    now = wall_clock()
    db.executemany(
        "UPDATE capability SET frontier = iif(?, ?2, max(frontier, ?2)), at = ? WHERE task = ? AND transform = ?"
        " AND kind = 'read'",
        [(may_step_back, frontier, now, task, transform) for transform, frontier in needs.items()],
    )


def rewind_holds(db: apsw.Connection, task: str, transforms: Collection[str] | None = None) -> None:
    """Move a task's read capabilities back to the `since` of their sources; the task is not running.

    Args:
        db: a write transaction.
        task: name of the task.
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


# Look-ups of readers


def frontiers_of_holders(db: apsw.Connection) -> dict[str, int]:
    """Return the greatest frontier of each holder's read capabilities.

    A holder may read all its collections from that frontier on.
    """
    rows: list[Any] = db.execute(
        "SELECT task, max(frontier) FROM capability WHERE kind = 'read' AND task IS NOT NULL GROUP BY task"
    ).fetchall()
    return dict(rows)


def holders(db: apsw.Connection) -> dict[str, set[str]]:
    """Return the collections on which each holder has read capabilities."""
    rows: list[Any] = db.execute(
        "SELECT task, collection FROM capability WHERE task IS NOT NULL AND kind = 'read'"
    ).fetchall()
    collections: dict[str, set[str]] = {}
    for task, collection in rows:
        collections.setdefault(task, set()).add(collection)
    return collections


def read_holds(db: apsw.Connection, name: str) -> tuple[Hold, ...]:
    """Return the holds on the `since` of a collection, the least first."""
    rows: list[Any] = db.execute(
        "SELECT min(frontier), task, holder, purpose FROM capability WHERE collection = ? AND kind = 'read'"
        " GROUP BY coalesce(task, id) ORDER BY 1, task, holder",
        (name,),
    ).fetchall()
    return tuple(Hold(frontier, task, show_process(holder), purpose) for frontier, task, holder, purpose in rows)


def write_holds(db: apsw.Connection, name: str) -> tuple[Hold, ...]:
    """Return the holds on the `upper` of a collection, the least first."""
    rows: list[Any] = db.execute(
        "SELECT frontier, task, holder, purpose FROM capability WHERE collection = ? AND kind = 'write'"
        " AND frontier < ? ORDER BY 1, task, holder",
        (name, END_OF_TIME),
    ).fetchall()
    return tuple(Hold(frontier, task, show_process(holder), purpose) for frontier, task, holder, purpose in rows)


def reading_since(db: apsw.Connection) -> dict[str, int]:
    """Return the time since which each collection is being read: files replaced later may be in use."""
    rows: list[Any] = db.execute(
        "SELECT collection, at, holder FROM capability WHERE kind = 'read' AND at IS NOT NULL ORDER BY at DESC"
    ).fetchall()
    dead = {holder: is_dead(holder) for holder in {row[2] for row in rows}}
    return {collection: at for collection, at, holder in rows if not dead[holder]}
