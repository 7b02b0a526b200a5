"""The bell of a data folder: whoever commits what others wait for rings it, and every process of the machine hears it.

To ring is to touch the metadata database, of which the kernel tells those who watch it (inotify, on Linux). It keeps
what was rung until they listen, and forgets them when they end, however they do. Where it cannot watch, nothing is
heard, and whoever waits has to look now and then.
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
"""A file was touched: Linux's `IN_ATTRIB`."""

WRITTEN = 0x2 | 0x80 | 0x100
"""In a folder, a file was written, or came: Linux's `IN_MODIFY`, `IN_MOVED_TO` and `IN_CREATE`."""

_MOST_BYTES = 1 << 12


class Listener:
    """Is told by the kernel what happens to files, from when it is made on.

    Args:
        paths: of the files, or of the folders that they are in.
        events: what is told, `TOUCHED` or `WRITTEN`.

    Raises:
        OSError: one of them is not there, or the kernel does not watch files, or too many for this user already.
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
        for path in paths:
            if watch(self._descriptor, os.fsencode(path), events) < 0:
                error = ctypes.get_errno()
                self.close()
                raise OSError(error, f"cannot watch {path}")
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def forget(self) -> None:
        """Forget what has happened so far."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _MOST_BYTES):
                pass

    def listen(self, seconds: float) -> None:
        """Wait until something happens, unless it has since `forget`, or so long."""
        self._poll.poll(math.ceil(seconds * 1000))


class Bell:
    """The bell of one data folder.

    Args:
        file: the metadata database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._resting: list[Listener] = []

    def ring(self) -> None:
        """Have all who listen hear it; where it cannot be rung, they look by themselves."""
        with suppress(OSError):
            os.utime(self._file)

    @contextmanager
    def listener(self) -> Iterator[Listener | None]:
        """A listener that nobody else uses while the block lasts; None where nothing can be heard."""
        with self._turn:
            listener = self._resting.pop() if self._resting else None
        if listener is None:
            with suppress(OSError):
                listener = Listener([self._file])
        try:
            yield listener
        finally:
            if listener is not None:  # to make one costs little, to close it milliseconds
                with self._turn:
                    self._resting.append(listener)

    def close(self) -> None:
        """Stop listening."""
        with self._turn:
            while self._resting:
                self._resting.pop().close()
