"""The guard restricts the actions of SQL of a catalog, and the watch limits its time and memory.

The runtime owns the transaction: the changes of a lambda are committed together with its published documents, or not at
all. SQLite's authorizer checks each action of a statement, including triggers, when the statement is prepared. So a
refusal precedes every change, and the check costs no time per document. While a guard is active, a commit hook also
refuses every commit.

The guard also records the tables that the SQL reads and writes.

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
from derive.lambda_sql.determinism import INNER_TABLES, MODULES, refusal_of_function
from derive.protocol.derive import STATE_TABLES
from derive.protocol.specs import Document, LambdaLimits

MIGRATIONS = "flow_migrations"
"""The table that records the applied migrations."""

_OWN_TABLES = STATE_TABLES | {MIGRATIONS}

_TABLE_ARGUMENT = {
    apsw.SQLITE_READ: 0,
    apsw.SQLITE_INSERT: 0,
    apsw.SQLITE_UPDATE: 0,
    apsw.SQLITE_DELETE: 0,
    apsw.SQLITE_CREATE_TABLE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_CREATE_VTABLE: 0,
    apsw.SQLITE_DROP_VTABLE: 0,
    apsw.SQLITE_CREATE_VIEW: 0,
    apsw.SQLITE_DROP_VIEW: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_CREATE_TRIGGER: 1,
    apsw.SQLITE_DROP_TRIGGER: 1,
}
"""Actions on a table, with the index of the table's name in the authorizer's two arguments."""

_MADE = frozenset({apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_CREATE_VIEW})
"""Actions that create an object in the database that the authorizer names, even if the statement lacks the word TEMP.
"""

_TEMPORARY = "may not create temporary objects: they end with the transaction"
_TRANSACTION = "the runtime owns the transaction and the database"
_REFUSED = {
    apsw.SQLITE_TRANSACTION: f"may not begin or end a transaction: {_TRANSACTION}",
    apsw.SQLITE_SAVEPOINT: f"may not use savepoints: {_TRANSACTION}",
    apsw.SQLITE_ATTACH: f"may not use ATTACH: {_TRANSACTION}",
    apsw.SQLITE_DETACH: f"may not use DETACH: {_TRANSACTION}",
    apsw.SQLITE_PRAGMA: f"may not use PRAGMA: {_TRANSACTION}",
    apsw.SQLITE_ANALYZE: "may not use ANALYZE: plans, and the order of rows, would differ from shard to shard",
    **dict.fromkeys(
        (
            apsw.SQLITE_CREATE_TEMP_TABLE,
            apsw.SQLITE_CREATE_TEMP_INDEX,
            apsw.SQLITE_CREATE_TEMP_TRIGGER,
            apsw.SQLITE_CREATE_TEMP_VIEW,
        ),
        _TEMPORARY,
    ),
}
_INNER_PRAGMAS = frozenset({"data_version", "page_size", "quick_check"})
"""Pragmas that full-text search uses internally, and ALTER TABLE uses to add a CHECK."""


class Guard:
    """Guards a database while SQL of a catalog is prepared or run on it (`with guard:`).

    Attributes:
        db: the database.
        has_clock: whether the functions of time and randomness follow the document.
        own_calls: functions of the runtime that only rewritten statements call.
        refusal: the last refusal, as a text that follows the name of the refused statement.
        refused: name of the refused table or function, if any.
        reads: tables read by statements prepared since `forget`.
        writes: tables written or changed.
        columns: tables and columns read.
        calls: functions called, in lower case.
    """

    def __init__(
        self, db: apsw.Connection, *, has_clock: bool = False, own_calls: frozenset[str] = frozenset()
    ) -> None:
        self.db, self.has_clock, self.own_calls = db, has_clock, own_calls
        self.forget()

    def forget(self) -> None:
        """Clear the recorded refusal, tables, columns and calls."""
        self.refusal: str | None = None
        self.refused: str | None = None
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.columns: set[tuple[str, str]] = set()
        self.calls: set[str] = set()

    def tables(self) -> list[str]:
        """Return the names of the tables and views of the SQL; the runtime's own are left out."""
        authorizer, self.db.authorizer = self.db.authorizer, None
        try:
            rows = self.db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        finally:
            self.db.authorizer = authorizer
        names = [str(name) for (name,) in rows]
        return [name for name in names if name not in _OWN_TABLES and not name.startswith("sqlite_")]

    def __enter__(self) -> None:
        self.db.authorizer = self._authorize
        self.db.set_commit_hook(lambda: True)

    def __exit__(self, *_: object) -> None:
        self.db.authorizer = None
        self.db.set_commit_hook(None)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, by: str | None
    ) -> int:
        table = (first, second)[_TABLE_ARGUMENT[action]] if action in _TABLE_ARGUMENT else None
        refusal, about = _refusal_of(action, first, second, table, database), table
        if action == apsw.SQLITE_FUNCTION and second:
            name = second.lower()
            if name not in self.own_calls:
                refusal, about = refusal_of_function(name, has_clock=self.has_clock), second
            self.calls.add(name)
        if refusal:
            self.refusal, self.refused = f"{refusal} (through '{by}')" if by else refusal, about
            return apsw.SQLITE_DENY
        if table:
            (self.reads if action == apsw.SQLITE_READ else self.writes).add(table)
            if action == apsw.SQLITE_READ and second:
                self.columns.add((table, second))
        return apsw.SQLITE_OK


def _refusal_of(
    action: int, first: str | None, second: str | None, table: str | None, database: str | None
) -> str | None:
    name = (table or "").lower()
    if name in _OWN_TABLES:
        return f"may not use the table '{name}': it has the runtime's own state"
    if action == apsw.SQLITE_READ and (_is_pragma(name) or name in INNER_TABLES):
        return f"may not read '{name}': it shows internals that differ between machines"
    if action == apsw.SQLITE_PRAGMA and first in _INNER_PRAGMAS:
        return None
    is_in_temp = action == apsw.SQLITE_INSERT and name == "sqlite_temp_master"  # a trigger of a main table, for example
    if is_in_temp or (action in _MADE and (database or "").lower() == "temp"):
        return _TEMPORARY
    if action == apsw.SQLITE_CREATE_VTABLE and (second or "").lower() not in MODULES:
        return f"may not create a table of the module '{second}': its rows differ between machines"
    return _REFUSED.get(action)


def _is_pragma(table: str) -> bool:
    return table.startswith("pragma_") and table.removeprefix("pragma_") not in _INNER_PRAGMAS


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
