"""Errors in the form for clients."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import apsw

from derive.errors import DiskFullError, FlowError, InternalError, SqlError

_OF_SYSTEM = {
    errno.ENOSPC: ("53100", "no space is left on the disk", "free some space, and try again"),
    errno.EDQUOT: ("53100", "no space is left on the disk for this user", "free some space, and try again"),
    errno.ENOMEM: ("53200", "out of memory", "ask for less at once"),
    errno.EMFILE: ("53000", "the server has too many files open", "try again; raise the server's limit, ulimit -n"),
    errno.ENFILE: ("53000", "the machine has too many files open", "try again; raise the machine's limit"),
    errno.EIO: ("58030", "the disk cannot be read or written", "see what the system says of the disk"),
}
"""SQLSTATEs of operating system errors, as in PostgreSQL, with messages and hints."""


def cancelled() -> SqlError:
    """Return the error of a statement that the client has cancelled."""
    return SqlError("57014", "canceling statement due to user request")


def sql_error_of(error: BaseException, on_defect: Callable[[BaseException], None]) -> SqlError:
    """Return the error for the client.

    Args:
        error: any error.
        on_defect: function that takes unexpected errors.
    """
    match error:
        case SqlError():
            return error
        case InternalError():
            on_defect(error)
            return SqlError("XX000", error.message, hint=error.hint)
        case FlowError():
            where = f"{error.position}: " if error.position else ""
            sqlstate, hint = _cause_of(error)
            return SqlError(sqlstate, where + error.message, hint=error.hint or hint)
        case RecursionError():
            return SqlError("54001", "the statement is nested too deeply", hint="write it in several parts")
    lacking = _of_system(error)
    if lacking is not None:
        sqlstate, message, hint = lacking
        return SqlError(sqlstate, message, hint=hint)
    on_defect(error)
    hint = "this is a defect of the server, whose standard error says more; the session goes on"
    return SqlError("XX000", f"internal error: {type(error).__name__}: {error}", hint=hint)


def _cause_of(error: FlowError) -> tuple[str, str | None]:
    """Return the SQLSTATE and hint for an error without SQLSTATE, by its cause."""
    for cause in (error, *_causes(error)):
        if isinstance(cause, DiskFullError):
            return "53100", cause.hint
        if (known := _of_system(cause)) is not None:
            return known[0], known[2]
    return "58000", None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _of_system(error: BaseException) -> tuple[str, str, str] | None:
    """Return SQLSTATE, message and hint of an error about a missing resource; None for other errors."""
    match error:
        case apsw.FullError():
            return _OF_SYSTEM[errno.ENOSPC]
        case MemoryError() | apsw.NoMemError():
            return _OF_SYSTEM[errno.ENOMEM]
        case apsw.IOError():
            return _OF_SYSTEM[errno.EIO]
        case OSError():
            return _OF_SYSTEM.get(error.errno or 0)
    return None
