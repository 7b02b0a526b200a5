"""Binding of a collection's name to the key and the logical partitions of its stored documents.

The binding is fixed from the first document on, because packed keys and folders depend on it. A collection without
documents, such as a derived collection after a reset, takes the key and partitions of the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import orjson

from derive.errors import StorageError
from derive.position import Position
from derive.protocol.collection import is_of_sql
from derive.protocol.specs import CollectionSpec
from derive.storage.capability.table import least_write_frontier, release_expired
from derive.storage.metadata.collection import new_identifier
from derive.storage.metadata.segment import segment_paths
from derive.storage.metadata.tasks import read_task
from derive.storage.timeline import wall_clock
from derive.time import BEGINNING


def bind(db: apsw.Connection, spec: CollectionSpec) -> None:
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
        if row[2] is not None or segment_paths(db, spec.name) or least_write_frontier(db, spec.name) is not None:
            changes = [("key", key, row[0]), ("logical partitions", partitions, row[1])]
            raise _bound(db, spec.name, changes, spec.position)
        db.execute("UPDATE collection SET key = ?, partitions = ? WHERE name = ?", (key, partitions, spec.name))


def find_conflict(db: apsw.Connection, spec: CollectionSpec) -> StorageError | None:
    """Return the error with which `bind` refuses a collection that has documents; None if `bind` accepts it.

    Writers without documents do not count, because they may have ended.
    """
    row: Any = db.execute("SELECT key, partitions, columns FROM collection WHERE name = ?", (spec.name,)).fetchone()
    key, partitions = _texts_of(spec)
    if row is None or row[:2] == (key, partitions) or (row[2] is None and not segment_paths(db, spec.name)):
        return None
    changes = [("key", key, row[0]), ("logical partitions", partitions, row[1])]
    return _bound(db, spec.name, changes, spec.position)


def _texts_of(spec: CollectionSpec) -> tuple[str, str]:
    """Return the JSON texts of a collection's key and partitions."""
    partitions = [[projection.field, projection.pointer] for projection in spec.partitions]
    return orjson.dumps(spec.key).decode(), orjson.dumps(partitions).decode()


def insert_collection(
    db: apsw.Connection,
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
        " VALUES (?, ?, ?, ?4, ?4, ?5, ?6, ?5, ?)",
        (name, key, partitions, frontier, identifier, columns, wall_clock()),
    )
    return identifier


def check_partitions(db: apsw.Connection, name: str, fields: Sequence[str]) -> None:
    """Raise an error if a collection with documents has other logical partitions.

    Raises:
        StorageError: the partitions differ.
    """
    stored = orjson.loads(db.execute("SELECT partitions FROM collection WHERE name = ?", (name,)).get)
    before = [field for field, _ in stored]
    if before != list(fields):
        raise _bound(db, name, [("logical partitions", ", ".join(fields) or "none", ", ".join(before) or "none")])


def _bound(
    db: apsw.Connection, name: str, changes: Sequence[tuple[str, str, str]], position: Position | None = None
) -> StorageError:
    """Return the error of a collection that contradicts the catalog; a change is `(what, now, before)`."""
    stored = " and ".join(f"with {what} {before}" for what, now, before in changes if now != before)
    says = " and ".join(now for _, now, before in changes if now != before)
    if is_of_sql(name):
        way_out = "change the catalog to fit the table of SQL: its key is its first column, and it has no partitions"
    elif read_task(db, name):
        way_out = f"use another name, or start over: flowctl reset --task {name}"
    else:
        way_out = "use another name, or remove the data folder to start over"
    what = f"collection '{name}' was stored {stored}, and the catalog now says {says}"
    return StorageError(what, position=position, hint=way_out)
