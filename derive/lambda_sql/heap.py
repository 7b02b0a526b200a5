"""SQLite's heap: a limit on the growth that SQL of a catalog may cause.

SQLite counts the memory of the whole process, in which several shards and the runtime's own databases may run. So the
hard limit is set only while lambdas run, and each start of a lambda raises it. With the limit, a single document's SQL
fails instead of the process. The watch interrupts earlier, if the heap grows by too much between two checks.
"""

from __future__ import annotations

import threading

import apsw

MEMORY_HINT = "if it needs more: --sqlite-memory MB"


class Heap:
    """The hard limit of SQLite's heap, active while there are holders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0
        self._before = 0

    @property
    def held(self) -> int:
        """Number of `hold` calls that no `release` has undone."""
        return self._held

    def hold(self, size: int) -> None:
        """Allow the heap to grow by `size` bytes from now on, until the hold is released."""
        with self._lock:
            limit = apsw.memory_used() + size
            before = apsw.hard_heap_limit(-1)
            if not self._held:
                self._before = before
            if not self._held or limit > before:
                apsw.hard_heap_limit(limit)
            self._held += 1

    def release(self) -> None:
        """Undo one `hold`; the last release restores the former limit."""
        with self._lock:
            self._held -= 1
            if not self._held:
                apsw.hard_heap_limit(self._before)


HEAP = Heap()
"""The heap of this process."""
