"""The commit signal of a data folder whose metadata is in PostgreSQL: NOTIFY after commits, and LISTEN.

A notification inside of a commit would let commits of the whole server wait for one another. So a thread sends it after
the commit, on a connection of its own, and several commits in a row send one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_CHANNEL = "flowctl"

_LINGER_SECONDS = 5.0
"""Time without commits after which the thread and its connection end."""


class PostgresListener:
    """A connection that listens to commits.

    Args:
        connection: the connection, for exclusive use.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        (schema,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
        connection.execute(f'LISTEN "{_CHANNEL}_{schema}"'.encode())

    @property
    def is_closed(self) -> bool:
        """Return true if the connection broke."""
        return self._connection.closed

    def forget(self) -> None:
        """Discard the events so far."""
        with suppress(psycopg.OperationalError):
            for _ in self._connection.notifies(timeout=0):
                pass

    def listen(self, seconds: float) -> None:
        """Wait for an event after the last `forget`, at most for a number of seconds."""
        try:
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                pass
        except psycopg.OperationalError:
            self._connection.close()
            threading.Event().wait(seconds)  # the caller polls

    def changes(self) -> int | None:
        """Return the number of write transactions so far; None if the connection broke."""
        try:
            row = self._connection.execute("SELECT changes FROM folder").fetchone()
        except psycopg.OperationalError:
            self._connection.close()
            return None
        return None if row is None else int(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PostgresSignal:
    """The commit signal of one data folder.

    Args:
        connect: returns a new connection to the metadata database.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._turn = threading.Lock()
        self._resting: list[PostgresListener] = []
        self._due = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def send(self) -> None:
        """Notify all listeners soon; errors are ignored, because listeners also poll."""
        with self._turn:
            if self._is_closed:
                return
            self._due.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="commit signal", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        connection: Connection | None = None
        while self._is_due():
            with suppress(psycopg.Error):
                if connection is None or connection.closed:
                    connection = self._connect()
                connection.execute("SELECT pg_notify(%s || '_' || current_schema(), '')", (_CHANNEL,))
        if connection is not None:
            connection.close()

    def _is_due(self) -> bool:
        """Wait until a notification is due; return False if the thread ends, because none was due for a while."""
        is_due = self._due.wait(_LINGER_SECONDS)
        with self._turn:
            is_due = (is_due or self._due.is_set()) and not self._is_closed
            self._due.clear()
            if not is_due:
                self._thread = None
        return is_due

    @contextmanager
    def listener(self) -> Iterator[PostgresListener | None]:
        """Yield a listener for exclusive use in the block; None if the server cannot be reached."""
        with self._turn:
            listener = self._resting.pop() if self._resting else None
        if listener is None:
            with suppress(psycopg.Error):
                listener = PostgresListener(self._connect())
        try:
            yield listener
        finally:
            if listener is not None:
                with self._turn:
                    is_kept = not self._is_closed and not listener.is_closed
                    if is_kept:
                        self._resting.append(listener)
                if not is_kept:
                    listener.close()

    def close(self) -> None:
        """Close all connections."""
        with self._turn:
            self._is_closed = True
            thread = self._thread
            while self._resting:
                self._resting.pop().close()
        self._due.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
