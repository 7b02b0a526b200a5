"""The commit signal of a data folder, by which processes of one machine notify each other of commits.

To send the signal, a process touches the metadata database, and the kernel notifies the watching processes (inotify, on
Linux). The kernel queues notifications, and drops a watch when its process ends. If the kernel cannot watch files,
listeners must poll.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOUCHED = 0x4
"""Event of a touched file: Linux's `IN_ATTRIB`."""

WRITTEN = 0x2 | 0x80 | 0x100
"""Events of a written or created file in a folder: Linux's `IN_MODIFY`, `IN_MOVED_TO` and `IN_CREATE`."""

_MOST_BYTES = 1 << 12


class FileListener:
    """A watch of files from its creation on.

    Args:
        paths: paths of the files, or of their folders.
        events: event to watch for, `TOUCHED` or `WRITTEN`.

    Raises:
        OSError: a path is missing, the kernel cannot watch files, or the user's limit of watches is reached.
    """

    def __init__(self, paths: Collection[Path], events: int = TOUCHED) -> None:
        kernel = ctypes.CDLL(None, use_errno=True)
        begin, watch = getattr(kernel, "inotify_init1", None), getattr(kernel, "inotify_add_watch", None)
        if begin is None or watch is None:
            raise OSError("the kernel watches no files")
        self._descriptor: int = begin(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot watch files")
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.close.atexit = False  # a thread may still listen while the interpreter ends
        for path in paths:
            if watch(self._descriptor, os.fsencode(path), events) < 0:
                error = ctypes.get_errno()
                self.close()
                raise OSError(error, f"cannot watch {path}")
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def forget(self) -> None:
        """Discard the events so far."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _MOST_BYTES):
                pass

    def listen(self, seconds: float) -> None:
        """Wait for an event after the last `forget`, at most for a number of seconds."""
        self._poll.poll(math.ceil(seconds * 1000))


class FileSignal:
    """The commit signal of one data folder.

    Args:
        file: path of the metadata database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._resting: list[FileListener] = []

    def send(self) -> None:
        """Notify all listeners; errors are ignored, because listeners also poll."""
        with suppress(OSError):
            os.utime(self._file)

    @contextmanager
    def listener(self) -> Iterator[FileListener | None]:
        """Yield a listener for exclusive use in the block; None if the kernel cannot watch files."""
        with self._turn:
            listener = self._resting.pop() if self._resting else None
        if listener is None:
            with suppress(OSError):
                listener = FileListener([self._file])
        try:
            yield listener
        finally:
            if listener is not None:  # kept for later: a listener takes milliseconds to close
                with self._turn:
                    self._resting.append(listener)

    def close(self) -> None:
        """Close all listeners."""
        with self._turn:
            while self._resting:
                self._resting.pop().close()
