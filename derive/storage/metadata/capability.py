"""Capabilities: durable rights to read or write one collection, or to run one task, and what they hold back.

While a right to write is live its collection's `upper` does not pass its frontier, so a writer that is still at work is
never sealed out. Writers that ingest share a collection. A task's rights to write are exclusive: it acquires them with
the right to run the task, in one transaction, and they live and end with it; acquiring it supersedes whoever ran the
task before (law L5).

While a right to read is live its collection's `since` does not pass its frontier, and files that compaction replaced
under it stay. A task holds one on each of its sources for as long as it exists; whoever else reads holds a lease.

A lease ends when its holder, a process that could be seen from here, is gone, or when it has not been renewed in time.
A task that can be seen at work keeps its right to run however late it is: whoever wants it takes it over. What an
ingestion that never came to its end has left in the data folder is remembered in the same transaction, until it is
removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import apsw

from derive.errors import FencedError
from derive.storage.metadata.process import is_dead, is_here, this_process
from derive.storage.timeline import wall_clock

LEASE = 60_000_000
"""Microseconds for which a leased capability lives without being renewed."""

RENEW_SECONDS = 15.0
"""After how long a lease is worth renewing."""


@dataclass(frozen=True, slots=True)
class WriteCapability:
    """The leased right to ingest into a collection at or above `frontier`, which others may hold as well.

    Attributes:
        id: what identifies it, a UUID.
        collection: name of the collection.
        frontier: clock; `upper` does not pass it.
    """

    id: str
    collection: str
    frontier: int


@dataclass(frozen=True, slots=True)
class ReadCapability:
    """The leased right to read a collection at or above `frontier`: `since` does not pass it.

    Attributes:
        id: what identifies it, a UUID.
        collection: name of the collection.
        frontier: clock.
    """

    id: str
    collection: str
    frontier: int


@dataclass(frozen=True, slots=True)
class TaskCapability:
    """The leased right to run a task, which one process has at a time, and to write collections for it alone.

    Attributes:
        id: what identifies it, a UUID.
        task: name of the task.
        epoch: counts who has held it.
        frontiers: for each collection that it writes, the clock at or above which it does; `upper` does not pass it.
    """

    id: str
    task: str
    epoch: int
    frontiers: Mapping[str, int]


class CapabilityRow(NamedTuple):
    """A row of the table, but for its holder; the table says what the columns mean."""

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
    """Drop the leases that have ended; files of writers among them are garbage from here on.

    Args:
        db: in a write transaction.
    """
    leases: list[Any] = db.execute(
        "SELECT id, kind, collection, task, holder, expires FROM capability WHERE expires IS NOT NULL"
    ).fetchall()
    now = wall_clock()
    dead = {holder: is_dead(holder) for holder in {lease[4] for lease in leases}}  # each costs reading a file
    for identifier, kind, collection, task, holder, expires in leases:
        is_late = expires < now and not (kind == "run" and is_here(holder))
        if not is_late and not dead[holder]:
            continue
        if kind == "run":
            drop_run(db, task)  # the task's own next run collects what it has left
            continue
        drop(db, identifier)
        if kind == "write":
            db.execute("INSERT OR IGNORE INTO abandoned VALUES (?, ?)", (identifier, collection))


def take_writes(db: apsw.Connection, name: str) -> None:
    """Take from everyone the right to write a collection; what they have written of it is garbage from here on."""
    db.execute(
        "INSERT OR IGNORE INTO abandoned SELECT id, collection FROM capability"
        " WHERE collection = ? AND kind = 'write' AND task IS NULL",
        (name,),
    )
    db.execute("DELETE FROM capability WHERE collection = ? AND kind = 'write'", (name,))


def renew(db: apsw.Connection, identifier: str) -> None:
    """Extend a lease; one that has ended stays ended."""
    db.execute("UPDATE capability SET expires = ? WHERE id = ?", (wall_clock() + LEASE, identifier))


def renew_runs(db: apsw.Connection) -> None:
    """Extend the leases of all rights to run a task that this process holds.

    Args:
        db: in a write transaction, which costs nothing more where it writes anyway.
    """
    db.execute(
        "UPDATE capability SET expires = ? WHERE kind = 'run' AND holder = ?", (wall_clock() + LEASE, this_process())
    )


def drop(db: apsw.Connection, identifier: str) -> None:
    """Drop a lease, if it has not ended."""
    db.execute("DELETE FROM capability WHERE id = ?", (identifier,))


def is_live(db: apsw.Connection, identifier: str) -> bool:
    """Whether a capability has neither ended nor been superseded."""
    return db.execute("SELECT 1 FROM capability WHERE id = ?", (identifier,)).get is not None


# Rights to write


def lease_write(db: apsw.Connection, name: str, frontier: int) -> WriteCapability:
    """Lease a right to ingest into a collection."""
    capability = WriteCapability(str(uuid4()), name, frontier)
    insert_capability(
        db, CapabilityRow(capability.id, "write", collection=name, frontier=frontier, expires=wall_clock() + LEASE)
    )
    return capability


def require_write(db: apsw.Connection, capability: WriteCapability) -> None:
    """Require that a right to ingest has not ended.

    Raises:
        FencedError: it has.
    """
    if not is_live(db, capability.id):
        raise _ran_out(capability.collection)


def downgrade_write(db: apsw.Connection, capability: WriteCapability, frontier: int) -> None:
    """Move a right to ingest up to a frontier, and renew it."""
    db.execute(
        "UPDATE capability SET frontier = ?, expires = ? WHERE id = ?",
        (frontier, wall_clock() + LEASE, capability.id),
    )


def least_write_frontier(db: apsw.Connection, name: str) -> int | None:
    """The clock that a collection's `upper` may not pass because someone writes it; None if nobody does."""
    frontier: int | None = db.execute(
        "SELECT min(frontier) FROM capability WHERE collection = ? AND kind = 'write'", (name,)
    ).get
    return frontier


