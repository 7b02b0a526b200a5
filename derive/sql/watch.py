"""The watch: how long SQL may take for one document, and how much memory.

SQLite calls it every so many steps of its virtual machine, so a document costs nothing by itself. One call of a
function, however long it takes, is one step; what it takes of memory is bounded by the heap's limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import length_hint
from types import TracebackType
from typing import Any

import apsw

from derive.protocol.limits import LambdaLimits
from derive.sql.heap import HEAP

TIMEOUT_HINT = "if it needs longer: --sqlite-timeout SECONDS"

_STEPS = 10_000
"""Steps between two looks at the clock: some tenths of a millisecond, of which a look takes one part in a thousand."""


class Watch:
    """Interrupts what takes too long on a database (`with watch:`).

    Args:
        db: the database.
        seconds: how long one document may take.
        clock: seconds that only ascend.
        megabytes: by how much one document may have SQLite's heap grow.

    Attributes:
        seconds: how long one document may take.
        megabytes: by how much one document may have SQLite's heap grow.
        interrupted: text of the statement that was interrupted, with the values of its parameters.
        outgrown: whether it was interrupted for what it takes of memory.
    """

    def __init__(
        self,
        db: apsw.Connection,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        megabytes: int = LambdaLimits().sqlite_megabytes,
    ) -> None:
        self.seconds, self.megabytes = seconds, megabytes
        self.interrupted = ""
        self.outgrown = False
        self._db = db
        self._clock = clock
        self.begin(db.cursor(), iter(()))

    def begin(self, cursor: apsw.Cursor, left: Iterator[Any]) -> None:
        """Other documents are processed from now on.

        Args:
            cursor: what runs the statements.
            left: has a length hint, which falls with each document.
        """
        self._cursor, self._left = cursor, left
        self._count, self._since, self._used = -1, 0.0, 0

    def __enter__(self) -> None:
        self._db.set_progress_handler(self._look, _STEPS)
        HEAP.hold(self.megabytes << 20)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        HEAP.release()
        self._db.set_progress_handler(None)

    def _look(self) -> bool:
        now, count = self._clock(), length_hint(self._left)
        if count != self._count:
            self._count, self._since, self._used = count, now, apsw.memory_used()
            return False
        self.outgrown = apsw.memory_used() - self._used > self.megabytes << 20
        if now - self._since <= self.seconds and not self.outgrown:
            return False
        with suppress(apsw.ExecutionCompleteError):  # a statement that is being prepared is not there yet
            self.interrupted = self._cursor.expanded_sql
        return True
