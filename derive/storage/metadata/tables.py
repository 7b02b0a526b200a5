"""Tables in the metadata database: what they are called, and updates of them that are in no segment yet.

A name is bound to one collection at a time. One that was dropped keeps its name, with a frontier that is empty, until
another is created under it, or until nobody can read it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import apsw
import orjson

from derive.protocol.sql_names import aside_name
from derive.storage.metadata.binding import insert_collection
from derive.storage.metadata.capability import take_writes
from derive.storage.metadata.collection import frontiers_of
from derive.storage.metadata.owner import Owner, owner_of_documents
from derive.storage.metadata.read_rights import hold_only, holder_of_view, take_holds
from derive.storage.metadata.segment import read_segments, replace_segments
from derive.storage.table import AppendedRow, RowUpdate, Table, TableColumn, in_order
from derive.storage.timeline import wall_clock
from derive.time.frontier import BEGINNING, END_OF_TIME

_REFERENCES = ("segment", "replaced", "capability", "abandoned", "writer", "discarded")
"""Tables that name a collection."""

_QUERY = "SELECT id, name, columns, key, since, upper FROM collection WHERE columns IS NOT NULL"


def insert_table(
    db: apsw.Connection, name: str, columns: Sequence[TableColumn], key: Sequence[str], frontier: int
) -> int:
    """Add a table under a name to which nothing is bound; returns its identifier."""
    return insert_collection(db, name, orjson.dumps(list(key)).decode(), "[]", frontier, _described(columns))


def take_over(
    db: apsw.Connection, name: str, columns: Sequence[TableColumn], key: Sequence[str], frontier: int
) -> int | None:
    """Make a table of a collection of that key that never held anything, as a catalog knew of the table before it was.

    Returns:
        Its identifier; None if there is no such collection.
    """
    identifier: int | None = db.execute(
        "UPDATE collection SET columns = ?, upper = max(upper, ?) WHERE name = ? AND key = ? AND partitions = '[]'"
        " AND columns IS NULL AND NOT EXISTS (SELECT 1 FROM segment WHERE collection = name)"
        " AND NOT EXISTS (SELECT 1 FROM capability WHERE collection = name AND kind = 'write')"
        " AND NOT EXISTS (SELECT 1 FROM task WHERE task.name = collection.name) RETURNING id",
        (_described(columns), frontier, name, orjson.dumps(list(key)).decode()),
    ).get
    return identifier


def _described(columns: Sequence[TableColumn]) -> str:
    return orjson.dumps([[column.name, column.type, column.nullable] for column in columns]).decode()


def read_table(db: apsw.Connection, identifier: int) -> Table | None:
    """What is known of a table; None if there never was one of this identifier, or nothing of it is left."""
    row: Any = db.execute(f"{_QUERY} AND id = ?", (identifier,)).fetchone()
    return _table(row) if row else None


def find_table(db: apsw.Connection, name: str) -> Table | None:
    """The table to which a name is bound; it may have been dropped."""
    row: Any = db.execute(f"{_QUERY} AND name = ?", (name,)).fetchone()
    return _table(row) if row else None


def read_tables(db: apsw.Connection) -> list[Table]:
    """All tables, by name."""
    return [_table(row) for row in db.execute(f"{_QUERY} ORDER BY name").fetchall()]


def _table(row: Any) -> Table:
    identifier, name, columns, key, since, upper = row
    described = tuple(TableColumn(*column) for column in orjson.loads(columns))
    return Table(identifier, name, described, tuple(orjson.loads(key)), since, upper)


def name_of(db: apsw.Connection, identifier: int) -> str | None:
    """The name to which a collection is bound; None if there is none of this identifier."""
    name: str | None = db.execute("SELECT name FROM collection WHERE id = ?", (identifier,)).get
    return name


def rename(db: apsw.Connection, name: str, new_name: str) -> None:
    """Bind a collection to another name, in a write transaction; its files stay where they are."""
    db.execute("PRAGMA defer_foreign_keys = ON").fetchall()
    db.execute("UPDATE collection SET name = ?, named = ? WHERE name = ?", (new_name, wall_clock(), name))
    for table in _REFERENCES:
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (new_name, name))


def make_way(db: apsw.Connection, name: str) -> bool:
    """Have a name bound to nothing, in a write transaction in which leases that have ended were dropped.

    A table that was dropped is bound to another name, as somebody may be reading it still. A collection that a catalog
    has declared, and that nobody has written, goes; what is to be bound to the name takes its place for its readers.

    Returns:
        False where the name is that of something else, which keeps it.
    """
    table = find_table(db, name)
    if table is not None:
        if table.upper < END_OF_TIME:
            return False
        rename(db, name, aside_name(name, table.id))
    elif frontiers_of(db, name) is not None:
        if owner_of_documents(db, name) is not Owner.NOBODY:
            return False
        db.execute("PRAGMA defer_foreign_keys = ON").fetchall()
        db.execute("DELETE FROM collection WHERE name = ?", (name,))
    return True


def alter(db: apsw.Connection, identifier: int, columns: Sequence[TableColumn]) -> None:
    """Give a table other columns, in a write transaction; what it holds stays as it is."""
    db.execute("UPDATE collection SET columns = ? WHERE id = ?", (_described(columns), identifier))


def begin_view(db: apsw.Connection, identifier: int, names: Collection[str], frontier: int) -> None:
    """Make a materialized view of a table that is new: it is known from a frontier on, and reads others from there on.

    Args:
        db: in a write transaction.
        identifier: of the table.
        names: of what it is made of.
        frontier: where it begins; later where something that it is made of is not known any more at that time.
    """
    sinces = [known[0] for known in (frontiers_of(db, name) for name in names) if known]
    db.execute(
        "UPDATE collection SET maintained = 1, since = max(upper, ?1), upper = max(upper, ?1) WHERE id = ?2",
        (max([frontier, *sinces]), identifier),
    )
    hold_only(db, holder_of_view(identifier), names, max([frontier, *sinces]))


def end_writing(db: apsw.Connection, identifier: int) -> None:
    """Move the `upper` of a table to the end: nobody writes it any more, and as a view it reads nothing any more."""
    take_holds(db, holder_of_view(identifier))
    db.execute("UPDATE collection SET upper = ? WHERE id = ?", (END_OF_TIME, identifier))
    take_writes(db, str(name_of(db, identifier)))


def forget_unread(db: apsw.Connection) -> None:
    """Move the `since` of dropped tables that nobody holds to the end: nothing of them is left but their identifiers.

    Args:
        db: in a write transaction, in which leases that have ended were dropped.
    """
    rows: list[Any] = db.execute(
        "SELECT id, name FROM collection WHERE upper = ? AND columns IS NOT NULL AND since < upper AND NOT EXISTS"
        " (SELECT 1 FROM capability WHERE collection = name AND kind = 'read' AND frontier < upper)",
        (END_OF_TIME,),
    ).fetchall()
    for identifier, name in rows:
        replace_segments(db, name, read_segments(db, name, BEGINNING), [])
        db.execute("DELETE FROM appended WHERE collection = ?", (identifier,))
        db.execute("DELETE FROM failure WHERE collection = ?", (identifier,))
        db.execute("UPDATE collection SET since = upper WHERE id = ?", (identifier,))


# Updates that are in no segment


def append(db: apsw.Connection, identifier: int, updates: Sequence[RowUpdate]) -> None:
    """Add updates to a table, in an order of their own among those of a clock."""
    if updates:
        first = next_seq(db, identifier, min(update.clock for update in updates))
        db.executemany(
            "INSERT INTO appended (collection, clock, seq, diff, key, doc) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (identifier, update.clock, number, update.diff, update.key, update.text)
                for number, update in enumerate(in_order(updates), start=first)
            ),
        )


def next_seq(db: apsw.Connection, identifier: int, clock: int) -> int:
    """A number that no update of a table from a clock on has, nor any greater one.

    There are such updates only where somebody holds the table's `upper` back.
    """
    number: int = db.execute(
        "SELECT max("
        "(SELECT coalesce(max(seq) + 1, 0) FROM appended WHERE collection = ?1 AND clock >= ?2),"
        " (SELECT coalesce(sum(documents), 0) FROM segment"
        " WHERE collection = (SELECT name FROM collection WHERE id = ?1) AND clock_max >= ?2))",
        (identifier, clock),
    ).get
    return number


def has_appended(db: apsw.Connection, name: str) -> int | None:
    """The identifier of a table some of whose updates are in no segment yet; None if it has none such, or is none."""
    identifier: int | None = db.execute(
        "SELECT id FROM collection WHERE name = ? AND columns IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM appended WHERE collection = id)",
        (name,),
    ).get
    return identifier


def appended_tables(db: apsw.Connection, fewest: int) -> list[int]:
    """Identifiers of the tables with at least so many updates that are in no segment yet."""
    rows: list[Any] = db.execute(
        "SELECT collection FROM appended GROUP BY collection HAVING count(*) >= ?", (fewest,)
    ).fetchall()
    return [identifier for (identifier,) in rows]


def read_appended(
    db: apsw.Connection, identifier: int, begin: int, end: int, within: Sequence[Sequence[str]] = ()
) -> list[AppendedRow]:
    """Clock, seq, diff, packed key and text of updates in no segment yet with clocks in `[begin, end)`, in order.

    Args:
        db: in a transaction.
        identifier: of the table.
        begin: the first clock.
        end: the clock behind the last one.
        within: of each of these, one is within the texts that are wanted; others are left out.
    """
    wanted = "".join(f" AND ({' OR '.join(['instr(doc, ?)'] * len(parts)) or 'false'})" for parts in within)
    rows: list[Any] = db.execute(
        "SELECT clock, seq, diff, key, doc FROM appended WHERE collection = ? AND clock >= ? AND clock < ?"
        f"{wanted} ORDER BY clock, seq",
        (identifier, begin, end, *chain.from_iterable(within)),
    ).fetchall()
    return rows


def delete_appended(db: apsw.Connection, identifier: int, end: int) -> int:
    """Remove updates with clocks below `end`, which are part of a segment from here on; returns how many."""
    db.execute("DELETE FROM appended WHERE collection = ? AND clock < ?", (identifier, end))
    return db.changes()
