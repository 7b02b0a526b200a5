"""Making what was written to a file, or entered in a folder, survive a loss of power."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_NOT_SUPPORTED = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_CHUNK = 1 << 20


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Create a folder, and each above it that is missing, and make every new entry on the way durable.

    Args:
        folder: may be there, and is left as it is then.
        mode: of the folder, if it is created; those above it get the usual one.
    """
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync(folder.parent)


def clone(source: Path, copy: Path) -> None:
    """Copy a file, durably once its folder is synced; where the file system can, both share what they hold.

    Raises:
        FileExistsError: there is a file of that name.
    """
    with source.open("rb", buffering=0) as file, copy.open("xb", buffering=0) as new:
        size = os.fstat(file.fileno()).st_size
        try:
            while size > 0:
                copied = os.copy_file_range(file.fileno(), new.fileno(), size)
                if not copied:
                    break
                size -= copied
        except OSError as exc:
            if exc.errno not in _NOT_SUPPORTED:
                raise
            file.seek(0)
            new.seek(0)
            shutil.copyfileobj(file, new, _CHUNK)
            new.truncate()
        os.fsync(new.fileno())
