"""File locks, which end with the process that holds them, and which a paused process cannot hold for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from derive.errors import HeldError
from derive.storage.metadata.process import lock_holder

_PATIENCE_SECONDS = 60.0
_EVICTION_SECONDS = 5.0
_POLL_SECONDS = 0.02


KEPT = "backup.lock"
"""Beside a lock, the lock of a backup that holds both: it is at work, and is not ended."""


@contextmanager
def kept(file: Path) -> Iterator[None]:
    """Hold a lock for as long as the block takes, as a backup does: nobody ends this process for it.

    Raises:
        HeldError: another process has held it for a minute.
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
    """Hold a lock for as long as the block takes; it is given to whoever holds it as an open file.

    Args:
        file: is created if it is missing.
        may_evict: asked, of the open file, when another process has held the lock for five seconds: whether that
            process may be killed, if it is one of this machine. It is to say so only where nothing is lost by that.

    Raises:
        HeldError: another process has held it for a minute.
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
        if holder not in (None, os.getpid()) and not _is_backup(file, holder) and may_evict(descriptor):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(holder, signal.SIGKILL)
        if waited > _PATIENCE_SECONDS:
            who = f"process {holder}" if holder else "a process of another machine"
            raise HeldError(
                f"{who} has held {file} for more than a minute",
                hint="it works for a transaction that was given up; it goes on by itself once that process has ended",
            )
        time.sleep(_POLL_SECONDS)
