"""Relations: histories of collections, each with a number that never returns.

A name stands for one relation at a time. It stands for another one once a table was dropped and created again, once
another table was given the name, and once a task was reset, which gives the collection another history. A reader holds
the number: a name only finds it.
"""

from __future__ import annotations

from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.time.frontier import END_OF_TIME


def new_identifier(db: apsw.Connection) -> int:
    """Return a number that has never identified anything, in a write transaction."""
    identifier: int = db.execute("UPDATE identifier SET last = last + 1 RETURNING last").get
    return identifier


def relation_of(db: apsw.Connection, name: str) -> int | None:
    """Return the relation that a name stands for; None if nothing is stored under it."""
    relation: int | None = db.execute("SELECT relation FROM collection WHERE name = ?", (name,)).get
    return relation


def name_of_relation(db: apsw.Connection, relation: int) -> str | None:
    """Return the name under which a relation is stored; None if nothing of it is left."""
    name: str | None = db.execute("SELECT name FROM collection WHERE relation = ?", (relation,)).get
    return name


def replaces_nothing(db: apsw.Connection, name: str, relation: int) -> bool:
    """Return whether a table has its name from a relation that a catalog had named, and that nobody had filled."""
    is_table = db.execute("SELECT 1 FROM collection WHERE name = ? AND columns IS NOT NULL", (name,)).get
    return is_table is not None and name_of_relation(db, relation) is None


def tell_fate(db: apsw.Connection, name: str, relation: int) -> str:
    """Say what became of a relation for which a name stood, and what the name stands for now."""
    now: Any = db.execute(
        "SELECT upper, named, columns IS NOT NULL OR EXISTS (SELECT 1 FROM segment WHERE collection = name)"
        " OR EXISTS (SELECT 1 FROM task WHERE task.name = collection.name) FROM collection WHERE name = ?",
        (name,),
    ).fetchone()
    since = f" at {format_rfc3339(now[1] // 1_000_000 * 1_000_000)}" if now and now[1] else ""
    is_taken = now is not None and now[0] < END_OF_TIME and now[2]
    row: Any = db.execute("SELECT name, upper FROM collection WHERE relation = ?", (relation,)).fetchone()
    if row is None:
        return f"'{name}' was reset{since}"
    former, upper = row
    another = f", and another relation was given its name{since}" if is_taken else ""
    if upper >= END_OF_TIME:
        return f"'{name}' was dropped and created again{since}" if is_taken else f"'{name}' was dropped"
    return f"'{name}' was renamed to '{former}'{another}"
