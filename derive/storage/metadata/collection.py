"""Collections in the metadata database: frontiers and descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apsw

from derive.storage.capability.table import least_write_frontier, release_writers
from derive.storage.metadata.descriptions import Collection
from derive.storage.metadata.failures import standing_error
from derive.storage.metadata.relations import new_identifier
from derive.storage.metadata.segment import discard_segments
from derive.storage.timeline import wall_clock
from derive.time.frontier import BEGINNING


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
