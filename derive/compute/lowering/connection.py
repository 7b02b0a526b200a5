"""Connections to SQLite that know the functions of SQL, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from derive.compute.algebra.types import Datum
from derive.compute.lowering.query import ONE_ROW
from derive.compute.scalar.registry import register
from derive.errors import SqlError


def connect(path: str, flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) -> apsw.Connection:
    """A connection that knows the functions of SQL.

    Args:
        path: of the database; empty for one that is temporary, and on disk only as far as it is large.
        flags: how it is opened.
    """
    connection = apsw.Connection(path, flags)
    connection.set_busy_timeout(60_000)
    connection.pragma("temp_store", "memory")
    register(connection)
    connection.create_scalar_function(ONE_ROW, _one_row, 2, deterministic=True)
    return connection


def _one_row(*arguments: Any) -> Datum:
    rows, value = arguments
    if rows > 1:
        raise SqlError("21000", "more than one row returned by a subquery used as an expression")
    datum: Datum = value
    return datum


@contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors are raised as ours.

    Raises:
        SqlError: for what a statement may meet: it was interrupted, is too complex, or has too large values.
    """
    try:
        yield
    except apsw.InterruptError as exc:
        raise cancellation() from exc
    except apsw.FullError as exc:
        raise SqlError("53100", "no space is left where rows are kept") from exc
    except apsw.TooBigError as exc:
        raise SqlError("54000", "a value is larger than 1,000,000,000 bytes") from exc
    except apsw.SQLError as exc:
        raise _of_message(str(exc)) from exc


def cancellation() -> SqlError:
    """What a statement fails with that was cancelled."""
    return SqlError("57014", "canceling statement due to user request")


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
