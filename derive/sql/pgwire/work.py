"""What a connection is doing: one thing at a time, which may be cancelled."""

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
    """Things that are attempted one after the other, each in a `with` block, in the task that makes this.

    A request to cancel is passed to the session, which ends what it does. Where the client is waited for, that ends;
    and what the session has not ended after a while is cut off.

    Attributes:
        failure: of the last block: what is to be told of it; None if all was done.
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
        """Something is attempted that may fail or be cancelled. That the client is gone ends more than the block."""
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
            # Of a statement, whatever it is: the client is told, and may go on.
            self.failure = sql_error_of(error, self._on_defect)
        return self.failure is not None

    def note(self, error: Exception) -> None:
        """Something has failed that is going to be attempted; errors that nobody foresaw are told of already."""
        sql_error_of(error, self._on_defect)

    @property
    def is_at_work(self) -> bool:
        """Whether something is done now."""
        return self._is_at_work

    def cancel(self) -> None:
        """Have what is done end."""
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
        """What is done may go on.

        Raises:
            SqlError: it was cancelled.
        """
        if self._is_cancelled and not self._is_settled:
            raise cancelled()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """In this context the client is told of what has happened, and so cannot be cancelled any more."""
        self._is_settled = True
        try:
            yield
        finally:
            self._is_settled = False

    @contextmanager
    def waiting_for_client(self) -> Iterator[None]:
        """Wait for the client in this context, unless what is done was cancelled.

        Raises:
            SqlError: it was.
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
