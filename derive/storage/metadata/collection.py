"""Collections in the metadata database: frontiers, descriptions, errors of views, and the relation of a name.

An error of a view exists from one timestamp up to another: one update inserts the error, and another update retracts
it. Compaction deletes retracted errors, and keeps the first timestamp of a present error.

A name stands for one relation at a time. The relation of a name changes when a table is dropped and recreated, when
another table gets the name, and when a reset begins a new history. Readers use a name only once, to find the number of
the relation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from derive.document.clock import format_rfc3339
from derive.errors import ViewError
from derive.protocol.collection import owner_of_version
from derive.storage.capability.table import least_write_frontier, release_writers
from derive.storage.metadata.descriptions import Collection
from derive.storage.metadata.followed import forget_positions
from derive.storage.metadata.ingestions import forget_loads
from derive.storage.metadata.quarantine import forget_decisions
from derive.storage.metadata.segment import discard_segments, read_segments, replace_segments
from derive.storage.metadata.transaction import Transaction
from derive.storage.metadata.versions import drop_versions, versions_of
from derive.storage.table_types import ErrorUpdate
from derive.time import BEGINNING, END_OF_TIME

_MOST_VALUES = 500
"""Greatest number of identifiers in one statement."""


def write_errors(db: Transaction, identifier: int, updates: Sequence[ErrorUpdate]) -> None:
    """Insert and retract errors, in a write transaction.

    Args:
        db: the write transaction.
        identifier: identifier of a materialized view.
        updates: error updates ordered by timestamp; each inserts an absent error, or retracts a present one.
    """
    for update in updates:
        error = (identifier, update.sqlstate, update.message)
        if update.diff > 0:
            db.execute(
                "INSERT INTO failure (collection, sqlstate, message, since, until) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (collection, since, sqlstate, message) DO UPDATE SET until = excluded.until",
                (*error, update.clock, END_OF_TIME),
            )
        else:
            db.execute(
                "UPDATE failure SET until = ? WHERE collection = ? AND sqlstate = ? AND message = ? AND until = ?",
                (update.clock, *error, END_OF_TIME),
            )


def standing_errors(db: Transaction, identifier: int) -> dict[tuple[str, str], int]:
    """Return the errors at the last known time: for each SQLSTATE and message, the first timestamp."""
    rows: list[Any] = db.execute(
        "SELECT sqlstate, message, since FROM failure WHERE collection = ? AND until = ?", (identifier, END_OF_TIME)
    ).fetchall()
    return {(sqlstate, message): since for sqlstate, message, since in rows}


def first_error(db: Transaction, name: str, begin: int, end: int) -> tuple[int, ViewError] | None:
    """Return the first timestamp in `[begin, end)` at which a collection has an error, and the error; None for none."""
    row: Any = db.execute(
        "SELECT CASE WHEN failure.since < ? THEN ? ELSE failure.since END AS begun, failure.since, sqlstate, message"
        " FROM failure JOIN collection ON collection.id = failure.collection"
        " WHERE name = ? AND until > ? AND failure.since < ? ORDER BY begun, sqlstate, message LIMIT 1",
        (begin, begin, name, begin, end),
    ).fetchone()
    return (row[0], view_error(name, *row[1:])) if row else None


def standing_error(db: Transaction, name: str) -> tuple[int, ViewError] | None:
    """Return the first timestamp of the errors at the last known time, and one error; None without errors."""
    row: Any = db.execute(
        "SELECT min(failure.since) OVER (), failure.since, sqlstate, message FROM failure"
        " JOIN collection ON collection.id = failure.collection"
        " WHERE name = ? AND until = ? ORDER BY sqlstate, message LIMIT 1",
        (name, END_OF_TIME),
    ).fetchone()
    return (row[0], view_error(name, *row[1:])) if row else None


def failed_collections(db: Transaction) -> dict[int, ViewError]:
    """Return an error of each collection that has errors at its last known time, by identifier."""
    rows: Any = db.execute(
        "SELECT collection.id, name, failure.since, sqlstate, message FROM failure"
        " JOIN collection ON collection.id = failure.collection"
        " WHERE until = ? ORDER BY sqlstate DESC, message DESC",
        (END_OF_TIME,),
    ).fetchall()
    return {identifier: view_error(*error) for identifier, *error in rows}


def forget_errors(db: Transaction, name: str, since: int) -> None:
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


def new_identifier(db: Transaction) -> int:
    """Return a number that was never used, in a write transaction."""
    identifier: int = db.execute("UPDATE identifier SET last = last + 1 RETURNING last").get
    return identifier


def relation_of(db: Transaction, name: str) -> int | None:
    """Return the relation with a name; None if nothing is stored under it."""
    relation: int | None = db.execute("SELECT relation FROM collection WHERE name = ?", (name,)).get
    return relation


def name_of_relation(db: Transaction, relation: int) -> str | None:
    """Return the name of a relation; None if the relation was deleted."""
    name: str | None = db.execute("SELECT name FROM collection WHERE relation = ?", (relation,)).get
    return name


def replaces_nothing(db: Transaction, name: str, relation: int) -> bool:
    """Return true if a table has taken its name from a declared relation that was never written."""
    is_table = db.execute("SELECT 1 FROM collection WHERE name = ? AND columns IS NOT NULL", (name,)).get
    return is_table is not None and name_of_relation(db, relation) is None


def describe_fate(db: Transaction, name: str, relation: int) -> str:
    """Return a text: the fate of a relation that once had a name, and the relation that has the name now."""
    former = name_of_relation(db, relation)
    if former is not None and owner_of_version(former) == name:
        (ends,) = (version.ends for version in versions_of(db, name) if version.stored == former)
        return f"'{name}' was replaced at {format_rfc3339(ends or 0)}"
    now: Any = db.execute(
        "SELECT upper, named, columns IS NOT NULL OR EXISTS (SELECT 1 FROM segment WHERE collection = name)"
        " OR EXISTS (SELECT 1 FROM task WHERE task.name = collection.name) FROM collection WHERE name = ?",
        (name,),
    ).fetchone()
    since = f" at {format_rfc3339(now[1] // 1_000_000 * 1_000_000)}" if now and now[1] else ""
    is_taken = now is not None and now[0] < END_OF_TIME and now[2]
    row: Any = db.execute("SELECT name, upper FROM collection WHERE relation = ?", (relation,)).fetchone()
    if row is None:
        return f"'{name}' was {'replaced' if versions_of(db, name) else 'reset'}{since}"
    former, upper = row
    another = f", and another relation was given its name{since}" if is_taken else ""
    if upper >= END_OF_TIME:
        return f"'{name}' was dropped and created again{since}" if is_taken else f"'{name}' was dropped"
    return f"'{name}' was renamed to '{former}'{another}"


def read_collection(db: Transaction, name: str) -> Collection | None:
    """Return the description of a collection; None if nothing is stored under this name."""
    described = db.execute(
        "SELECT relation, name, since, upper, coalesce(documents, 0), coalesce(segments, 0), coalesce(bytes, 0)"
        " FROM collection LEFT JOIN size ON collection = name WHERE name = ?",
        (name,),
    )
    failure = standing_error(db, name)  # the statement travels with the other one
    row: Any = described.fetchone()
    return None if row is None else replace(Collection(*row[1:]), failure=failure, relation=row[0])


def read_documents(db: Transaction) -> dict[str, int]:
    """Return the number of documents in the segments of each collection that has any."""
    rows: list[Any] = db.execute("SELECT collection, sum(documents) FROM size GROUP BY collection").fetchall()
    return {name: int(documents) for name, documents in rows}


def frontiers_of(db: Transaction, name: str) -> tuple[int, int] | None:
    """Return the `since` and the `upper` of a collection; None if nothing is stored under this name."""
    row: tuple[int, int] | None = db.execute("SELECT since, upper FROM collection WHERE name = ?", (name,)).fetchone()
    return row


def upper_of(db: Transaction, name: str) -> int:
    """Return the `upper` of a collection; `BEGINNING` if nothing is stored under this name."""
    frontiers = frontiers_of(db, name)
    return BEGINNING if frontiers is None else frontiers[1]


def advance_upper(db: Transaction, name: str, frontier: int) -> None:
    """Advance the `upper` of a collection to a frontier, or as far as its writers allow."""
    bound = frontier
    before = "SELECT 1 FROM capability WHERE collection = ? AND kind = 'write' AND frontier < ?"
    if not db.expect(f"SELECT 1 WHERE NOT EXISTS ({before})", (name, frontier)):
        bound = least_write_frontier(db, name) or BEGINNING
    db.execute("UPDATE collection SET upper = ? WHERE name = ? AND upper < ?", (bound, name, bound))


def seal_collections(db: Transaction, names: Sequence[str], frontier: int | None) -> Callable[[], dict[str, int]]:
    """Advance the `upper` of collections, except of materialized views, like `advance_upper`.

    Args:
        db: a write transaction.
        names: names of the collections.
        frontier: the frontier; None for the time that the timeline has just passed.

    Returns:
        A function that returns the new `upper` of each collection.
    """
    present, given = ("?", (frontier,)) if frontier is not None else ("(SELECT clock + 1 FROM timeline)", ())
    for name in names:
        least = least_write_frontier(db, name)
        bound, values = present, given
        if least is not None:
            bound, values = f"CASE WHEN {present} < ? THEN {present} ELSE ? END", (*given, least, *given, least)
        db.execute(
            f"UPDATE collection SET upper = {bound} WHERE name = ? AND maintained = 0 AND upper < {bound}",
            (*values, name, *values),
        )
    uppers = []
    for begin in range(0, len(names), _MOST_VALUES):
        some = names[begin : begin + _MOST_VALUES]
        query = f"SELECT name, upper FROM collection WHERE name IN ({', '.join('?' * len(some))})"
        uppers.append(db.execute(query, some))
    return lambda: dict.fromkeys(names, BEGINNING) | {name: upper for rows in uppers for name, upper in rows}


def advance_uppers(db: Transaction, identifiers: Sequence[int], frontier: int) -> None:
    """Advance the `upper` of several collections to a frontier, each as far as its writers allow."""
    for begin in range(0, len(identifiers), _MOST_VALUES):
        some = identifiers[begin : begin + _MOST_VALUES]
        listed = f"id IN ({', '.join('?' * len(some))}) AND upper < ?"
        db.execute(
            f"UPDATE collection SET upper = ? WHERE {listed} AND NOT EXISTS (SELECT 1 FROM capability"
            " WHERE capability.collection = collection.name AND kind = 'write' AND frontier < ?)",
            (frontier, *some, frontier, frontier),
        )
        below = f"FROM collection WHERE {listed}"
        if not db.expect(f"SELECT 1 WHERE NOT EXISTS (SELECT 1 {below})", (*some, frontier)):
            for (name,) in db.execute(f"SELECT name {below}", (*some, frontier)).fetchall():
                advance_upper(db, name, frontier)


def advance_since(db: Transaction, name: str, since: int) -> None:
    """Move the `since` of a collection up, unless it is already later."""
    db.execute("UPDATE collection SET since = ? WHERE name = ? AND since < ?", (since, name, since))


def empty_collection(db: Transaction, name: str) -> None:
    """Begin a new history of a collection, as in a reset; the next run removes the files of the former history."""
    drop_versions(db, name)
    _begin_history(db, name)
    discard_segments(db, name)


def truncate_collection(db: Transaction, name: str) -> None:
    """Begin a new history of an ingested collection; compaction removes the files of the former history."""
    replace_segments(db, name, read_segments(db, name, BEGINNING), [])
    _begin_history(db, name)


def delete_collection(db: Transaction, name: str) -> bool:
    """Delete a collection and its capabilities.

    Return False if the collection has documents, writers or files again.
    """
    for table in ("segment", "replaced", "discarded", "abandoned"):
        if db.execute(f"SELECT 1 FROM {table} WHERE collection = ?", (name,)).get:
            return False
    if least_write_frontier(db, name) is not None:
        return False
    forget_loads(db, name)
    forget_positions(db, name)
    forget_decisions(db, name)
    _leave_writers(db, name)
    db.execute("DELETE FROM capability WHERE collection = ?", (name,))
    db.execute("DELETE FROM collection WHERE name = ?", (name,))
    return True


def _leave_writers(db: Transaction, name: str) -> None:
    """Delete the records of a collection's writers; those of a shadow go to its live collection.

    A stopped process may still write a file of a shadow that was swapped or dropped.
    """
    owner = owner_of_version(name)
    if owner is not None and frontiers_of(db, owner) is not None:
        db.execute("UPDATE writer SET collection = ? WHERE collection = ?", (owner, name))
    db.execute("DELETE FROM writer WHERE collection = ?", (name,))


def _begin_history(db: Transaction, name: str) -> None:
    """Give a collection a new relation; drop its write capabilities, and the read capabilities of processes."""
    if frontiers_of(db, name) is not None:
        forget_loads(db, name)
        forget_positions(db, name)
        forget_decisions(db, name)
        db.execute(
            "UPDATE collection SET since = ?, upper = ?, relation = ?, named = ? WHERE name = ?",
            (BEGINNING, BEGINNING, new_identifier(db), db.now(), name),
        )
    release_writers(db, name)
    db.execute("DELETE FROM capability WHERE collection = ? AND task IS NULL", (name,))
