"""Opening a data folder: whose it is, what may be done with it, and whether it is one at all."""

from __future__ import annotations

import os
from pathlib import Path

from derive.durable import make_folders
from derive.storage.disk_errors import translated
from derive.storage.folder_id import known_folder_id, write_folder_id
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.host import Host, HostLock, check_host
from derive.storage.metadata.identity import (
    RESTORING,
    disown_files,
    identity_of,
    read_commits,
    require_known,
    require_own,
    require_restored,
    take_identity,
    traces,
)

_DATABASE = "metadata.db"

PRIVATE = 0o700
"""Mode of a data folder that is created: it holds what documents say, and nobody else can go in."""


def is_data_folder(folder: Path) -> bool:
    """Whether something was ever stored in a folder, be it one whose metadata database is lost."""
    return os.path.exists(folder / _DATABASE) or bool(traces(folder)) or os.path.exists(folder / RESTORING)


def open_metadata(
    root: Path, host: Host, *, durable: bool, reading: bool, accept_older: bool = False
) -> tuple[Metadata, HostLock | None]:
    """The metadata of a data folder, and the lock that this machine has on it where anything can be written.

    Args:
        root: the data folder; created if it is missing, unless for `reading`.
        host: this machine.
        durable: survive a loss of power.
        reading: nothing is going to be written, so a folder that is missing is empty, and one that cannot be written
            will do.
        accept_older: also a database that is older than what lies beside it.

    Raises:
        StorageError: another machine uses the data folder, or it cannot be used, or its metadata database is missing,
            or is another one's, or is not the latest.
    """
    path = root / _DATABASE
    require_restored(root)
    counted = read_commits(root)
    if reading and not is_data_folder(root):
        return Metadata(path, access="none"), None
    if reading and not (os.access(root, os.W_OK | os.X_OK) and os.access(path, os.W_OK)):
        with translated(root):
            check_host(root, host)
        metadata = Metadata(path, access="read")
        _require_own(metadata, counted, accept_older=accept_older)
        return metadata, None
    require_known(path)
    with translated(root):
        make_folders(root.absolute(), PRIVATE)
    lock = HostLock(root, host)
    try:
        metadata = Metadata(path, durable=durable, guard=lock.check)
        _require_own(metadata, counted, accept_older=accept_older)
        _settle_identity(metadata, counted)
    except BaseException:
        lock.release()
        raise
    return metadata, lock


def _require_own(metadata: Metadata, counted: int | None, *, accept_older: bool) -> None:
    try:
        with metadata.snapshot() as db:
            require_own(metadata.path.parent, db, counted, accept_older=accept_older)
    except BaseException:
        metadata.close()
        raise


def _settle_identity(metadata: Metadata, counted: int | None) -> None:
    """Have a data folder and its metadata know each other, which may have been made before they did."""
    root = metadata.path.parent
    with metadata.snapshot() as db:
        identifier, commits = identity_of(db)
    if not identifier or (counted is None and commits > 0):
        with metadata.transaction() as db:
            identifier = take_identity(root, db)
            if counted is None and commits > 0:  # it cannot be told whether files are newer than the database
                disown_files(db)
    if not known_folder_id(root):
        write_folder_id(root, identifier)
