"""Leases: capabilities that end by themselves when their holder does.

A lease ends when it has not been renewed in time, or when its holder, a process of this machine, is gone. What a writer
that never came to its end has left in the data folder is remembered in the same transaction, until it is removed.
"""

from __future__ import annotations

from typing import Any

import apsw

from derive.storage.process import is_dead
from derive.storage.timeline import wall_clock


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
