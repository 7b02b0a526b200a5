"""Peak memory of the processes of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DRIVER = "the driver"
_KINDS = {"a Python worker": b"-m\0derive.spark.daemon\0", "the Java virtual machine": b"org.apache.spark"}


class PeakMemory:
    """The peak resident size in KiB of each kind of child process, polled every half second."""

    def __init__(self) -> None:
        self.kib = dict.fromkeys([*_KINDS, _DRIVER], 0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll for the length of the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.5):
            self._note(_DRIVER, os.getpid())
            children = _children()
            below = children.get(os.getpid(), [])
            while below:
                pid = below.pop()
                below += children.get(pid, [])
                with suppress(OSError):  # the process may just have ended
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    for kind, part in _KINDS.items():
                        if part in command:
                            self._note(kind, pid)
                            break

    def _note(self, kind: str, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        self.kib[kind] = max(self.kib[kind], int(status.partition("VmHWM:")[2].split()[0]))


def _children() -> dict[int, list[int]]:
    """Return the processes of this machine by their parent."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may just have ended
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(process.name))
    return children
