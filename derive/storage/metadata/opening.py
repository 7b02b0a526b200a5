"""Opening a data folder: whose it is, what may be done with it, and whether it is one at all."""

from __future__ import annotations

import os
from pathlib import Path

from derive.durable import make_folders
from derive.storage.disk_errors import translated
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.host import Host, HostLock, check_host

_DATABASE = "metadata.db"


def is_data_folder(folder: Path) -> bool:
    """Whether something was ever stored in a folder."""
    return os.path.exists(folder / _DATABASE)


def open_metadata(root: Path, host: Host, *, durable: bool, reading: bool) -> tuple[Metadata, HostLock | None]:
    """The metadata of a data folder, and the lock that this machine has on it where anything can be written.

    Args:
        root: the data folder; created if it is missing, unless for `reading`.
        host: this machine.
        durable: survive a loss of power.
        reading: nothing is going to be written, so a folder that is missing is empty, and one that cannot be written
            will do.

    Raises:
        StorageError: another machine uses the data folder, or it cannot be used.
    """
    path = root / _DATABASE
    if reading and not is_data_folder(root):
        return Metadata(path, access="none"), None
    if reading and not (os.access(root, os.W_OK | os.X_OK) and os.access(path, os.W_OK)):
        with translated(root):
            check_host(root, host)
        return Metadata(path, access="read"), None
    with translated(root):
        make_folders(root.absolute())
    lock = HostLock(root, host)
    try:
        return Metadata(path, durable=durable, guard=lock.check), lock
    except BaseException:
        lock.release()
        raise
