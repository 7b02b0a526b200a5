"""Errors as clients are told them."""

from __future__ import annotations

from collections.abc import Callable

from derive.errors import FlowError, InternalError, SqlError


def cancelled() -> SqlError:
    """That a client has had a statement cancelled."""
    return SqlError("57014", "canceling statement due to user request")


def sql_error_of(error: BaseException, on_defect: Callable[[BaseException], None]) -> SqlError:
    """What a client is told of an error.

    Args:
        error: any error.
        on_defect: told of it if nobody foresaw it.
    """
    match error:
        case SqlError():
            return error
        case InternalError():
            on_defect(error)
            return SqlError("XX000", error.message, hint=error.hint)
        case FlowError():
            where = f"{error.position}: " if error.position else ""
            return SqlError("58000", where + error.message, hint=error.hint)
        case RecursionError():
            return SqlError("54001", "the statement is nested too deeply", hint="write it in several parts")
        case MemoryError():
            return SqlError("53200", "out of memory", hint="ask for less at once")
    on_defect(error)
    hint = "this is a defect of the server, whose standard error says more; the session goes on"
    return SqlError("XX000", f"internal error: {type(error).__name__}: {error}", hint=hint)
