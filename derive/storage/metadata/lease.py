"""Leases: capabilities that end by themselves when their holder does.

A lease ends when its holder, a process that could be seen from here, is gone, or when it has not been renewed in time.
A task that can be seen at work keeps its right to write however late it is: whoever wants it takes it over. What an
ingestion that never came to its end has left in the data folder is remembered in the same transaction, until it is
removed.
"""

from __future__ import annotations

from typing import Any

import apsw

from derive.errors import FencedError
from derive.storage.metadata.capability import LEASE, WriteCapability
from derive.storage.metadata.process import is_dead, is_here, this_process
from derive.storage.timeline import wall_clock


def drop_ended(db: apsw.Connection) -> None:
    """Drop the leases that have ended; files of writers among them are garbage from here on.

    Args:
        db: in a write transaction.
    """
    leases: list[Any] = db.execute(
        "SELECT id, collection, kind, epoch, holder, expires FROM capability WHERE expires IS NOT NULL"
    ).fetchall()
    now = wall_clock()
    for identifier, collection, kind, epoch, holder, expires in leases:
        is_late = expires < now and not (epoch and is_here(holder))
        if not is_late and not is_dead(holder):
            continue
        db.execute("DELETE FROM capability WHERE id = ?", (identifier,))
        if epoch:
            rest_task(db, collection)  # its task's own next run collects what it has left
        elif kind == "write":
            db.execute("INSERT OR IGNORE INTO abandoned VALUES (?, ?)", (identifier, collection))


def require(db: apsw.Connection, capability: WriteCapability) -> None:
    """Require that a right to write has neither ended nor been superseded.

    Raises:
        FencedError: it has.
    """
    name = capability.collection
    if db.execute("SELECT 1 FROM capability WHERE id = ?", (capability.id,)).get is not None:
        return
    if capability.epoch and db.execute("SELECT epoch FROM collection WHERE name = ?", (name,)).get > capability.epoch:
        raise FencedError(f"another flowctl has taken over '{name}'; this one commits nothing more")
    raise FencedError(f"the lease to write '{name}' ran out", hint="run the command again")


def renew_own(db: apsw.Connection) -> None:
    """Extend the leases of the exclusive capabilities that this process holds.

    Args:
        db: in a write transaction, which costs nothing more where it writes anyway.
    """
    db.execute(
        "UPDATE capability SET expires = ? WHERE kind = 'write' AND epoch > 0 AND holder = ?",
        (wall_clock() + LEASE, this_process()),
    )


def rest_task(db: apsw.Connection, task: str) -> None:
    """Note that a task is not at work: it is reading no files."""
    db.execute("UPDATE capability SET at = NULL WHERE task = ?", (task,))
