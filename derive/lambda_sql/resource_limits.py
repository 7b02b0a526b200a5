"""The watch: limits on the time, memory and heap of SQL for one document, and the reasons of its failures.

SQLite counts the memory of the whole process, in which several shards and the runtime's own databases may run. So the
hard limit is set only while lambdas run, and each start of a lambda raises it. With the limit, the SQL of a single
document fails, and not the process. The watch interrupts earlier, if the heap grows by too much between two checks.

SQLite calls the watch after a fixed number of virtual machine steps, and not for each document. One call of a function
is one step, even if it takes long; the limit of the heap bounds its memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import length_hint
from typing import Any

import apsw

from derive.document.exact import dump_exact
from derive.errors import LambdaError
from derive.lambda_sql.guard import Guard
from derive.protocol.specs import Document, LambdaLimits

MEMORY_HINT = "to raise the limit: --sqlite-memory MB"


class Heap:
    """The hard limit of SQLite's heap, active while there are holders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0
        self._before = 0

    @property
    def held(self) -> int:
        """Number of `hold` calls without a `release`."""
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


TIMEOUT_HINT = "to raise the limit: --sqlite-timeout SECONDS"

_STEPS = 10_000
"""Steps between two checks of the clock: some tenths of a millisecond; a check takes a thousandth of this time."""


class Watch:
    """Interrupts statements that exceed a limit on a database (`with watch:`).

    Args:
        db: the database.
        seconds: time limit of one document.
        clock: monotonic seconds.
        megabytes: limit of the growth of SQLite's heap by one document.

    Attributes:
        seconds: time limit of one document.
        megabytes: limit of the growth of SQLite's heap by one document.
        interrupted: text of the interrupted statement, with the values of its parameters.
        outgrown: whether the statement was interrupted because of its memory.
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
        """Record that the next documents begin, and that limits count from now on.

        Args:
            cursor: cursor that runs the statements.
            left: iterator whose length hint falls with each document.
        """
        self._cursor, self._left = cursor, left
        self._count, self._since, self._used = -1, 0.0, 0

    def __enter__(self) -> None:
        self._db.set_progress_handler(self._look, _STEPS)
        HEAP.hold(self.megabytes << 20)

    def __exit__(self, *_: object) -> None:
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
        with suppress(apsw.ExecutionCompleteError):  # the cursor has no statement yet while a statement is prepared
            self.interrupted = self._cursor.expanded_sql
        return True


ENVIRONMENT = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)
"""Errors of the machine; the runtime, which opened the database, explains them."""

FAILURES = (apsw.Error, OverflowError, UnicodeDecodeError)
"""Exceptions that SQL raises: SQLite's own, and errors of converting integers and texts between SQLite and Python."""

_SHOWN_BYTES = 40


def reason_of(exc: Exception, guard: Guard, watch: Watch) -> str:
    """Return the reason of a failure, as a text that follows the name of the failed part."""
    if isinstance(exc, LambdaError):
        return exc.message
    if _is_outgrown(exc, watch):
        return f"it exceeded its memory limit of {watch.megabytes} MB"
    if isinstance(exc, apsw.InterruptError):
        return f"it took longer than {watch.seconds:g} s"
    if isinstance(exc, apsw.AuthError) and guard.refusal:
        return f"it {guard.refusal}"
    if isinstance(exc, UnicodeDecodeError):
        return f"it made text that is not valid UTF-8: {exc.object[:_SHOWN_BYTES]!r}"
    return str(exc)


def _is_outgrown(exc: Exception, watch: Watch) -> bool:
    return isinstance(exc, apsw.NoMemError) or (isinstance(exc, apsw.InterruptError) and watch.outgrown)


def exceeds_limit(exc: Exception, watch: Watch) -> bool:
    """Return whether a failure is about a limit of time or memory, or an interruption."""
    return isinstance(exc, apsw.InterruptError) or _is_outgrown(exc, watch)


def hint_of(exc: Exception, watch: Watch) -> str | None:
    """Return a hint with the option to raise the exceeded limit; None if no limit was exceeded."""
    if _is_outgrown(exc, watch):
        return MEMORY_HINT
    return TIMEOUT_HINT if isinstance(exc, apsw.InterruptError) else None


def show_document(document: Document, most: int) -> str:
    """Return the JSON of a document, at most `most` characters."""
    shown = dump_exact(document).decode()
    return shown if len(shown) <= most else f"{shown[:most]}…"
