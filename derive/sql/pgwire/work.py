"""The work of a connection: runs one cancellable operation at a time, and converts errors to the form for clients."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import apsw

from derive.errors import BusyError, DiskFullError, FlowError, InternalError, SqlError, UnansweredError
from derive.instruments import Histogram
from derive.sql.pgwire.messages import ConnectionEnded
from derive.sql.results import Session

_OF_SYSTEM = {
    errno.ENOSPC: ("53100", "no space is left on the disk", "Free some space, and try again."),
    errno.EDQUOT: ("53100", "no space is left on the disk for this user", "Free some space, and try again."),
    errno.ENOMEM: ("53200", "out of memory", "Read fewer rows in one statement."),
    errno.EMFILE: ("53000", "the server has too many files open", "Raise the limit of the server: ulimit -n."),
    errno.ENFILE: ("53000", "the machine has too many files open", "Raise the limit of the machine."),
    errno.EIO: ("58030", "the disk cannot be read or written", "See the system's log for errors of the disk."),
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
            return SqlError(
                "54001",
                "the statement is nested too deeply",
                hint="Divide the statement, or move parts of it into views.",
            )
    lacking = _of_system(error)
    if lacking is not None:
        sqlstate, message, hint = lacking
        return SqlError(sqlstate, message, hint=hint)
    on_defect(error)
    hint = "This is a defect of the server: report it with its standard error. The session continues."
    return SqlError("XX000", f"internal error: {type(error).__name__}: {error}", hint=hint)


def _cause_of(error: FlowError) -> tuple[str, str | None]:
    """Return the SQLSTATE and the hint of an error without SQLSTATE, according to its cause."""
    for cause in (error, *_causes(error)):
        match cause:
            case DiskFullError():
                return "53100", cause.hint
            case UnansweredError():
                return "57P03", cause.hint
            case BusyError():
                return "55P03", cause.hint
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


_PATIENCE_SECONDS = 5.0


@dataclass(slots=True)
class Statistics:
    """Counts of all connections of a server; the event loop changes them.

    Attributes:
        connections: number of accepted connections.
        seconds: durations of statements, from their execution to their last row.
        errors: number of failed requests, by the class of the SQLSTATE.
    """

    connections: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    errors: Counter[str] = field(default_factory=Counter)


class Work:
    """Cancellable operations, one after the other, each in a `with` block of the creating task.

    A cancel request is passed to the session, which ends its statement. A wait for the client ends at once. A statement
    that does not end in time is aborted.

    Attributes:
        failure: error of the last block, for the client; None after success.
        statistics: counts of all connections.
    """

    def __init__(
        self, session: Session, on_defect: Callable[[BaseException], None], statistics: Statistics | None = None
    ) -> None:
        task = asyncio.current_task()
        assert task
        self._task = task
        self._session = session
        self._on_defect = on_defect
        self._is_at_work = False
        self._is_cancelled = False
        self._waits_for_client = False
        self._is_settled = False
        self._number = 0
        self.failure: SqlError | None = None
        self.statistics = statistics or Statistics()

    def __enter__(self) -> None:
        """Begin an operation that may fail or be cancelled.

        The loss of the connection also ends the code around the block.
        """
        self._is_at_work, self._is_cancelled = True, False
        self._number += 1
        self.failure = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._is_at_work = False
        if isinstance(error, asyncio.CancelledError) and self._is_cancelled:
            self._task.uncancel()
            self.failure = cancelled()
        elif isinstance(error, Exception) and not isinstance(error, ConnectionEnded):
            # Any error of a statement is reported to the client, which may continue.
            self.failure = sql_error_of(error, self._on_defect)
        if self.failure is None:
            return False
        self.statistics.errors[self.failure.sqlstate[:2]] += 1
        return True

    def note(self, error: Exception) -> None:
        """Report an unexpected error of an operation that will be attempted again."""
        sql_error_of(error, self._on_defect)

    @property
    def is_at_work(self) -> bool:
        """Return whether an operation is in progress."""
        return self._is_at_work

    def cancel(self) -> None:
        """Cancel the operation in progress."""
        if not self._is_at_work or self._is_cancelled:
            return
        self._is_cancelled = True
        self._session.cancel()
        if self._is_settled:
            return
        if self._waits_for_client:
            self._task.cancel()
        else:
            asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._cut_off, self._number)

    def require_going_on(self) -> None:
        """Check that the operation is not cancelled.

        Raises:
            SqlError: the operation is cancelled.
        """
        if self._is_cancelled and not self._is_settled:
            raise cancelled()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """In this context, report a completed operation to the client; it can no longer be cancelled."""
        self._is_settled = True
        try:
            yield
        finally:
            self._is_settled = False

    @contextmanager
    def waiting_for_client(self) -> Iterator[None]:
        """In this context, wait for the client, unless the operation is cancelled.

        Raises:
            SqlError: the operation is cancelled.
        """
        self.require_going_on()
        self._waits_for_client = True
        try:
            yield
        finally:
            self._waits_for_client = False

    def _cut_off(self, number: int) -> None:
        if self._is_at_work and self._number == number and not self._is_settled:
            self._task.cancel()
