"""Capabilities in the metadata database: durable holds on a collection's frontier, or the right to run a task.

A write capability keeps the collection's `upper` from passing its frontier, so the collection is not sealed while a
writer works. Ingesting writers share a collection. A task's write capabilities are exclusive: they are acquired with
the run capability in one transaction, and end with it. A new run capability fences the previous run (law L5).

A read capability keeps the collection's `since` from passing its frontier, and keeps replaced files. A task holds one
on each of its sources as long as it exists; all other readers hold leases.

A lease ends when its holder, a visible process, has ended, or when it was not renewed in time. A task whose process is
visible and alive keeps its run capability however late it is, and can only be fenced. The identifier of an incomplete
ingestion is recorded in the same transaction, until its files are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import apsw

from derive.errors import FencedError
from derive.storage.metadata.process import is_dead, is_local, this_process
from derive.storage.timeline import wall_clock

LEASE = 60_000_000
"""Duration of a lease without renewal, microseconds."""

RENEW_SECONDS = 15.0
"""Interval for the renewal of leases."""


@dataclass(frozen=True, slots=True)
class WriteCapability:
    """A write lease for ingestion into a collection at or above `frontier`; several can exist.

    Attributes:
        id: identifier, a UUID.
        collection: name of the collection.
        frontier: timestamp that `upper` does not pass.
    """

    id: str
    collection: str
    frontier: int


@dataclass(frozen=True, slots=True)
class ReadCapability:
    """A read lease on a collection at or above `frontier`.

    Attributes:
        id: identifier, a UUID.
        collection: name of the collection.
        frontier: timestamp that `since` does not pass.
    """

    id: str
    collection: str
    frontier: int


@dataclass(frozen=True, slots=True)
class TaskCapability:
    """The exclusive lease to run a task and to write its collections.

    Attributes:
        id: identifier, a UUID.
        task: name of the task.
        epoch: number of this run capability of the task.
        frontiers: lower bound of the written timestamps by collection, which its `upper` does not pass.
    """

    id: str
    task: str
    epoch: int
    frontiers: Mapping[str, int]


class CapabilityRow(NamedTuple):
    """A row of the table `capability` without its holder; the table documents the columns."""

    id: str
    kind: Literal["read", "write", "run"]
    collection: str | None = None
    task: str | None = None
    transform: str | None = None
    frontier: int | None = None
    expires: int | None = None
    at: int | None = None


# Leases


def drop_ended(db: apsw.Connection) -> None:
    """Drop ended leases; the files of their writers become garbage.

    Args:
        db: a write transaction.
    """
    leases: list[Any] = db.execute(
        "SELECT id, kind, collection, task, holder, expires FROM capability WHERE expires IS NOT NULL"
    ).fetchall()
    now = wall_clock()
    dead = {holder: is_dead(holder) for holder in {lease[4] for lease in leases}}  # each check reads a file
    for identifier, kind, collection, task, holder, expires in leases:
        is_late = expires < now and not (kind == "run" and is_local(holder))
        if not is_late and not dead[holder]:
            continue
        if kind == "run":
            drop_run(db, task)  # the next run of the task collects its files
            continue
        drop(db, identifier)
        if kind == "write":
            db.execute("INSERT OR IGNORE INTO abandoned VALUES (?, ?)", (identifier, collection))


def take_writes(db: apsw.Connection, name: str) -> None:
    """Drop all write capabilities of a collection; uncommitted files of their holders become garbage."""
    db.execute(
        "INSERT OR IGNORE INTO abandoned SELECT id, collection FROM capability"
        " WHERE collection = ? AND kind = 'write' AND task IS NULL",
        (name,),
    )
    db.execute("DELETE FROM capability WHERE collection = ? AND kind = 'write'", (name,))


def renew(db: apsw.Connection, identifier: str) -> None:
    """Extend a lease, unless it has ended."""
    db.execute("UPDATE capability SET expires = ? WHERE id = ?", (wall_clock() + LEASE, identifier))


def renew_runs(db: apsw.Connection) -> None:
    """Extend the run capabilities of all tasks of this process.

    Args:
        db: a write transaction, without extra cost if it writes anyway.
    """
    db.execute(
        "UPDATE capability SET expires = ? WHERE kind = 'run' AND holder = ?", (wall_clock() + LEASE, this_process())
    )


def drop(db: apsw.Connection, identifier: str) -> None:
    """Drop a lease, unless it has ended."""
    db.execute("DELETE FROM capability WHERE id = ?", (identifier,))


def is_live(db: apsw.Connection, identifier: str) -> bool:
    """Return true if a capability has neither ended nor been fenced."""
    return db.execute("SELECT 1 FROM capability WHERE id = ?", (identifier,)).get is not None


# Write capabilities


def lease_write(db: apsw.Connection, name: str, frontier: int) -> WriteCapability:
    """Acquire a write lease on a collection."""
    capability = WriteCapability(str(uuid4()), name, frontier)
    insert_capability(
        db, CapabilityRow(capability.id, "write", collection=name, frontier=frontier, expires=wall_clock() + LEASE)
    )
    return capability


def require_write(db: apsw.Connection, capability: WriteCapability) -> None:
    """Raise an error if a write lease has ended.

    Raises:
        FencedError: the lease has ended.
    """
    if not is_live(db, capability.id):
        raise _ran_out(capability.collection)


def downgrade_write(db: apsw.Connection, capability: WriteCapability, frontier: int) -> None:
    """Move a write lease up to a frontier, and renew it."""
    db.execute(
        "UPDATE capability SET frontier = ?, expires = ? WHERE id = ?",
        (frontier, wall_clock() + LEASE, capability.id),
    )


def least_write_frontier(db: apsw.Connection, name: str) -> int | None:
    """Return the least frontier of a collection's writers, which its `upper` cannot pass; None without writers."""
    frontier: int | None = db.execute(
        "SELECT min(frontier) FROM capability WHERE collection = ? AND kind = 'write'", (name,)
    ).get
    return frontier


