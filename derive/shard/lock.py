"""File locks that end with their process, and that a paused process cannot hold forever."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from derive.errors import HeldError
from derive.storage.metadata.process import has_open, lock_holder

_PATIENCE_SECONDS = 60.0
_EVICTION_SECONDS = 5.0
_POLL_SECONDS = 0.02


KEPT = "backup.lock"
"""File beside a lock that a backup locks too: the process is active, and must not be killed."""


@contextmanager
def kept(file: Path) -> Iterator[None]:
    """Hold a lock while the block runs, as a backup does: other processes do not kill this one for it.

    Raises:
        HeldError: another process has held the lock for a minute.
    """
    mark = file.with_name(KEPT)
    with locked(file):
        descriptor = os.open(mark, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            mark.unlink(missing_ok=True)
            os.close(descriptor)


def _is_backup(file: Path, holder: int) -> bool:
    try:
        return lock_holder(os.stat(file.with_name(KEPT)), "FLOCK") == holder
    except FileNotFoundError:
        return False


@contextmanager
def locked(file: Path, may_evict: Callable[[int], bool] = lambda _: False) -> Iterator[int]:
    """Hold a lock while the block runs, and yield the descriptor of the lock file.

    Args:
        file: the lock file; created if missing.
        may_evict: called with the descriptor after another process has held the lock for five seconds; returns true if
            that process may be killed, on this machine. It must be true only if the kill loses nothing.

    Raises:
        HeldError: another process has held the lock for a minute.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(file, descriptor, may_evict)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(file: Path, descriptor: int, may_evict: Callable[[int], bool]) -> None:
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - begun
        holder = lock_holder(os.fstat(descriptor), "FLOCK") if waited > _EVICTION_SECONDS else None
        is_other = holder is not None and holder != os.getpid() and not _is_backup(file, holder)
        if holder is not None and is_other and may_evict(descriptor) and has_open(holder, os.fstat(descriptor)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(holder, signal.SIGKILL)
        if waited > _PATIENCE_SECONDS:
            who = f"process {holder}" if holder else "a process of another machine"
            raise HeldError(
                f"{who} has held {file} for more than a minute",
                hint="that process works for an abandoned transaction; the task resumes once the process has ended",
            )
        time.sleep(_POLL_SECONDS)
