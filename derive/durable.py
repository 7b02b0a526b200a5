"""Making what was written to a file, or entered in a folder, survive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


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