# Run capabilities


@dataclass(frozen=True, slots=True)
class Runner:
    """The process with the capability to run a task.

    Attributes:
        process: name of the process, in the format of derive/storage/metadata/process.py.
        purpose: description of the use, for people; None for a run.
    """

    process: str
    purpose: str | None


def runner_of(db: apsw.Connection, task: str) -> Runner | None:
    """Return the other process that holds the capability to run a task; None for none."""
    row: Any = db.execute(
        "SELECT holder, purpose FROM capability WHERE task = ? AND kind = 'run' AND holder <> ?", (task, this_process())
    ).fetchone()
    return row and Runner(*row)


def require_free(db: apsw.Connection, task: str) -> None:
    """Raise an error if another process holds the capability to run a task.

    Args:
        db: a write transaction.
        task: name of the task.

    Raises:
        FencedError: another process holds the capability.
    """
    drop_ended(db)
    if runner_of(db, task) is not None:
        raise _superseded(task)


def lease_run(
    db: apsw.Connection, task: str, epoch: int, frontiers: Mapping[str, int], purpose: str | None = None
) -> TaskCapability:
    """Acquire the capabilities to run a task and to write its collections, and fence earlier holders.

    Args:
        db: a write transaction.
        task: name of the task.
        epoch: new epoch of the task.
        frontiers: lower bound of the written timestamps, by collection.
        purpose: description of the use, for people; None for a run.
    """
    capability = TaskCapability(str(uuid4()), task, epoch, dict(frontiers))
    _delete_run(db, task)
    insert_capability(db, CapabilityRow(capability.id, "run", task=task, expires=wall_clock() + LEASE))
    db.execute("UPDATE capability SET purpose = ? WHERE id = ?", (purpose, capability.id))
    for name, frontier in frontiers.items():
        take_writes(db, name)
        insert_capability(db, CapabilityRow(str(uuid4()), "write", collection=name, task=task, frontier=frontier))
    return capability


def require_run(db: apsw.Connection, capability: TaskCapability, names: Sequence[str] = ()) -> None:
    """Raise an error if a run capability has ended or was fenced; renew it otherwise.

    Args:
        db: a write transaction.
        capability: the run capability.
        names: collections that the holder must still be able to write.

    Raises:
        FencedError: the capability has ended or was fenced, or another task writes one of the collections.
    """
    task = capability.task
    if not is_live(db, capability.id):
        epoch: int | None = db.execute("SELECT epoch FROM task WHERE name = ?", (task,)).get
        raise _superseded(task) if epoch is None or epoch > capability.epoch else _ran_out(task)
    rows: list[Any] = db.execute(
        "SELECT collection FROM capability WHERE task = ? AND kind = 'write'", (task,)
    ).fetchall()
    lost = sorted(set(names) - {row[0] for row in rows})
    if lost:
        raise _superseded(lost[0])
    renew(db, capability.id)


def downgrade_run(db: apsw.Connection, capability: TaskCapability, name: str, frontier: int) -> None:
    """Move a task's write capability on a collection up to a frontier."""
    db.execute(
        "UPDATE capability SET frontier = ? WHERE collection = ? AND task = ? AND kind = 'write'",
        (frontier, name, capability.task),
    )


def drop_run(db: apsw.Connection, task: str) -> None:
    """Drop the capabilities to run a task and to write for it; its read capabilities keep no replaced files."""
    _delete_run(db, task)
    db.execute("UPDATE capability SET at = NULL WHERE task = ?", (task,))


def is_at_work(db: apsw.Connection, task: str) -> bool:
    """Return true if a process holds the capability to run a task."""
    return db.execute("SELECT 1 FROM capability WHERE task = ? AND kind = 'run'", (task,)).get is not None


def _delete_run(db: apsw.Connection, task: str) -> None:
    db.execute("DELETE FROM capability WHERE task = ? AND kind IN ('run', 'write')", (task,))


def _superseded(name: str) -> FencedError:
    return FencedError(f"another flowctl has taken over '{name}'; this one commits nothing more")


def _ran_out(name: str) -> FencedError:
    return FencedError(f"the lease to write '{name}' has expired", hint="run the command again")


def insert_capability(db: apsw.Connection, row: CapabilityRow) -> None:
    """Add a capability with this process as the holder."""
    db.execute(
        "INSERT INTO capability (id, kind, collection, task, transform, frontier, expires, at, holder)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, this_process()),
    )
