"""Open a data folder: check its owner, its access rights and its completeness."""

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
"""Mode of a created data folder: documents are private, so other users have no access."""


def is_data_folder(folder: Path) -> bool:
    """Return true if a folder has data of flowctl, even if its metadata database is lost."""
    return os.path.exists(folder / _DATABASE) or bool(traces(folder)) or os.path.exists(folder / RESTORING)


def open_metadata(
    root: Path, host: Host, *, durable: bool, reading: bool, accept_older: bool = False
) -> tuple[Metadata, HostLock | None]:
    """Open the metadata of a data folder; return it with this machine's lock, which a read-only folder has not.

    Args:
        root: the data folder; created if missing, unless `reading`.
        host: this machine.
        durable: sync commits to survive a loss of power.
        reading: open for reading only: a missing folder is empty, and a read-only folder suffices.
        accept_older: accept a database that is older than the files beside it.

    Raises:
        StorageError: another machine uses the data folder, the folder cannot be used, or its metadata database is
            missing, foreign or outdated.
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
    """Give a data folder and its metadata a common identifier, if an older version has created them without."""
    root = metadata.path.parent
    with metadata.snapshot() as db:
        identifier, commits = identity_of(db)
    if not identifier or (counted is None and commits > 0):
        with metadata.transaction() as db:
            identifier = take_identity(root, db)
            if counted is None and commits > 0:  # files may be newer than the database
                disown_files(db)
    if not known_folder_id(root):
        write_folder_id(root, identifier)
