"""One process at a time keeps what it has worked out in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from derive.errors import BusyError
from derive.storage.durable import make_folders

FILE = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a folder for this process alone, until it ends.

    Raises:
        BusyError: another process has it.
    """
    make_folders(folder)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise BusyError(
                f"another instance keeps what it has in {folder}", hint="give each a --folder of its own"
            ) from exc
        yield
    finally:
        os.close(descriptor)
