"""A lock that shows the end of a process to processes of other containers.

A process sees the end of another one only in its own PID namespace (`derive/storage/metadata/process.py`). So the
process with a capability also locks a file of the data folder that has the identifier of the capability in its name.
The kernel releases this lock at the end of the process, however it ends. A file whose lock can be taken therefore
proves that the process has ended.

The proof counts only for a process of the same boot, because one kernel then has both processes. A network file system
may release the lock of a process that lives on another machine, after a pause of the network. Children that a process
has forked share its lock, so the proof waits for their end, too.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from derive.storage.metadata.process import is_of_this_boot

_PREFIX, _SUFFIX = "serving-", ".lock"
_MOST_BYTES = 32


class LifeLock:
    """The lock of this process in one data folder.

    A folder in which no file can be written or locked has no locks, and then nothing is proved.

    Args:
        root: the data folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor: int | None = None
        self._identifier = ""

    def hold(self, identifier: str) -> None:
        """Hold the lock of a capability until `release`, or until this process ends."""
        self.release()
        path = self._path(identifier)
        draft = path.with_suffix(".draft")  # the file gets its name only once it is locked
        with suppress(OSError):
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, _mark(descriptor))
                draft.rename(path)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor, self._identifier = descriptor, identifier
            for other in self._root.glob(f"{_PREFIX}*{_SUFFIX}"):
                if other != path and _is_free(other):
                    other.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                self._path(self._identifier).unlink(missing_ok=True)
            os.close(descriptor)

    def has_ended(self, identifier: str, process: str) -> bool:
        """Return true if the process with a capability has certainly ended.

        Args:
            identifier: identifier of the capability.
            process: name of the process, in the format of derive/storage/metadata/process.py.
        """
        return is_of_this_boot(process) and _is_free(self._path(identifier))

    def _path(self, identifier: str) -> Path:
        return self._root / f"{_PREFIX}{identifier}{_SUFFIX}"


def _mark(descriptor: int) -> bytes:
    """Return the content of a file, which a copy of the file does not have: nobody locks a copy."""
    return str(os.fstat(descriptor).st_ino).encode()


def _is_free(path: Path) -> bool:
    """Return true if a file exists that a process has locked, and no process has its lock now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.read(descriptor, _MOST_BYTES) == _mark(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
