"""A cancellable query of the catalogs: all sessions share one DuckDB database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from derive.errors import SqlError

if TYPE_CHECKING:
    import duckdb


class CancellableQuery:
    """One query.

    Attributes:
        reason: reason of the cancellation; None without one.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.reason: SqlError | None = None

    def stop(self, reason: SqlError | None = None) -> None:
        """Cancel the query, from any thread; repeat the call, since a query that is just starting may miss it."""
        with self._turn:
            self.reason = self.reason or reason or SqlError("57014", "canceling statement due to user request")
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def at_work(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Run the query in this block.

        Raises:
            SqlError: the query is cancelled.
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
