"""What is known of one session between its statements: its transaction, its settings, and whether it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from derive.adapter.coordinator import Coordinator
from derive.adapter.outcome import TransactionStatus
from derive.adapter.settings import Settings
from derive.adapter.transactions import Isolation, Modes, Transaction
from derive.errors import SqlError

if TYPE_CHECKING:
    from derive.adapter.cursors import Cursor
    from derive.adapter.preparing import Plan


class State:
    """The state of one session.

    Args:
        coordinator: what it shares with others.
        settings: of the session.
        most_bytes: so much may be in a result; None for any amount.

    Attributes:
        statements: of PREPARE, by name.
        cursors: that are open, by name.
        is_explicit: whether BEGIN was said.
        is_failed: whether the transaction has failed.
    """

    def __init__(self, coordinator: Coordinator, settings: Settings, most_bytes: int | None) -> None:
        self.coordinator, self.settings, self.most_bytes = coordinator, settings, most_bytes
        self.statements: dict[str, Plan] = {}
        self.cursors: dict[str, Cursor] = {}
        self.is_explicit = self.is_failed = False
        self._transaction: Transaction | None = None
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._reason: SqlError | None = None
        self._waiting: asyncio.Task[object] | None = None

    # Transactions

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""
        if not self.is_explicit:
            return TransactionStatus.IDLE
        return TransactionStatus.FAILED if self.is_failed else TransactionStatus.OPEN

    @property
    def transaction(self) -> Transaction:
        """The transaction of the statement at hand."""
        if self._transaction is None:
            self._transaction = self._new(self._modes(None, None, is_explicit=False))
        return self._transaction

    def begin(self, isolation: Isolation | None, is_read_only: bool | None) -> None:
        """Begin an explicit transaction; what was written before it in one go with it is part of it."""
        if self._transaction is not None and (self._transaction.has_written or self._transaction.time is not None):
            self.is_explicit = True
            return
        self._transaction = self._new(self._modes(isolation, is_read_only, is_explicit=True))
        self.is_explicit = True

    def set_modes(self, isolation: Isolation | None, is_read_only: bool | None) -> None:
        """SET TRANSACTION.

        Raises:
            SqlError: 25001, the transaction has read or written.
        """
        if self._transaction is not None and (self._transaction.has_written or self._transaction.time is not None):
            raise SqlError("25001", "SET TRANSACTION must be called before any query")
        self._transaction = self._new(self._modes(isolation, is_read_only, is_explicit=self.is_explicit))

    async def commit(self) -> None:
        """Commit, and be in no transaction.

        Raises:
            SqlError: it cannot be committed; it is rolled back then.
        """
        await self.close_cursors()
        transaction = self._leave()
        if transaction is not None:
            await transaction.commit()

    async def roll_back(self) -> None:
        """Forget what the transaction was to write, and be in none."""
        await self.close_cursors()
        transaction = self._leave()
        if transaction is not None:
            await transaction.end()

    async def close_cursors(self, *, all_of_them: bool = False) -> None:
        """Close the cursors of the transaction, or all."""
        for name, cursor in list(self.cursors.items()):
            if all_of_them or not cursor.is_held:
                await cursor.close()
                del self.cursors[name]

    def _leave(self) -> Transaction | None:
        transaction, self._transaction = self._transaction, None
        self.is_explicit = self.is_failed = False
        self.settings.end_transaction()
        return transaction

    def _new(self, modes: Modes) -> Transaction:
        coordinator = self.coordinator
        return Transaction(coordinator.timeline, coordinator.commits, coordinator.holds, modes)

    def _modes(self, isolation: Isolation | None, is_read_only: bool | None, *, is_explicit: bool) -> Modes:
        default = self.settings.get("default_transaction_read_only") == "on"
        read_only = default if is_read_only is None else is_read_only
        return Modes(isolation or self.settings.isolation, read_only, is_explicit)

    # Cancelling

    @property
    def is_stopped(self) -> bool:
        """Whether the statement at hand is to end; from any thread."""
        return self._stopped.is_set()

    def stop(self, reason: SqlError | None = None) -> None:
        """Have the statement at hand end; from any thread."""
        self._reason = reason
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._wake)

    def go_on(self) -> None:
        """A statement begins."""
        self._stopped.clear()
        self._reason = None

    def check_stopped(self) -> None:
        """Check that the statement at hand may go on.

        Raises:
            SqlError: 57014, it is cancelled.
        """
        if self._stopped.is_set():
            raise self._reason or SqlError("57014", "canceling statement due to user request")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Wait in this block for as long as the statement is not cancelled.

        Raises:
            SqlError: 57014, it is.
        """
        self.check_stopped()
        task = asyncio.current_task()
        assert task is not None
        outer, self._waiting = self._waiting, task
        try:
            yield
        except asyncio.CancelledError:
            if self._stopped.is_set():
                task.uncancel()
                self.check_stopped()
            raise
        finally:
            self._waiting = outer

    def limit(self) -> Callable[[], None]:
        """Have the statement end by itself if it takes longer than the session's settings allow.

        Returns:
            What to call when it is done.
        """
        seconds = self.settings.timeout
        if seconds is None:
            return _nothing
        reason = SqlError("57014", "canceling statement due to statement timeout")
        return self._loop.call_later(seconds, self.stop, reason).cancel

    def _wake(self) -> None:
        if self._waiting is not None and self._stopped.is_set():
            self._waiting.cancel()


def _nothing() -> None: ...
