"""Connections to SQLite with our SQL functions and error translation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import apsw

from derive.algebra.types import Datum
from derive.compute.sqlite.query import ONE_ROW
from derive.errors import BusyError, FlowError, SqlError, StorageError
from derive.functions.cancellation import cancellation
from derive.functions.registry import register

MOST_BYTES = 1 << 27
"""Maximum bytes of a value, and of a row."""
_ENDED = ("cannot rollback", "no such savepoint")
"""SQLite's messages on rolling back a transaction that it has already ended, after a full disk for example."""
_CACHE_KILOBYTES = 65_536
"""Maximum memory for sorting and temporary tables; larger data go to files."""


def connect(path: str, flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) -> apsw.Connection:
    """Open a connection with the SQL functions.

    Args:
        path: path of the database; empty for a temporary one, which is on disk only if it is large.
        flags: SQLite's open flags.
    """
    connection = apsw.Connection(path, flags)
    connection.set_busy_timeout(60_000)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.pragma("temp_store", "file")
    connection.execute(
        f"PRAGMA cache_size=-{_CACHE_KILOBYTES}; PRAGMA temp.cache_size=-{_CACHE_KILOBYTES};"
        "PRAGMA temp.journal_mode=MEMORY"
    ).fetchall()
    register(connection)
    connection.create_scalar_function(ONE_ROW, _one_row, 2, deterministic=True)
    return connection


def _one_row(*arguments: Any) -> Datum:
    rows, value = arguments
    if rows > 1:
        raise SqlError("21000", "more than one row returned by a subquery used as an expression")
    datum: Datum = value
    return datum


class _Translation:
    """The context manager of `translated`. It is stateless and shared, because lookups enter it often."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, apsw.Error) and (ours := sqlite_error(error)) is not None:
            raise ours from error


_TRANSLATION = _Translation()


def translated() -> AbstractContextManager[None]:
    """Translate SQLite's errors.

    Raises:
        SqlError: the statement was interrupted, is too complex, or has too large values, or the disk is full.
        BusyError: another process locks the database.
        StorageError: the database is damaged, or cannot be read or written.
    """
    return _TRANSLATION


def sqlite_error(error: apsw.Error) -> FlowError | None:
    """Return the translation of a SQLite error; None for one that is a defect."""
    cause = error.__context__
    if isinstance(cause, apsw.Error) and str(error).startswith(_ENDED):
        return sqlite_error(cause)
    if (trouble := _of_disk(error)) is not None:
        return trouble
    match error:
        case apsw.InterruptError():
            return cancellation()
        case apsw.TooBigError():
            hint = "Make it of smaller ones, or put its parts into rows of their own."
            return SqlError("54000", f"a value is larger than {MOST_BYTES:,} bytes", hint=hint)
        case apsw.SQLError():
            return _of_message(str(error))
    return None


def _of_disk(error: apsw.Error) -> FlowError | None:
    match error:
        case apsw.FullError():
            return SqlError("53100", "no space left on the device that stores the rows")
        case apsw.NoMemError():
            return SqlError("53200", "out of memory", hint="Read fewer rows at once.")
        case apsw.BusyError() | apsw.LockedError():
            hint = "it is tried again once that process, a backup perhaps, is done"
            return BusyError("another process holds a lock on the database that stores the rows", hint=hint)
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.NotADBError() | apsw.CorruptError():
            return StorageError(f"the database that stores the rows cannot be used: {error}")
    return None


def _of_message(message: str) -> SqlError:
    if "integer overflow" in message:
        return SqlError("22003", "bigint out of range")
    if "ntile" in message:
        return SqlError("22014", "argument of ntile must be greater than zero")
    if "nth_value" in message:
        return SqlError("22016", "argument of nth_value must be greater than zero")
    if any(words in message for words in ("too many", "too deep", "too large", "stack overflow", "at most")):
        hint = "Ask for less in one statement, or put parts of it into views."
        return SqlError("54001", "the statement is too complex", hint=hint, detail=message)
    return SqlError("XX000", f"SQLite rejected a generated statement: {message}")
