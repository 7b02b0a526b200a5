"""Collections and tables in the metadata database: bindings of their names, and updates that are in no segment yet.

A name is bound to one collection at a time. A dropped table keeps its name, with an empty frontier, until another table
takes the name or the last reader has ended.

A collection's name is bound to the key and the logical partitions of its stored documents from the first document on,
because packed keys and folders depend on them. A collection without documents, such as a derived collection after a
reset, takes the key and partitions of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson

from derive.errors import FrontierError, StorageError, ViewError
from derive.position import Position
from derive.protocol.collection import aside_name, is_of_sql
from derive.protocol.specs import CollectionSpec
from derive.storage.capability.table import (
    least_write_frontier,
    release_expired,
    release_inputs,
    release_writers,
    replace_inputs,
    view_holder,
)
from derive.storage.metadata.collection import first_error, frontiers_of, new_identifier
from derive.storage.metadata.owner import Owner, owner_of_documents
from derive.storage.metadata.segment import has_segments, read_segments, replace_segments
from derive.storage.metadata.tasks import command_of_reset, read_task
from derive.storage.metadata.transaction import Transaction
from derive.storage.table_types import AppendedRow, RowUpdate, Table, TableColumn, in_order
from derive.time import BEGINNING, END_OF_TIME, FOREVER
from derive.time.positions import Segment


def bind(db: Transaction, spec: CollectionSpec) -> None:
    """Bind a collection's name to its key and logical partitions, in a write transaction.

    Raises:
        StorageError: the collection has documents or a writer, and another key or other partitions.
    """
    key, partitions = _texts_of(spec)
    row: Any = db.execute("SELECT key, partitions, columns FROM collection WHERE name = ?", (spec.name,)).fetchone()
    if row is None:
        insert_collection(db, spec.name, key, partitions, BEGINNING)
    elif row[:2] != (key, partitions):
        release_expired(db)
        if row[2] is not None or has_segments(db, spec.name) or least_write_frontier(db, spec.name) is not None:
            changes = [("key", key, row[0]), ("logical partitions", partitions, row[1])]
            raise _bound(db, spec.name, changes, spec.position)
        db.execute("UPDATE collection SET key = ?, partitions = ? WHERE name = ?", (key, partitions, spec.name))


def find_conflict(db: Transaction, spec: CollectionSpec) -> StorageError | None:
    """Return the error with which `bind` refuses a collection that has documents; None if `bind` accepts it.

    Writers without documents do not count, because they may have ended.
    """
    row: Any = db.execute("SELECT key, partitions, columns FROM collection WHERE name = ?", (spec.name,)).fetchone()
    key, partitions = _texts_of(spec)
    if row is None or row[:2] == (key, partitions) or (row[2] is None and not has_segments(db, spec.name)):
        return None
    changes = [("key", key, row[0]), ("logical partitions", partitions, row[1])]
    return _bound(db, spec.name, changes, spec.position)


def _texts_of(spec: CollectionSpec) -> tuple[str, str]:
    """Return the JSON texts of a collection's key and partitions."""
    partitions = [[projection.field, projection.pointer] for projection in spec.partitions]
    return orjson.dumps(spec.key).decode(), orjson.dumps(partitions).decode()


def insert_collection(
    db: Transaction,
    name: str,
    key: str,
    partitions: str,
    frontier: int,
    columns: str | None = None,
    identifier: int | None = None,
) -> int:
    """Add a collection whose history begins at a frontier.

    Args:
        db: a write transaction.
        name: an unused name.
        key: JSON array of pointers.
        partitions: JSON array of pairs of a field and its pointer.
        frontier: first `since` and `upper`.
        columns: JSON description of a table's columns; None for a collection of documents.
        identifier: a new identifier that the caller has assigned; None to assign one.

    Returns:
        The permanent identifier of the collection.
    """
    identifier = identifier or new_identifier(db)
    db.execute(
        "INSERT INTO collection (name, key, partitions, since, upper, id, columns, relation, named)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (name, key, partitions, frontier, frontier, identifier, columns, identifier, db.now()),
    )
    return identifier


