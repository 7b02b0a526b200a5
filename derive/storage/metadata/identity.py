"""Identity: whether a metadata database is the one of the data folder in which it lies, and the latest of it.

A database that is missing, or is empty, is that of a new data folder only where nothing else was ever stored. Otherwise
it was lost, and everything that lies beside it would be taken for garbage.

The database has the folder's identifier and counts commits. The file `commits` has that count as well, written once a
commit is durable: so it may be behind the database after a crash, and is ahead only of a database that is older than
the folder, such as one from a backup that was put back alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw

from derive.errors import StorageError
from derive.storage.disk_errors import translated
from derive.storage.folder_id import FILE as FOLDER_ID
from derive.storage.folder_id import known_folder_id

COMMITS = "commits"
"""Name of the file that counts commits."""

RESTORING = "restoring"
"""Name of the file that is there until a restore has come to its end."""

_TRACES = ("collections", "state", FOLDER_ID, COMMITS, "sql.db")
_DIGITS = 20
_WAYS_OUT = (
    "put metadata.db back from a backup, together with its -wal file if it has one; or restore a backup of the whole"
    " folder: flowctl restore"
)


def traces(root: Path) -> list[str]:
    """Names of what lies in a folder and was stored by flowctl, beside the metadata database."""
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
    """Require that a metadata database which holds nothing is that of a folder which holds nothing.

    Args:
        path: of the database.
        is_there: says in which way the database holds nothing; found out if None.

    Raises:
        StorageError: the folder holds something.
    """
    stored = traces(path.parent)
    if stored:
        is_there = is_there or ("is empty" if path.exists() else "is missing")
        raise StorageError(
            f"{path} {is_there}, and beside it there is {', '.join(stored)}: what is stored there would be taken for"
            " garbage, so nothing was done",
            hint=f"{_WAYS_OUT}; to start over with nothing, remove the folder {path.parent}",
        )


def require_restored(root: Path) -> None:
    """Require that no restore into a data folder is unfinished.

    Raises:
        StorageError: one is.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        backup = (root / RESTORING).read_text()
        raise StorageError(
            f"a restore into {root} has not come to its end",
            hint=f"wait for it, or restore again: flowctl restore {backup} --data {root}",
        )
    if (root / "backup.json").exists():
        raise StorageError(f"{root} is a backup", hint=f"restore it: flowctl restore {root} --data FOLDER")


def require_known(path: Path) -> None:
    """Require of a database that is missing or has no bytes that nothing lies beside it; costs one call.

    Raises:
        StorageError: something does.
    """
    try:
        is_empty = path.stat().st_size == 0
    except FileNotFoundError:
        is_empty = True
    except OSError:
        return  # opening the database says why
    if is_empty:
        require_new(path)


class CommitCount:
    """The file that counts commits, open to be written.

    Args:
        path: of the metadata database, which is there.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        file = path.with_name(COMMITS)
        with translated(file):
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            owner = path.stat()
            with suppress(PermissionError):  # whoever may write the database may write this
                os.fchmod(self._descriptor, owner.st_mode & 0o666)
                if os.geteuid() == 0:
                    os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def write(self, count: int) -> None:
        """Write the count of a commit that is durable; not to have written it loses nothing but a check."""
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{count:>{_DIGITS}}\n".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_commits(root: Path) -> int | None:
    """The count of commits that a data folder knows; None if it knows none."""
    try:
        return int((root / COMMITS).read_text())
    except (FileNotFoundError, PermissionError, ValueError):
        return None


def count_commit(db: apsw.Connection) -> int:
    """Count a commit in its own transaction; returns the count."""
    count: int = db.execute("UPDATE folder SET commits = commits + 1 RETURNING commits").get
    return count


def identity_of(db: apsw.Connection) -> tuple[str, int]:
    """The identifier of the data folder, empty if it has none yet, and the count of commits."""
    row: Any = db.execute("SELECT id, commits FROM folder").fetchone()
    return str(row[0]), int(row[1])


def require_own(root: Path, db: apsw.Connection, counted: int | None, *, accept_older: bool = False) -> None:
    """Require that a metadata database is that of its folder, and the latest.

    Args:
        root: the data folder.
        db: its metadata.
        counted: what `read_commits` returned before the database was read.
        accept_older: also a database that is older than the folder.

    Raises:
        StorageError: it is not.
    """
    identifier, commits = identity_of(db)
    known = known_folder_id(root)
    path = root / "metadata.db"
    if identifier and known and identifier != known:
        raise StorageError(
            f"{path} is the metadata of another data folder: its identifier is {identifier}, and that of {root},"
            f" in {FOLDER_ID}, is {known}",
            hint=_WAYS_OUT,
        )
    if counted is not None and counted > commits and not accept_older:
        raise StorageError(
            f"{path} is older than what lies beside it: it knows {commits:,} commits, and the folder has seen"
            f" {counted:,}; what it does not know would be taken for garbage, so nothing was done",
            hint="put the latest metadata.db back, together with its -wal file if it has one, or restore a backup of"
            " the whole folder: flowctl restore; where this metadata.db is the latest that there is, see with"
            " 'flowctl verify' what is lost, and go on with 'flowctl verify --accept-older'",
        )


def take_identity(root: Path, db: apsw.Connection) -> str:
    """The identifier of a data folder, in a write transaction; it is that of `folder-id` or new, if there was none."""
    identifier, _ = identity_of(db)
    if not identifier:
        identifier = known_folder_id(root) or str(uuid4())
        db.execute("UPDATE folder SET id = ?", (identifier,))
    return identifier


def disown_files(db: apsw.Connection, counted: int | None = None) -> None:
    """Forget whose files may be garbage, as some of these may be part of something that this database does not know.

    Args:
        db: the metadata, in a write transaction.
        counted: what `read_commits` returned; the count of commits goes on from there.
    """
    db.execute("DELETE FROM writer")
    db.execute("DELETE FROM discarded")
    db.execute("DELETE FROM abandoned")
    db.execute("DELETE FROM capability WHERE kind = 'write' AND task IS NULL")
    if counted is not None:
        db.execute("UPDATE folder SET commits = max(commits, ?)", (counted,))
