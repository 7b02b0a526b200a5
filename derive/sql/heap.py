"""The heap of SQLite: how much SQL of a catalog may have it grow.

SQLite counts what it takes for the process as a whole, in which several shards and the runtime's own databases may be
at work. So its hard limit, beyond which it fails, stands only while lambdas run, and is moved up by whoever begins: it
is there for a single document's SQL, which fails by itself then and not with the process. Before that, the watch
interrupts what has made the heap grow by too much between two looks.
"""

from __future__ import annotations

import threading

import apsw

MEMORY_HINT = "if it needs more: --sqlite-memory MB"


class Heap:
    """The hard limit of SQLite's heap, for as long as somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0
        self._before = 0

    @property
    def held(self) -> int:
        """Number of `hold` calls that no `release` has undone."""
        return self._held

    def hold(self, size: int) -> None:
        """Let the heap grow by so many bytes from now on, and by no more until it is released."""
        with self._lock:
            limit = apsw.memory_used() + size
            before = apsw.hard_heap_limit(-1)
            if not self._held:
                self._before = before
            if not self._held or limit > before:
                apsw.hard_heap_limit(limit)
            self._held += 1

    def release(self) -> None:
        """Undo one `hold`; after the last the limit is what it was."""
        with self._lock:
            self._held -= 1
            if not self._held:
                apsw.hard_heap_limit(self._before)


HEAP = Heap()
"""The heap of this process."""