def check_partitions(db: Transaction, name: str, fields: Sequence[str]) -> None:
    """Raise an error if a collection with documents has other logical partitions.

    Raises:
        StorageError: the partitions differ.
    """
    stored = orjson.loads(db.execute("SELECT partitions FROM collection WHERE name = ?", (name,)).get)
    before = [field for field, _ in stored]
    if before != list(fields):
        raise _bound(db, name, [("logical partitions", ", ".join(fields) or "none", ", ".join(before) or "none")])


def _bound(
    db: Transaction, name: str, changes: Sequence[tuple[str, str, str]], position: Position | None = None
) -> StorageError:
    """Return the error of a collection that contradicts the catalog; a change is `(what, now, before)`."""
    stored = " and ".join(f"with {what} {before}" for what, now, before in changes if now != before)
    says = " and ".join(now for _, now, before in changes if now != before)
    if is_of_sql(name):
        way_out = "change the catalog to fit the table of SQL: its key is its first column, and it has no partitions"
    elif read_task(db, name):
        way_out = (
            "use another name; to replace the documents at one time: flowctl run --shadow; to start over:"
            f" {command_of_reset(db, name)}"
        )
    else:
        way_out = "use another name, or remove the data folder to start over"
    what = f"collection '{name}' was stored {stored}, and the catalog now says {says}"
    return StorageError(what, position=position, hint=way_out)


_REFERENCES = ("segment", "replaced", "capability", "abandoned", "writer", "discarded")
"""Tables of the database with a foreign key to the name of a collection."""

_QUERY = "SELECT id, name, columns, key, since, upper, maintained FROM collection WHERE columns IS NOT NULL"


def insert_table(
    db: Transaction,
    name: str,
    columns: Sequence[TableColumn],
    key: Sequence[str],
    frontier: int,
    identifier: int | None = None,
) -> int:
    """Add a table under an unused name, and return its identifier, which the caller may have assigned."""
    described = _described(columns)
    return insert_collection(db, name, orjson.dumps(list(key)).decode(), "[]", frontier, described, identifier)


def take_over(
    db: Transaction,
    name: str,
    columns: Sequence[TableColumn],
    key: Sequence[str],
    frontier: int,
    identifier: int | None = None,
) -> int | None:
    """Convert a collection that was never written to a table of the same key, because a catalog has declared the table.

    The collection keeps its relation, for its readers.

    Returns:
        The identifier of the table, which the caller may have assigned; None if the collection does not exist.
    """
    taken: int | None = db.execute(
        "UPDATE collection SET columns = ?, upper = CASE WHEN upper < ? THEN ? ELSE upper END, id = coalesce(?, id)"
        " WHERE name = ? AND key = ? AND partitions = '[]'"
        " AND columns IS NULL AND NOT EXISTS (SELECT 1 FROM segment WHERE collection = name)"
        " AND NOT EXISTS (SELECT 1 FROM capability WHERE collection = name AND kind = 'write')"
        " AND NOT EXISTS (SELECT 1 FROM task WHERE task.name = collection.name) RETURNING id",
        (_described(columns), frontier, frontier, identifier, name, orjson.dumps(list(key)).decode()),
    ).get
    return taken


def _described(columns: Sequence[TableColumn]) -> str:
    return orjson.dumps([[column.name, column.type, column.nullable] for column in columns]).decode()


def read_table(db: Transaction, identifier: int) -> Table | None:
    """Return a table; None if the identifier is unknown, or the table was deleted."""
    row: Any = db.execute(f"{_QUERY} AND id = ?", (identifier,)).fetchone()
    return _table(row) if row else None


def find_table(db: Transaction, name: str) -> Table | None:
    """Return the table with a name, dropped or not; None for none."""
    row: Any = db.execute(f"{_QUERY} AND name = ?", (name,)).fetchone()
    return _table(row) if row else None


def read_tables(db: Transaction) -> list[Table]:
    """Return all tables, by name."""
    return [_table(row) for row in db.execute(f"{_QUERY} ORDER BY name").fetchall()]


