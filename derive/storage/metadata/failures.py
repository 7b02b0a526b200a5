"""Errors of materialized views in the metadata database: at each time a view has rows or errors.

An error exists from one timestamp up to another: an update inserts it, and another one retracts it. Compaction deletes
retracted errors. The first timestamp of a present error is kept, however old it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.errors import ViewError
from derive.storage.table import ErrorUpdate
from derive.time.frontier import END_OF_TIME


def write_errors(db: apsw.Connection, identifier: int, updates: Sequence[ErrorUpdate]) -> None:
    """Insert and retract errors, in a write transaction.

    Args:
        db: the write transaction.
        identifier: identifier of a materialized view.
        updates: error updates ordered by timestamp; an inserted error is absent before, and a retracted one present.
    """
    for update in updates:
        error = (identifier, update.sqlstate, update.message)
        if update.diff > 0:
            db.execute(
                "INSERT INTO failure (collection, sqlstate, message, since, until) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET until = excluded.until",
                (*error, update.clock, END_OF_TIME),
            )
        else:
            db.execute(
                "UPDATE failure SET until = ? WHERE collection = ? AND sqlstate = ? AND message = ? AND until = ?",
                (update.clock, *error, END_OF_TIME),
            )


def standing_errors(db: apsw.Connection, identifier: int) -> dict[tuple[str, str], int]:
    """Return the errors at the last known time: the first timestamp of each, by SQLSTATE and message."""
    rows: list[Any] = db.execute(
        "SELECT sqlstate, message, since FROM failure WHERE collection = ? AND until = ?", (identifier, END_OF_TIME)
    ).fetchall()
    return {(sqlstate, message): since for sqlstate, message, since in rows}


def first_error(db: apsw.Connection, name: str, begin: int, end: int) -> tuple[int, ViewError] | None:
    """Return the first timestamp in `[begin, end)` at which a collection has an error, and the error; None for none."""
    row: Any = db.execute(
        "SELECT max(failure.since, ?2) AS time, failure.since, sqlstate, message FROM failure"
        " JOIN collection ON collection.id = failure.collection"
        " WHERE name = ?1 AND until > ?2 AND failure.since < ?3 ORDER BY time, sqlstate, message LIMIT 1",
        (name, begin, end),
    ).fetchone()
    return (row[0], view_error(name, *row[1:])) if row else None


def standing_error(db: apsw.Connection, name: str) -> tuple[int, ViewError] | None:
    """Return the first timestamp of the errors at the last known time, and one of them; None for none."""
    row: Any = db.execute(
        "SELECT min(failure.since) OVER (), failure.since, sqlstate, message FROM failure"
        " JOIN collection ON collection.id = failure.collection"
        " WHERE name = ? AND until = ? ORDER BY sqlstate, message LIMIT 1",
        (name, END_OF_TIME),
    ).fetchone()
    return (row[0], view_error(name, *row[1:])) if row else None


def forget_errors(db: apsw.Connection, name: str, since: int) -> None:
    """Delete errors that were retracted at or before `since`, in a write transaction."""
    db.execute(
        "DELETE FROM failure WHERE collection = (SELECT id FROM collection WHERE name = ?) AND until <= ?",
        (name, since),
    )


def view_error(name: str, since: int, sqlstate: str, message: str) -> ViewError:
    """Return a view's error with its detail and hint for readers."""
    return ViewError(
        sqlstate,
        message,
        detail=f"'{name}' has this error in place of its rows since {format_rfc3339(since)} (clock {since})",
        hint="correct the inputs of the view, or read the view at another time",
    )
