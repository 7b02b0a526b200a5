"""Identity checks: the metadata database must belong to its data folder, and must be its latest database.

A missing or empty database is accepted only in an empty folder. In other folders the database was lost, and with a new
database all other files would be garbage.

The database has the identifier of the folder and a count of commits. The file `commits` also has the count, which is
written after each durable commit. After a crash, the file may be behind the database. The file is ahead of the database
only if the database is older than the folder: for example, if the database comes from a backup.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from derive.errors import StorageError
from derive.storage.blobs import translated
from derive.storage.folder_id import FILE as FOLDER_ID
from derive.storage.folder_id import known_folder_id
from derive.storage.metadata.transaction import Transaction

DATABASE = "metadata.db"
"""Name of the metadata database in a data folder."""

PRIVATE = 0o700
"""Mode of a created data folder: documents are private, so other users have no access."""

COMMITS = "commits"
"""Name of the file with the count of commits."""

RESTORING = "restoring"
"""Name of the file that exists during a restore."""

_TRACES = ("collections", "state", FOLDER_ID, COMMITS, "sql.db")
_DIGITS = 20
_WAYS_OUT = (
    "put metadata.db back from a backup, together with its -wal file if it has one; or restore a backup of the whole"
    " folder: flowctl restore"
)


def traces(root: Path) -> list[str]:
    """Return the names of flowctl's files in a folder other than the metadata database."""
    names = []
    for name in _TRACES:
        path = root / name
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if not path.is_dir():
                path.stat()
                names.append(name)
            elif any(path.iterdir()):
                names.append(f"{name}/")
    return names


def require_new(path: Path, is_there: str | None = None) -> None:
    """Raise an error if a metadata database is empty and its folder has other files of flowctl.

    Args:
        path: path of the database.
        is_there: description of the empty database; None to determine it.

    Raises:
        StorageError: the folder has other files of flowctl.
    """
    stored = traces(path.parent)
    if stored:
        is_there = is_there or ("is empty" if path.exists() else "is missing")
        raise StorageError(
            f"{path} {is_there}, and the folder has {', '.join(stored)}: with a new database, the data in these"
            " files would be lost, so nothing was done",
            hint=f"{_WAYS_OUT}; to start from nothing, remove the folder {path.parent}",
        )


def require_restored(root: Path) -> None:
    """Raise an error if a restore into a data folder is incomplete.

    Raises:
        StorageError: a restore is incomplete, or the folder is a backup.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        backup = (root / RESTORING).read_text()
        raise StorageError(
            f"a restore into {root} is incomplete",
            hint=f"wait for it, or restore again: flowctl restore {backup} --data {root}",
        )
    if (root / "backup.json").exists():
        raise StorageError(f"{root} is a backup", hint=f"restore it: flowctl restore {root} --data FOLDER")


def require_known(path: Path) -> None:
    """Raise an error if a database is missing or empty while its folder has other files; this takes one system call.

    Raises:
        StorageError: the folder has other files of flowctl.
    """
    try:
        is_empty = path.stat().st_size == 0
    except FileNotFoundError:
        is_empty = True
    except OSError:
        return  # the open call of the database reports the error
    if is_empty:
        require_new(path)


class CommitCount:
    """The file with the count of commits, open for writing.

    Args:
        path: path of the metadata database, which exists.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        file = path.with_name(COMMITS)
        with translated(file):
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            owner = path.stat()
            with suppress(PermissionError):  # every writer of the database must be able to write the file
                os.fchmod(self._descriptor, owner.st_mode & 0o666)
                if os.geteuid() == 0:
                    os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def write(self, count: int) -> None:
        """Write the count of a durable commit; without this write, the next check finds fewer faults."""
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{count:>{_DIGITS}}\n".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_commits(root: Path) -> int | None:
    """Return the count of commits in a data folder's file; None if unknown."""
    try:
        return int((root / COMMITS).read_text())
    except (FileNotFoundError, PermissionError, ValueError):
        return None


def count_commit(db: Transaction) -> int:
    """Count a commit in its own transaction, and return the count."""
    count: int = db.execute("UPDATE folder SET commits = commits + 1 RETURNING commits").get
    return count


def identity_of(db: Transaction) -> tuple[str, int]:
    """Return the identifier of the data folder, empty for none, and the count of commits."""
    row: Any = db.execute("SELECT id, commits FROM folder").fetchone()
    return str(row[0]), int(row[1])


def require_own(root: Path, db: Transaction, counted: int | None, *, accept_older: bool = False) -> None:
    """Raise an error if a metadata database belongs to another folder, or is outdated.

    Args:
        root: the data folder.
        db: a transaction of its metadata.
        counted: result of `read_commits` before the database was read.
        accept_older: whether to accept an outdated database.

    Raises:
        StorageError: the database is foreign or outdated.
    """
    identifier, commits = identity_of(db)
    known = known_folder_id(root)
    path = root / DATABASE
    if identifier and known and identifier != known:
        raise StorageError(
            f"{path} is the metadata of another data folder: its identifier is {identifier}, but the identifier of"
            f" {root},"
            f" in {FOLDER_ID}, is {known}",
            hint=_WAYS_OUT,
        )
    if counted is not None and counted > commits and not accept_older:
        raise StorageError(
            f"{path} is older than the other files: it has {commits:,} of the {counted:,} commits of the folder"
            f"; the files of later commits would be lost, so nothing was done",
            hint="restore the latest metadata.db, together with its -wal file if it has one, or restore a backup of"
            " the whole folder: flowctl restore; if this metadata.db is the latest that you have, list the"
            " lost files with 'flowctl verify', and accept the loss with 'flowctl verify --accept-older'",
        )


def take_identity(root: Path, db: Transaction) -> str:
    """Return the identifier of a data folder, in a write transaction.

    The identifier is taken from `folder-id`, or created if it is missing.
    """
    identifier, _ = identity_of(db)
    if not identifier:
        identifier = known_folder_id(root) or str(uuid4())
        db.execute("UPDATE folder SET id = ?", (identifier,))
    return identifier


def disown_files(db: Transaction, counted: int | None = None) -> None:
    """Delete the records of writers, because their files may belong to commits that this database lacks.

    Args:
        db: a write transaction of the metadata.
        counted: result of `read_commits`, from which the count of commits continues.
    """
    db.execute("DELETE FROM writer")
    db.execute("DELETE FROM discarded")
    db.execute("DELETE FROM abandoned")
    db.execute("DELETE FROM capability WHERE kind = 'write' AND task IS NULL")
    if counted is not None:
        db.execute("UPDATE folder SET commits = ? WHERE commits < ?", (counted, counted))
