"""What a connection is doing: one thing at a time, which may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from derive.adapter.outcome import Session
from derive.adapter.server.failure import cancelled, sql_error_of
from derive.adapter.server.wire import ConnectionEnded
from derive.errors import SqlError

_PATIENCE_SECONDS = 5.0


class Work:
    """Things that are attempted one after the other, in the task that makes this.

    A request to cancel is passed to the session, which ends what it does. Where the client is waited for, that ends;
    and what the session has not ended after a while is cut off.
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
        self._number = 0

    async def attempt(self, work: Awaitable[None]) -> SqlError | None:
        """Do something that may fail or be cancelled.

        Returns:
            What is to be told of its failure; None if it was done.

        Raises:
            ConnectionEnded: the client is gone.
        """
        self._is_at_work, self._is_cancelled = True, False
        self._number += 1
        try:
            await work
        except ConnectionEnded:
            raise
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            self._task.uncancel()
            return cancelled()
        except Exception as error:  # of a statement, whatever it is: the client is told, and may go on
            return sql_error_of(error, self._on_defect)
        finally:
            self._is_at_work = False
        return None

    def cancel(self) -> None:
        """Have what is done end."""
        if not self._is_at_work or self._is_cancelled:
            return
        self._is_cancelled = True
        self._session.cancel()
        if self._waits_for_client:
            self._task.cancel()
        else:
            asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._cut_off, self._number)

    def require_going_on(self) -> None:
        """What is done may go on.

        Raises:
            SqlError: it was cancelled.
        """
        if self._is_cancelled:
            raise cancelled()

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
        if self._is_at_work and self._number == number:
            self._task.cancel()
