"""Temporary folders. The next process removes those of a process that was killed.

A process holds a lock on each of its folders, which the system releases when the process ends. So a folder whose lock
can be taken has no owner. Processes of several containers may share a folder of temporary files: they see the locks of
one another, but not the process ids.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX = "flowctl-scratch-"


@contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """Return a new folder, which is removed after the block.

    Args:
        parent: the folder in which it is; None for the folder of temporary files.
    """
    parent = parent or tempfile.gettempdir()
    _sweep(parent)
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: str) -> tuple[Path, int]:
    """Return a new folder, and a descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists():  # otherwise another process has removed it before it had a lock
                return folder, lock
            os.close(lock)


@cache
def _sweep(parent: str) -> None:
    """Remove the folders without an owner, once in this process."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                _remove_unowned(entry.path)


def _remove_unowned(folder: str) -> None:
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