def _table(row: Any) -> Table:
    identifier, name, columns, key, since, upper, definition = row
    described = tuple(TableColumn(*column) for column in orjson.loads(columns))
    return Table(identifier, name, described, tuple(orjson.loads(key)), since, upper, definition)


def name_of(db: Transaction, identifier: int) -> str | None:
    """Return the name of a collection; None for an unknown identifier."""
    name: str | None = db.recall("SELECT name FROM collection WHERE id = ?", (identifier,)).get
    return name


def rename(db: Transaction, name: str, new_name: str) -> None:
    """Bind a collection to another name, in a write transaction; its files are not moved."""
    db.defer_references()
    db.execute("UPDATE collection SET name = ?, named = ? WHERE name = ?", (new_name, db.now(), name))
    for table in _REFERENCES:
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (new_name, name))


def make_way(db: Transaction, name: str) -> bool:
    """Release a name, in a write transaction in which expired capabilities were dropped.

    A dropped table gets another name, because it may have readers. A declared collection that was never written is
    deleted; for its readers, the next collection of the name replaces it.

    Returns:
        False if another collection has the name and keeps it.
    """
    table = find_table(db, name)
    if table is not None:
        if table.upper < END_OF_TIME:
            return False
        rename(db, name, aside_name(name, table.id))
    elif frontiers_of(db, name) is not None:
        if owner_of_documents(db, name) is not Owner.NOBODY:
            return False
        db.defer_references()
        db.execute("DELETE FROM collection WHERE name = ?", (name,))
    return True


def alter(db: Transaction, identifier: int, columns: Sequence[TableColumn]) -> None:
    """Replace the columns of a table, in a write transaction; its rows stay as they are."""
    db.execute("UPDATE collection SET columns = ? WHERE id = ?", (_described(columns), identifier))


def begin_view(db: Transaction, identifier: int, names: Collection[str], frontier: int) -> None:
    """Make a new table a materialized view: set its frontiers, and give it read capabilities on its inputs.

    Args:
        db: a write transaction.
        identifier: identifier of the table.
        names: names of the inputs.
        frontier: first timestamp; it is raised to the greatest `since` of the inputs.
    """
    first = max([frontier, *(known[0] for known in (frontiers_of(db, name) for name in names) if known)])
    db.execute("UPDATE collection SET upper = ? WHERE id = ? AND upper < ?", (first, identifier, first))
    db.execute("UPDATE collection SET maintained = 1, since = upper WHERE id = ?", (identifier,))
    replace_inputs(db, view_holder(identifier), names, first)


def redefine_view(db: Transaction, identifier: int, names: Collection[str], clock: int) -> None:
    """Give a materialized view another definition from a timestamp on, in a write transaction.

    Dataflows of earlier definitions can no longer write. The first update of the new definition begins with the
    difference from the stored rows. A view of constants keeps its rows, because it is written for all times.

    Args:
        db: a write transaction.
        identifier: identifier of the view.
        names: names of the inputs.
        clock: the timestamp.
    """
    is_redefined = db.execute(
        "UPDATE collection SET maintained = -abs(maintained) - 1, upper = CASE WHEN upper < ? THEN ? ELSE upper END"
        " WHERE id = ? AND maintained <> 0 AND upper < ? RETURNING 1",
        (clock, clock, identifier, FOREVER),
    ).get
    if is_redefined:
        replace_inputs(db, view_holder(identifier), names, clock)


def require_definition(db: Transaction, identifier: int, definition: int) -> None:
    """Record that the rows of a view are those of a definition from now on, in a write transaction.

    Raises:
        FrontierError: the view has a later definition.
    """
    if db.expect("SELECT 1 FROM collection WHERE id = ? AND maintained = ?", (identifier, definition)):
        return
    later = "UPDATE collection SET maintained = ? WHERE id = ? AND maintained = ? RETURNING 1"
    if not db.execute(later, (definition, identifier, -definition)).get:
        raise FrontierError(f"view {identifier} has another definition now", hint="The next write has its rows.")