# Rights to run


@dataclass(frozen=True, slots=True)
class Runner:
    """Who has the right to run a task.

    Attributes:
        process: as derive/storage/metadata/process.py names it.
        purpose: what it has it for, for people; None for a run.
    """

    process: str
    purpose: str | None


def runner_of(db: apsw.Connection, task: str) -> Runner | None:
    """Who else has the right to run a task than this process; None if nobody has."""
    row: Any = db.execute(
        "SELECT holder, purpose FROM capability WHERE task = ? AND kind = 'run' AND holder <> ?", (task, this_process())
    ).fetchone()
    return row and Runner(*row)


def require_free(db: apsw.Connection, task: str) -> None:
    """Require that no other process has the right to run a task.

    Args:
        db: in a write transaction.
        task: its name.

    Raises:
        FencedError: one has.
    """
    drop_ended(db)
    if runner_of(db, task) is not None:
        raise _superseded(task)


def lease_run(
    db: apsw.Connection, task: str, epoch: int, frontiers: Mapping[str, int], purpose: str | None = None
) -> TaskCapability:
    """Lease the right to run a task, and to write collections for it; whoever had either is superseded.

    Args:
        db: in a write transaction.
        task: its name.
        epoch: of the task, from here on.
        frontiers: for each collection that it writes, the clock at or above which it will.
        purpose: what it is for, for people; None for a run.
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
    """Require that a right to run a task has neither ended nor been superseded, and renew it.

    Args:
        db: in a write transaction.
        capability: the right.
        names: of collections that it must still have the right to write.

    Raises:
        FencedError: it has, or another task writes one of them.
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
    """Move a task's right to write a collection up to a frontier."""
    db.execute(
        "UPDATE capability SET frontier = ? WHERE collection = ? AND task = ? AND kind = 'write'",
        (frontier, name, capability.task),
    )


def drop_run(db: apsw.Connection, task: str) -> None:
    """Drop the right to run a task, and to write for it; the task is at rest from here on, and reads no files."""
    _delete_run(db, task)
    db.execute("UPDATE capability SET at = NULL WHERE task = ?", (task,))


def is_at_work(db: apsw.Connection, task: str) -> bool:
    """Whether a process holds the right to run a task."""
    return db.execute("SELECT 1 FROM capability WHERE task = ? AND kind = 'run'", (task,)).get is not None


def _delete_run(db: apsw.Connection, task: str) -> None:
    db.execute("DELETE FROM capability WHERE task = ? AND kind IN ('run', 'write')", (task,))


def _superseded(name: str) -> FencedError:
    return FencedError(f"another flowctl has taken over '{name}'; this one commits nothing more")


def _ran_out(name: str) -> FencedError:
    return FencedError(f"the lease to write '{name}' ran out", hint="run the command again")


def insert_capability(db: apsw.Connection, row: CapabilityRow) -> None:
    """Add a capability that this process holds."""
    db.execute(
        "INSERT INTO capability (id, kind, collection, task, transform, frontier, expires, at, holder)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, this_process()),
    )
