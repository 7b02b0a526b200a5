"""Connections to SQLite that know the functions of SQL, and its errors as ours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import apsw

from derive.compute.algebra.types import Datum
from derive.compute.lowering.query import ONE_ROW
from derive.compute.scalar.registry import register
from derive.compute.scalar.running import cancellation
from derive.errors import SqlError

MOST_BYTES = 1 << 27
"""Bytes of a value, and of a row."""
_CACHE_KILOBYTES = 65_536
"""What is sorted or kept for a statement is in memory up to so much, and in files beyond."""


def connect(path: str, flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) -> apsw.Connection:
    """A connection that knows the functions of SQL.

    Args:
        path: of the database; empty for one that is temporary, and on disk only as far as it is large.
        flags: how it is opened.
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
    """See `translated`. It has no state, and there is one, as look-ups enter it again and again."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        match error:
            case apsw.InterruptError():
                raise cancellation() from error
            case apsw.FullError():
                raise SqlError("53100", "no space is left where rows are kept") from error
            case apsw.TooBigError():
                hint = "Make it of smaller ones, or put its parts into rows of their own."
                raise SqlError("54000", f"a value is larger than {MOST_BYTES:,} bytes", hint=hint) from error
            case apsw.SQLError():
                raise _of_message(str(error)) from error


_TRANSLATION = _Translation()


def translated() -> AbstractContextManager[None]:
    """SQLite's errors are raised as ours.

    Raises:
        SqlError: for what a statement may meet: it was interrupted, is too complex, or has too large values.
    """
    return _TRANSLATION


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
    return SqlError("XX000", f"SQLite does not carry out a statement of ours: {message}")
