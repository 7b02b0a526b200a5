"""Collections in the metadata database: frontiers, descriptions, and the relation that a name stands for.

A name stands for one relation at a time. The relation of a name changes when a table is dropped and recreated, when
another table gets the name, and when a reset begins a new history. Readers keep the number, and use a name only to find
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.storage.capability.table import least_write_frontier, release_writers
from derive.storage.metadata.descriptions import Collection
from derive.storage.metadata.failures import standing_error
from derive.storage.metadata.segment import discard_segments
from derive.storage.timeline import wall_clock
from derive.time.frontier import BEGINNING, END_OF_TIME


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


def read_collection(db: apsw.Connection, name: str) -> Collection | None:
    """Return the description of a collection; None if nothing is stored under this name."""
    row: Any = db.execute(
        "SELECT relation, name, since, upper, coalesce(sum(documents), 0), count(segment.id), coalesce(sum(bytes), 0)"
        " FROM collection LEFT JOIN segment ON collection = name WHERE name = ? GROUP BY name",
        (name,),
    ).fetchone()
    if row is None:
        return None
    return replace(Collection(*row[1:]), failure=standing_error(db, name), relation=row[0])


def frontiers_of(db: apsw.Connection, name: str) -> tuple[int, int] | None:
    """Return the `since` and the `upper` of a collection; None if nothing is stored under this name."""
    row: tuple[int, int] | None = db.execute("SELECT since, upper FROM collection WHERE name = ?", (name,)).fetchone()
    return row


def upper_of(db: apsw.Connection, name: str) -> int:
    """Return the `upper` of a collection; `BEGINNING` if nothing is stored under this name."""
    frontiers = frontiers_of(db, name)
    return BEGINNING if frontiers is None else frontiers[1]


def is_maintained(db: apsw.Connection, name: str) -> bool:
    """Return true if a collection is a materialized view, whose `upper` only its own writes advance."""
    return bool(db.execute("SELECT maintained FROM collection WHERE name = ?", (name,)).get)


def advance_upper(db: apsw.Connection, name: str, frontier: int) -> int:
    """Advance the `upper` of a collection to a frontier, or as far as its writers allow; return the new `upper`."""
    least = least_write_frontier(db, name)
    bound = frontier if least is None else min(least, frontier)
    db.execute("UPDATE collection SET upper = max(upper, ?) WHERE name = ?", (bound, name))
    return upper_of(db, name)


def advance_since(db: apsw.Connection, name: str, since: int) -> None:
    """Move the `since` of a collection up, unless it is already later."""
    db.execute("UPDATE collection SET since = max(since, ?) WHERE name = ?", (since, name))


def empty_collection(db: apsw.Connection, name: str) -> None:
    """Begin a new history of a collection; drop its write capabilities, and the read capabilities of processes."""
    if frontiers_of(db, name) is not None:
        db.execute(
            "UPDATE collection SET since = ?1, upper = ?1, relation = ?2, named = ?3 WHERE name = ?4",
            (BEGINNING, new_identifier(db), wall_clock(), name),
        )
    release_writers(db, name)
    db.execute("DELETE FROM capability WHERE collection = ? AND task IS NULL", (name,))
    discard_segments(db, name)
