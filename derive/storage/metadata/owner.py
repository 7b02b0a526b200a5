"""Owners: each collection has one kind of writer, and all other kinds are refused.

| collection | owner |
|---|---|
| ingested collection | `flowctl ingest` |
| derived collection | its task |
| table | SQL statements |
| source of SQL | its feeder |
| materialized view | its dataflow |

Rows of the metadata database determine the owner. Each writer checks the owner in its own write transaction, so two
kinds of writers cannot both become the owner.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from derive.errors import OwnedError
from derive.protocol.collection import POSITION_PREFIX, SQL_PREFIX, is_of_sql, task_of
from derive.storage.metadata.tasks import command_of_reset
from derive.storage.metadata.transaction import Transaction
from derive.time import END_OF_TIME


class Owner(Enum):
    """The owner of a collection."""

    NOBODY = "nobody"
    INGEST = "flowctl ingest"
    TASK = "its task"
    TABLE = "statements of SQL"
    SOURCE = "the ingestion of its source"
    VIEW = "the dataflow of its materialized view"
    INTERNAL = "flowctl itself"


class Door(Enum):
    """A kind of writer."""

    INGEST = "flowctl ingest"
    TASK = "a task of the catalog"
    SERVER = "the SQL server"
    DATAFLOW = "a dataflow"
    TEST = "a step of a catalog test, in a data folder of its own"


_OPEN = {
    Door.INGEST: {Owner.NOBODY, Owner.INGEST},
    Door.TASK: {Owner.NOBODY, Owner.TASK},
    Door.SERVER: {Owner.NOBODY, Owner.TABLE, Owner.SOURCE, Owner.INTERNAL},
    Door.DATAFLOW: {Owner.NOBODY, Owner.VIEW},
    Door.TEST: set(Owner),
}


def owner_of(db: Transaction, name: str, ended: Collection[str] = ()) -> Owner:
    """Return the owner of a collection.

    Args:
        db: a transaction; expired capabilities count until they are dropped.
        name: name of the collection, which may be unknown.
        ended: identifiers of capabilities that do not count.
    """
    if name.startswith(POSITION_PREFIX):
        return Owner.INTERNAL
    row: tuple[int, int] | None = db.recall(
        "SELECT columns IS NOT NULL, maintained <> 0 AND upper < ? FROM collection WHERE name = ?", (END_OF_TIME, name)
    ).fetchone()
    is_table, is_maintained = row or (0, 0)
    if is_maintained:
        return Owner.VIEW
    if is_table or is_of_sql(name):
        place = POSITION_PREFIX + name.removeprefix(SQL_PREFIX)
        is_source = db.recall("SELECT 1 FROM collection WHERE name = ? AND upper < ?", (place, END_OF_TIME)).get
        return Owner.SOURCE if is_source else Owner.TABLE
    return owner_of_documents(db, name, ended)


def owner_of_documents(db: Transaction, name: str, ended: Collection[str] = ()) -> Owner:
    """Return the owner of a collection of documents: the present writer, or the past writer; see `owner_of`."""
    if task_of(name) is not None:
        return Owner.TASK
    others = f" AND id NOT IN ({', '.join('?' * len(ended))})" if ended else ""
    is_task: int | None = db.recall(
        f"SELECT task IS NOT NULL FROM capability WHERE collection = ? AND kind = 'write'{others}"
        " ORDER BY task IS NULL LIMIT 1",
        (name, *ended),
    ).get
    if is_task is not None:
        return Owner.TASK if is_task else Owner.INGEST
    if db.recall("SELECT 1 FROM task WHERE name = ? AND transactions > 0", (name,)).get:
        return Owner.TASK
    segments = db.recall("SELECT 1 FROM segment WHERE collection = ? LIMIT 1", (name,))
    return Owner.INGEST if segments.get else Owner.NOBODY


def require_open(db: Transaction, name: str, door: Door, ended: Collection[str] = ()) -> None:
    """Raise an error if a kind of writer may not write a collection.

    Args:
        db: the transaction of the write, or of the acquisition of the write capability.
        name: name of the collection.
        door: kind of writer.
        ended: as for `owner_of`.

    Raises:
        OwnedError: the collection belongs to another writer.
    """
    owner = owner_of(db, name, ended)
    if owner not in _OPEN[door]:
        raise owned(db, name, owner, door)


def owned(db: Transaction, name: str, owner: Owner, door: Door) -> OwnedError:
    """Return the error of a refused writer, with a remedy."""
    relation, task = name.removeprefix(SQL_PREFIX), task_of(name) or name
    match owner:
        case Owner.TASK:
            what = f"'{name}' is derived, so nothing can be {_DONE[door]}"
            hint = "use another collection; or, to stop deriving this collection, first empty it with the catalog"
            return OwnedError(what, hint=f"{hint} that derives it: {command_of_reset(db, task)}")
        case Owner.TABLE:
            what = f"'{name}' belongs to the table \"{relation}\" of SQL, so nothing can be {_DONE[door]}"
            hint = f"write it by INSERT, UPDATE, DELETE or COPY: flowctl sql -c 'INSERT INTO \"{relation}\" …'"
            return OwnedError(what, hint=hint)
        case Owner.SOURCE:
            what = f"'{name}' is the source \"{relation}\" of SQL, so nothing can be {_DONE[door]}"
            return OwnedError(what, hint="write to the input of the source, such as its file")
        case Owner.VIEW:
            what = f"'{name}' is the materialized view \"{relation}\" of SQL, so nothing can be {_DONE[door]}"
            return OwnedError(what, hint="write to the tables and collections that its query reads")
        case Owner.INTERNAL:
            return OwnedError(f"'{name}' belongs to flowctl itself", hint="use another name")
    what = f"'{name}' holds documents that were ingested, or are being ingested, so nothing can be {_DONE[door]}"
    return OwnedError(what, hint="choose another name for the new relation")


def require_ingested(db: Transaction, name: str) -> None:
    """Raise an error if a collection has a writer other than `flowctl ingest`, before its documents are removed.

    Raises:
        OwnedError: the collection belongs to another writer.
    """
    owner = owner_of(db, name)
    if owner in _OPEN[Door.INGEST]:
        return
    relation, task = name.removeprefix(SQL_PREFIX), task_of(name) or name
    kind, hint = {
        Owner.TASK: ("a derived collection", f"start it over: {command_of_reset(db, task)}"),
        Owner.TABLE: ("a table of SQL", f"use TRUNCATE or DROP TABLE: flowctl sql -c 'TRUNCATE \"{relation}\"'"),
        Owner.SOURCE: ("a source of SQL", f"use DROP SOURCE: flowctl sql -c 'DROP SOURCE \"{relation}\"'"),
        Owner.VIEW: (
            "a materialized view of SQL",
            f"use DROP MATERIALIZED VIEW: flowctl sql -c 'DROP MATERIALIZED VIEW \"{relation}\"'",
        ),
    }.get(owner, ("a collection of flowctl itself", "use another name"))
    raise OwnedError(f"'{name}' is {kind}, and only ingested documents can be removed this way", hint=hint)


_DONE = {
    Door.INGEST: "ingested into it",
    Door.TASK: "derived into it",
    Door.SERVER: "written into it by SQL",
    Door.DATAFLOW: "written into it by a materialized view",
    Door.TEST: "ingested into it",
}
