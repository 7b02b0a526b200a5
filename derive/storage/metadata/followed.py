"""Followed files in the metadata database: how far `flowctl ingest --follow` has read each file into a collection.

The commit that adds the documents of a file also moves the position in the file. So each line becomes a document once,
even if the process is killed, or if two processes follow one file. There is one row for each file, so the table does
not grow with the number of commits. The rows belong to a relation: a collection that was truncated has read no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from derive.errors import StorageError
from derive.storage.metadata.transaction import Transaction

_COLUMNS = 'path, device, inode, "offset", lines, checksum, documents, at'


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position up to which a file has been read.

    Attributes:
        path: absolute path under which the file was last read.
        device: number of the device that has the file.
        inode: number of the file on its device.
        offset: offset of the first unread line, bytes.
        lines: number of lines before `offset`.
        checksum: checksum of the first and the last bytes before `offset`, which do not change while the file grows.
        documents: number of documents that were ingested from the file.
        at: wall-clock time of the last commit, microseconds; 0 before the first.
    """

    path: str
    device: int
    inode: int
    offset: int = 0
    lines: int = 0
    checksum: int = 0
    documents: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class FileMove:
    """The move of a position.

    Attributes:
        before: the stored position; None for a file without one.
        after: the new position, perhaps of another inode.
    """

    before: FilePosition | None
    after: FilePosition


class MovedPositionError(StorageError):
    """Another process has moved the position of a followed file, so the same lines are not ingested again."""


def move_positions(db: Transaction, name: str, moves: Sequence[FileMove]) -> None:
    """Move the positions of files, in the write transaction that adds their documents to the collection.

    Raises:
        MovedPositionError: a stored position is not the one from which the file was read.
    """
    if not moves:
        return
    relation = db.recall("SELECT relation FROM collection WHERE name = ?", (name,)).get
    now = db.now()
    for move in moves:
        before, after = move.before, move.after
        is_stored = True
        if before is not None:
            stored = 'relation = ? AND device = ? AND inode = ? AND "offset" = ? AND lines = ? AND checksum = ?'
            values = (relation, before.device, before.inode, before.offset, before.lines, before.checksum)
            is_stored = db.expect(f"SELECT 1 FROM followed WHERE {stored}", values)
            db.execute(f"DELETE FROM followed WHERE {stored}", values)
        other = "SELECT 1 FROM followed WHERE (relation, device, inode) = (?, ?, ?)"
        key = (relation, after.device, after.inode)
        if not is_stored or not db.expect(f"SELECT 1 WHERE NOT EXISTS ({other})", key):
            raise MovedPositionError(f"another process has ingested lines of {after.path} into '{name}'")
        db.execute(
            f"INSERT INTO followed (relation, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                relation,
                after.path,
                after.device,
                after.inode,
                after.offset,
                after.lines,
                after.checksum,
                after.documents,
                now,
            ),
        )


def read_positions(db: Transaction, name: str | None = None) -> list[tuple[str, FilePosition]]:
    """Return the names of collections with the positions of their files, in the order of the last commits.

    Args:
        db: a transaction.
        name: name of a collection; None for all collections.
    """
    rows: list[Any] = db.execute(
        f"SELECT collection.name, {_COLUMNS} FROM followed JOIN collection USING (relation)"
        " WHERE collection.name = coalesce(?, collection.name) ORDER BY at, path",
        (name,),
    ).fetchall()
    return [(collection, FilePosition(*row)) for collection, *row in rows]


def forget_positions(db: Transaction, name: str) -> None:
    """Delete the positions of a collection's files, before its history is deleted."""
    db.execute("DELETE FROM followed WHERE relation = (SELECT relation FROM collection WHERE name = ?)", (name,))