def has_ended_views(db: Transaction) -> bool:
    """Return whether a materialized view has the `upper` of a dropped table; DROP ends the maintenance, too."""
    query = "SELECT 1 FROM collection WHERE columns IS NOT NULL AND maintained <> 0 AND upper = ?"
    return db.recall(query, (END_OF_TIME,)).get is not None


def begin_ended_views(db: Transaction, frontier: int) -> None:
    """Begin again the materialized views that have the `upper` of a dropped table; their next rows replace their rows.

    Earlier releases wrote this `upper` for views of constants, which are known at all times.
    """
    db.execute(
        "UPDATE collection SET since = ?, upper = ? WHERE columns IS NOT NULL AND maintained <> 0 AND upper = ?",
        (frontier, frontier, END_OF_TIME),
    )


def end_writing(db: Transaction, identifier: int) -> None:
    """Move the `upper` of a table to the end of time, and drop the capabilities of writers and of a view's inputs."""
    release_inputs(db, view_holder(identifier))
    db.execute("UPDATE collection SET upper = ?, maintained = 0 WHERE id = ?", (END_OF_TIME, identifier))
    release_writers(db, str(name_of(db, identifier)))


def forget_unread(db: Transaction) -> None:
    """Move the `since` of dropped tables without readers to the end of time, and delete their contents.

    Args:
        db: a write transaction in which expired capabilities were dropped.
    """
    rows: list[Any] = db.recall(
        "SELECT id, name FROM collection WHERE upper = ? AND columns IS NOT NULL AND since < upper AND NOT EXISTS"
        " (SELECT 1 FROM capability WHERE collection = name AND kind = 'read' AND frontier < upper) ORDER BY id",
        (END_OF_TIME,),
    ).fetchall()
    for identifier, name in rows:
        replace_segments(db, name, read_segments(db, name, BEGINNING), [])
        db.execute("DELETE FROM appended WHERE collection = ?", (identifier,))
        db.execute("DELETE FROM failure WHERE collection = ?", (identifier,))
        db.execute("UPDATE collection SET since = upper WHERE id = ?", (identifier,))


# Updates that are in no segment


def append(db: Transaction, identifier: int, updates: Sequence[RowUpdate]) -> None:
    """Add updates to a table; their sequence numbers continue the numbers of the same timestamps."""
    if updates:
        clock = min(update.clock for update in updates)
        first = 0 if _ends_before(db, identifier, clock) else next_seq(db, identifier, clock)
        db.executemany(
            "INSERT INTO appended (collection, clock, seq, diff, key, doc) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (identifier, update.clock, number, update.diff, update.key, update.text)
                for number, update in enumerate(in_order(updates), start=first)
            ),
        )


def _ends_before(db: Transaction, identifier: int, clock: int) -> bool:
    """Return true if all updates of a table have timestamps before `clock`."""
    return db.expect(
        "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM appended WHERE collection = ? AND clock >= ?) AND NOT EXISTS"
        " (SELECT 1 FROM segment WHERE collection = (SELECT name FROM collection WHERE id = ?) AND clock_max >= ?)",
        (identifier, clock, identifier, clock),
    )


def next_seq(db: Transaction, identifier: int, clock: int) -> int:
    """Return a sequence number above the numbers of all updates of a table from a timestamp on.

    Such updates exist only while a write capability keeps the `upper` of the table back.
    """
    row: Any = db.execute(
        "SELECT (SELECT coalesce(max(seq) + 1, 0) FROM appended WHERE collection = ? AND clock >= ?),"
        " (SELECT coalesce(sum(documents), 0) FROM segment"
        " WHERE collection = (SELECT name FROM collection WHERE id = ?) AND clock_max >= ?)",
        (identifier, clock, identifier, clock),
    ).fetchone()
    return max(int(row[0]), int(row[1]))


def has_appended(db: Transaction, name: str) -> int | None:
    """Return the identifier of a table with updates that are in no segment; None for other names."""
    identifier: int | None = db.execute(
        "SELECT id FROM collection WHERE name = ? AND columns IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM appended WHERE collection = id)",
        (name,),
    ).get
    return identifier


