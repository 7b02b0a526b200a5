"""A question about catalogs that may be ended while DuckDB works on it: one database answers those of all sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from derive.errors import SqlError

if TYPE_CHECKING:
    import duckdb


class Asking:
    """One question.

    Attributes:
        reason: why it is to end; None if it is not.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.reason: SqlError | None = None

    def stop(self, reason: SqlError | None = None) -> None:
        """Have the question end; from any thread. What begins just now may miss it, so it is to be said again."""
        with self._turn:
            self.reason = self.reason or reason or SqlError("57014", "canceling statement due to user request")
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def at_work(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Work on the question in this block.

        Raises:
            SqlError: it is to end.
        """
        with self._turn:
            if self.reason is not None:
                raise self.reason
            self._connection = connection
        try:
            yield
        finally:
            with self._turn:
                self._connection = None
