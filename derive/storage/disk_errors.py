"""Translates errors of the disk and of SQLite to messages for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from derive.errors import BusyError, DiskFullError, StorageError
from derive.storage.metadata.process import is_stopped, lock_holder, ways_to_release


@contextmanager
def translated(path: Path | str) -> Iterator[None]:
    """Translate SQLite's and the operating system's errors about a full or broken disk into `StorageError`."""
    try:
        yield
    except apsw.FullError as exc:
        raise _disk_full(path) from exc
    except OSError as exc:
        if exc.errno == 28:
            raise _disk_full(path) from exc
        raise StorageError(f"cannot write {path}: {exc.strerror or exc}") from exc
    except (apsw.BusyError, apsw.LockedError) as exc:
        raise _busy(path) from exc
    except (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError, apsw.CorruptError) as exc:
        raise StorageError(f"the database {path} cannot be used: {exc}") from exc


def _disk_full(path: Path | str) -> DiskFullError:
    """Return the error for a write to a full disk."""
    return DiskFullError(
        f"no space left on the device while writing {path}",
        hint="nothing was committed; free some space and run the command again",
    )


def _busy(path: Path | str) -> BusyError:
    """Return the error for a database that another process has locked for longer than the time limit."""
    holder = None
    with suppress(FileNotFoundError):  # SQLite locks the shared memory file, not the database file
        holder = lock_holder(os.stat(f"{path}-shm"), "POSIX")
    who, way_out = "another process", "run the command again when that process, such as a backup, has ended"
    if holder is not None and holder != os.getpid():
        who = f"process {holder}"
        if is_stopped(holder):
            who = f"process {holder}, which is stopped,"
            way_out = f"{ways_to_release(holder)}; then run the command again"
    return BusyError(f"{who} holds a lock on the database {path}", hint=f"nothing was committed; {way_out}")
