"""Leases: capabilities that end by themselves when their holder does.

A lease ends when it has not been renewed in time, or when its holder, a process of this machine, is gone. What a writer
that never came to its end has left in the data folder is remembered in the same transaction, until it is removed.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import apsw

from derive.storage.timeline import wall_clock


def this_holder() -> str:
    """This process, as a capability names its holder: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(holder: str) -> bool:
    """Whether the process that holds a capability is known to be gone: it ran on this host and does not any more."""
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def drop_ended(db: apsw.Connection) -> None:
    """Drop the leases that have ended; files of writers among them are garbage from here on.

    Args:
        db: in a write transaction.
    """
    now = wall_clock()
    leases: list[Any] = db.execute("SELECT id, holder, expires FROM capability WHERE expires IS NOT NULL").fetchall()
    ended = [(identifier,) for identifier, holder, expires in leases if expires < now or is_dead(holder)]
    if not ended:
        return
    db.executemany(
        "INSERT OR IGNORE INTO abandoned SELECT id, collection FROM capability WHERE id = ? AND kind = 'write'", ended
    )
    db.executemany("DELETE FROM capability WHERE id = ?", ended)