def count_updates(db: Transaction, identifier: int) -> int:
    """Return the number of stored updates of a table; 0 for an unknown identifier."""
    count: int | None = db.execute(
        "SELECT (SELECT coalesce(sum(documents), 0) FROM size WHERE size.collection = collection.name)"
        " + (SELECT count(*) FROM appended WHERE appended.collection = collection.id) FROM collection WHERE id = ?",
        (identifier,),
    ).get
    return int(count or 0)


def appended_tables(db: Transaction, fewest: int) -> list[int]:
    """Return the identifiers of the tables with at least `fewest` updates that are in no segment."""
    rows: list[Any] = db.execute(
        "SELECT collection FROM appended GROUP BY collection HAVING count(*) >= ?", (fewest,)
    ).fetchall()
    return [identifier for (identifier,) in rows]


def read_appended(
    db: Transaction, identifier: int, begin: int, end: int, within: Sequence[Sequence[str]] = ()
) -> list[AppendedRow]:
    """Return updates in no segment with timestamps in `[begin, end)`: timestamp, sequence number, diff, key and text.

    Args:
        db: a transaction.
        identifier: identifier of the table.
        begin: first timestamp.
        end: exclusive upper bound of the timestamps.
        within: filter on updates: the text of an update must contain one text of each of these lists.
    """
    desired = "".join(f" AND ({' OR '.join([db.dialect.contains] * len(parts)) or 'false'})" for parts in within)
    rows: list[Any] = db.execute(
        "SELECT clock, seq, diff, key, doc FROM appended WHERE collection = ? AND clock >= ? AND clock < ?"
        f"{desired} ORDER BY clock, seq",
        (identifier, begin, end, *chain.from_iterable(within)),
    ).fetchall()
    return rows


def delete_appended(db: Transaction, identifier: int, end: int) -> None:
    """Delete the updates with timestamps below `end`, which a segment now has."""
    db.execute("DELETE FROM appended WHERE collection = ? AND clock < ?", (identifier, end))


@dataclass(frozen=True, slots=True)
class TableRead:
    """Updates of a table.

    Attributes:
        upper: `upper` of the table at the read.
        segments: segments that may contain some of the updates.
        appended: updates that are in no segment yet.
        failure: if the updates end at an error of a materialized view, the timestamp and the error.
    """

    upper: int
    segments: tuple[Segment, ...]
    appended: tuple[AppendedRow, ...]
    failure: tuple[int, ViewError] | None = None


def read_between(
    db: Transaction, identifier: int, begin: int, end: int, within: Sequence[Sequence[str]]
) -> TableRead | None:
    """Return the updates of a table with timestamps in `[begin, end)`; None if the table does not exist.

    `within` filters like in `read_appended`.
    """
    known = _known(db, identifier)
    if known is None:
        return None
    name, upper = known
    return TableRead(upper, _segments(db, name, begin, end), tuple(read_appended(db, identifier, begin, end, within)))


def read_on(db: Transaction, identifier: int, begin: int) -> TableRead | None:
    """Return the final updates of a table from a timestamp on; None if no later timestamp is final."""
    known = _known(db, identifier)
    if known is None or known[1] <= begin:
        return None
    name, upper = known
    failure = first_error(db, name, begin, upper)
    end = upper if failure is None else failure[0]
    appended = tuple(read_appended(db, identifier, begin, end))
    return TableRead(upper, _segments(db, name, begin, end), appended, failure)


def _known(db: Transaction, identifier: int) -> tuple[str, int] | None:
    """Return the name of a table and its `upper`; None if the table does not exist."""
    row: Any = db.execute(
        "SELECT name, upper FROM collection WHERE id = ? AND columns IS NOT NULL", (identifier,)
    ).fetchone()
    return (row[0], row[1]) if row else None


def _segments(db: Transaction, name: str, begin: int, end: int) -> tuple[Segment, ...]:
    return tuple(read_segments(db, name, begin, end))
