"""A lock on the folder of an instance, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from derive.durable import make_folders
from derive.errors import BusyError
from derive.storage.metadata.process import is_dead, show_process, this_process

FILE = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, until the block ends.

    Raises:
        BusyError: another process holds the lock.
    """
    make_folders(folder)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _lock(descriptor):
            holder = holder_of(folder)
            who = f"another instance, {show_process(holder)}," if holder else "another instance"
            raise BusyError(f"{who} keeps what it has in {folder}", hint="give each a --folder of its own")
        name = this_process().encode()
        os.pwrite(descriptor, name, 0)
        os.ftruncate(descriptor, len(name))
        yield
    finally:
        os.close(descriptor)


def holder_of(folder: Path) -> str | None:
    """Return the process that holds a folder, named as in derive/storage/metadata/process.py; None if none is known."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor):
            return None
        name = os.pread(descriptor, 4096, 0).decode()
    finally:
        os.close(descriptor)
    return name if name and not is_dead(name) else None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
