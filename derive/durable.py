"""Durable writes: files and folder entries that survive a loss of power."""

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
    """Create a folder and its missing parents, and sync every new entry.

    Args:
        folder: path of the folder; an existing folder is left as it is.
        mode: permissions of the folder, if it is created; created parents get the default permissions.
    """
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync(folder.parent)


def clone(source: Path, copy: Path) -> None:
    """Copy a file and sync the copy; the caller syncs the folder.

    The two files share their blocks where the file system can share them.

    Raises:
        FileExistsError: `copy` exists.
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
