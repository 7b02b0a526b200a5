"""Ingestions in the metadata database: the loads that `flowctl ingest` has committed into each collection.

The commit that adds the documents of a load also writes a row about the load. So a load with an identifier is ingested
once, even if it is repeated after a crash, or by two processes at once. The rows belong to a relation: a collection
that was truncated has no loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from derive.document.clock import format_rfc3339
from derive.errors import StorageError
from derive.plural import counted
from derive.storage.metadata.transaction import Transaction
from derive.time.positions import Segment

_MOST_UNNAMED = 1_000
"""Number of the latest ingestions without an identifier that are recorded for each collection."""

_QUERY = (
    "SELECT collection.name, load_id, at, ingestion.name, digest, documents, bytes, writer, clock_min, undone"
    " FROM ingestion JOIN collection USING (relation)"
)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """The input of an ingestion.

    Attributes:
        name: name of the file, for people.
        load_id: identifier of the load, unique in its collection; None if missing.
        digest: function that reads the input to its end, and returns the SHA-256 of the content in hexadecimal digits;
            empty if the content has no digest.
    """

    name: str
    load_id: str | None
    digest: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Load:
    """A committed ingestion.

    Attributes:
        collection: name of the collection.
        load_id: identifier of the load; None if missing.
        at: wall-clock time of the commit, microseconds.
        name: name of the file.
        digest: SHA-256 of the content; empty if unknown.
        documents: number of documents.
        bytes: size of the segments that the ingestion wrote.
        writer: identifier of the write capability, with which the names of these segments begin.
        clock_min: first timestamp of the documents; None without documents.
        undone: wall-clock time at which the load was undone, microseconds; None for a present load.
    """

    collection: str
    load_id: str | None
    at: int
    name: str
    digest: str
    documents: int
    bytes: int
    writer: str
    clock_min: int | None
    undone: int | None

    @property
    def described(self) -> str:
        """Return the time, the file and the size of the load, for people."""
        return f"at {format_rfc3339(self.at)} from {self.name}, {counted(self.documents, 'document')}"


class RepeatedLoadError(StorageError):
    """A load with the same identifier and the same content is in the collection already.

    Attributes:
        load: the earlier load.
    """

    def __init__(self, load: Load) -> None:
        super().__init__(f"load '{load.load_id}' was ingested into '{load.collection}' already: {load.described}")
        self.load = load


def record_load(db: Transaction, name: str, file: LoadedFile, writer: str, segments: Sequence[Segment]) -> None:
    """Record a load, in the write transaction that adds its segments to the collection.

    Args:
        db: the write transaction.
        name: name of the collection.
        file: the input, which was read to its end.
        writer: identifier of the write capability.
        segments: segments of the load.

    Raises:
        RepeatedLoadError: another process has committed a load of this identifier and content.
        StorageError: another process has committed a load of this identifier with other content.
    """
    is_new = f"SELECT 1 WHERE NOT EXISTS ({_QUERY} WHERE collection.name = ? AND load_id = ? AND undone IS NULL)"
    if not db.expect(is_new, (name, file.load_id)):
        require_new(find_load(db, name, file.load_id), file)
    db.execute(
        "INSERT INTO ingestion (relation, load_id, at, name, digest, documents, bytes, writer, clock_min)"
        " VALUES ((SELECT relation FROM collection WHERE name = ?), ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            name,
            file.load_id,
            db.now(),
            file.name,
            file.digest(),
            sum(segment.documents for segment in segments),
            sum(segment.bytes for segment in segments),
            writer,
            min((segment.clock_min for segment in segments), default=None),
        ),
    )
    db.execute(
        "DELETE FROM ingestion WHERE load_id IS NULL AND relation = (SELECT relation FROM collection WHERE name = ?)"
        " AND number <= (SELECT number FROM ingestion WHERE load_id IS NULL AND relation ="
        " (SELECT relation FROM collection WHERE name = ?) ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (name, name, _MOST_UNNAMED),
    )


def require_new(load: Load | None, file: LoadedFile) -> None:
    """Raise an error if a load has the identifier of a file that is to be ingested.

    Args:
        load: the present load with the identifier; None for none.
        file: the file.

    Raises:
        RepeatedLoadError: the load has the content of the file.
        StorageError: the load has other content.
    """
    if load is None:
        return
    if load.digest == file.digest():
        raise RepeatedLoadError(load)
    raise StorageError(
        f"{file.name} is not what load '{load.load_id}' of '{load.collection}' has ingested: {load.described}",
        hint="give this content another --load-id",
    )


def find_load(db: Transaction, name: str, load_id: str | None) -> Load | None:
    """Return the load of a collection with an identifier; None if no load has it, or if the load was undone."""
    row: Any = db.execute(
        f"{_QUERY} WHERE collection.name = ? AND load_id = ? AND undone IS NULL", (name, load_id)
    ).fetchone()
    return row and Load(*row)


def loads_of_content(db: Transaction, name: str, digest: str) -> list[Load]:
    """Return the present loads of a collection whose content has a digest, the latest first."""
    rows: list[Any] = db.execute(
        f"{_QUERY} WHERE collection.name = ? AND digest = ? AND undone IS NULL ORDER BY number DESC", (name, digest)
    ).fetchall()
    return [Load(*row) for row in rows]


def read_loads(db: Transaction, name: str | None = None) -> list[Load]:
    """Return the loads of a collection, or of all collections, in the order of their commits."""
    rows: list[Any] = db.execute(
        f"{_QUERY} WHERE collection.name = coalesce(?, collection.name) ORDER BY number", (name,)
    ).fetchall()
    return [Load(*row) for row in rows]


def mark_undone(db: Transaction, load: Load) -> None:
    """Record that a present load was undone; its identifier is free."""
    db.execute(
        "UPDATE ingestion SET undone = ? WHERE load_id = ? AND undone IS NULL"
        " AND relation = (SELECT relation FROM collection WHERE name = ?)",
        (db.now(), load.load_id, load.collection),
    )


def forget_loads(db: Transaction, name: str) -> None:
    """Delete the records of a collection's loads, before its history is deleted."""
    db.execute("DELETE FROM ingestion WHERE relation = (SELECT relation FROM collection WHERE name = ?)", (name,))
