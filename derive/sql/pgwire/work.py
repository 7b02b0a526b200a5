"""The work of a connection: one cancellable operation at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from derive.errors import SqlError
from derive.sql.outcome import Session
from derive.sql.pgwire.failure import cancelled, sql_error_of
from derive.sql.pgwire.wire import ConnectionEnded

_PATIENCE_SECONDS = 5.0


class Work:
    """Cancellable operations, one after the other, each in a `with` block of the creating task.

    A cancel request is passed to the session, which ends its statement. A wait for the client ends at once; a statement
    that does not end in time is cut off.

    Attributes:
        failure: error of the last block, for the client; None after success.
    """

    def __init__(self, session: Session, on_defect: Callable[[BaseException], None]) -> None:
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

    def __enter__(self) -> None:
        """Begin an operation that may fail or be cancelled. A lost connection ends more than the block."""
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
        return self.failure is not None

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
        """Report a completed operation, which can no longer be cancelled, to the client in this context."""
        self._is_settled = True
        try:
            yield
        finally:
            self._is_settled = False

    @contextmanager
    def waiting_for_client(self) -> Iterator[None]:
        """Wait for the client in this context, unless the operation is cancelled.

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
