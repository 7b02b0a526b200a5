"""The metadata database: the single place where a commit happens.

Changes that must happen together are one transaction of this database. Its functions take transactions of
`transaction.py`, and do not know which database stores the metadata.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from derive.storage.metadata.transaction import Transaction

T = TypeVar("T")


class Listener(Protocol):
    """A watch of commits from its creation on."""

    def forget(self) -> None:
        """Discard the events so far."""
        ...

    def listen(self, seconds: float) -> None:
        """Wait for an event after the last `forget`, at most for a number of seconds."""
        ...


class CommitSignal(Protocol):
    """The commit signal of one data folder."""

    def send(self) -> None:
        """Notify all listeners; errors are ignored, because listeners also poll."""
        ...

    def listener(self) -> AbstractContextManager[Listener | None]:
        """Yield a listener for exclusive use in the block; None if it cannot be notified."""
        ...

    def close(self) -> None:
        """Close all listeners."""
        ...


_MOMENT_SECONDS = 0.0005
"""Delay of a signal that is not sent at once, in seconds."""
_PAUSE_SECONDS = 0.005
"""Least time between two such signals, in seconds: listeners take a part of the time of a busy writer, not most."""
_IDLE_SECONDS = 5.0
"""Time after which the thread that sends such signals ends, in seconds."""


class Metadata(ABC):
    """A connection to the metadata database of one data folder, shared by threads in turn.

    Args:
        can_write: whether the database is writable.
        guard: callback before each use; it raises an error if the database must no longer be used.
        commit_signal: signal that is sent after commits for which other processes wait.

    Attributes:
        can_write: the argument `can_write`.
        guard: the argument `guard`.
        admit: called in each write transaction before the first write; it raises an error to refuse the transaction.
        notifications: number of notifications in this process, mostly commits.
        is_prompt: whether other processes, and the listeners of this one, are notified before a commit returns, and not
            a moment later.
        commit_signal: the argument `commit_signal`.
    """

    def __init__(self, *, can_write: bool, guard: Callable[[], None], commit_signal: CommitSignal) -> None:
        self.can_write = can_write
        self.guard = guard
        self.admit: Callable[[Transaction], None] = lambda db: None
        self.notifications = 0
        self.commit_signal = commit_signal
        self._notified = threading.Condition()
        self.is_prompt = True
        self._soon = threading.Condition()
        self._is_due = False
        self._sender: threading.Thread | None = None

    @abstractmethod
    def transaction(self, *, wakes: bool = False, synced: bool = True) -> AbstractContextManager[Transaction]:
        """Open a write transaction, which commits when the block ends and rolls back after an error.

        Write transactions exclude each other. Commits reach the disk in order. So a commit without a sync is durable as
        soon as a later commit of any process is durable, and a loss of power can lose the commit only together with all
        later commits.

        Args:
            wakes: whether to wake waiting tasks of other processes.
            synced: whether to wait for the disk.
        """

    def commit(self, body: Callable[[Transaction], Callable[[], T]], *, wakes: bool = False, synced: bool = True) -> T:
        """Execute a function in a write transaction, and commit it; on PostgreSQL, if possible in one round trip.

        The function may be called again. If the result uses rows of a changing statement, the call may even follow a
        commit whose rows were lost, so its repetition must be harmless.

        Args:
            body: the function. It returns a function without arguments, which returns the result. Rows that decide no
                later statement are used only there.
            wakes: as for `transaction`.
            synced: as for `transaction`.
        """
        with self.transaction(wakes=wakes, synced=synced) as db:
            return body(db)()

    def commit_at_once(self, body: Callable[[Transaction], Callable[[], object]]) -> bool:
        """Execute and commit a function like `commit`, and wake tasks, if this takes about a millisecond.

        Returns:
            False, without an effect, if another transaction or a slow disk would have to be waited for.
        """
        return False

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction, in which all reads see one state of the database."""

    @property
    def lost(self) -> str | None:
        """Return why this process commits nothing more; None while it can commit."""
        return None

    @property
    @abstractmethod
    def file(self) -> str:
        """Return the name of the file in the data folder that has, or names, the database."""

    @abstractmethod
    def copy(self, path: Path) -> None:
        """Copy the database as of one time into a new SQLite database, durably.

        Args:
            path: path of the copy, where no file exists.
        """

    @abstractmethod
    def reader(self) -> AbstractContextManager[Transaction]:
        """Open a connection on which each statement sees the latest commits, for work that takes long."""

    @abstractmethod
    def damage(self) -> str | None:
        """Return the damage that the database finds in its own file; None for none."""

    @abstractmethod
    def another(self) -> Metadata:
        """Return another connection to the same database, for a thread that must not wait for other threads."""

    @abstractmethod
    def version(self) -> int:
        """Return a number that changes with commits of other connections."""

    def version_seen(self, listener: Listener | None = None) -> int:
        """Return `version`, without waiting for transactions of this process, for a comparison with a later result.

        During a commit of this process, the result may count it; `notifications` changes after it.

        Args:
            listener: a listener of `commit_signal` that the caller uses; None for none.
        """
        return self.version()

    def estimated_now(self) -> int | None:
        """Return about the time of the database, microseconds since the Unix epoch; None if it is not known."""
        return None

    @abstractmethod
    def wakes(self) -> int:
        """Return the number of wake-ups by other connections, from an arbitrary start."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all commits so far are on the disk."""

    def wake(self) -> None:
        """Wake waiting tasks of other processes."""
        with self.transaction(wakes=True, synced=False):
            pass

    def notify(self, *, others: bool, is_urgent: bool = False) -> None:
        """Notify waiting threads of this process, and other processes if `others`; at once if it is urgent."""
        with self._notified:
            self.notifications += 1
            self._notified.notify_all()
        if others and (self.is_prompt or is_urgent):
            self.commit_signal.send()
        elif others:
            self._send_soon()

    def hurry(self) -> None:
        """Send the commit signal now if it is due, because a caller waits for listeners."""
        with self._soon:
            is_due, self._is_due = self._is_due, False
        if is_due:
            self.commit_signal.send()

    def _send_soon(self) -> None:
        """Send the commit signal after a moment; calls within the moment or a pause share one signal."""
        with self._soon:
            if self._is_due:
                return
            self._is_due = True
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_due, name="flowctl-commit-signal", daemon=True)
                self._sender.start()
            self._soon.notify()

    def _send_due(self) -> None:
        """Send signals until none is due for some seconds."""
        sent = 0.0
        while True:
            with self._soon:
                if not self._soon.wait_for(lambda: self._is_due, _IDLE_SECONDS):
                    self._sender = None
                    return
            time.sleep(max(_MOMENT_SECONDS, sent + _PAUSE_SECONDS - time.monotonic()))
            self.hurry()
            sent = time.monotonic()

    def wait(self, notifications: int, seconds: float) -> None:
        """Wait until the number of notifications differs from `notifications`, at most for a number of seconds."""
        with self._notified:
            self._notified.wait_for(lambda: self.notifications != notifications, seconds)

    @abstractmethod
    def close(self) -> None:
        """Close the connection, after its present uses by other threads have ended."""
