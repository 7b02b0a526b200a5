"""Relations: histories of collections, each with a number that is never reused.

A name stands for one relation at a time. The relation of a name changes when a table is dropped and recreated, when
another table gets the name, and when a reset begins a new history. Readers keep the number, and use a name only to find
it.
"""

from __future__ import annotations

from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.time.frontier import END_OF_TIME


def new_identifier(db: apsw.Connection) -> int:
    """Return a number that was never used, in a write transaction."""
    identifier: int = db.execute("UPDATE identifier SET last = last + 1 RETURNING last").get
    return identifier


def relation_of(db: apsw.Connection, name: str) -> int | None:
    """Return the relation with a name; None if nothing is stored under it."""
    relation: int | None = db.execute("SELECT relation FROM collection WHERE name = ?", (name,)).get
    return relation


def name_of_relation(db: apsw.Connection, relation: int) -> str | None:
    """Return the name of a relation; None if nothing of it is left."""
    name: str | None = db.execute("SELECT name FROM collection WHERE relation = ?", (relation,)).get
    return name


def replaces_nothing(db: apsw.Connection, name: str, relation: int) -> bool:
    """Return true if a table has its name from a relation that a catalog declared, and that was never written."""
    is_table = db.execute("SELECT 1 FROM collection WHERE name = ? AND columns IS NOT NULL", (name,)).get
    return is_table is not None and name_of_relation(db, relation) is None


def describe_fate(db: apsw.Connection, name: str, relation: int) -> str:
    """Describe the fate of a relation that once had the name, and the present relation of the name."""
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
