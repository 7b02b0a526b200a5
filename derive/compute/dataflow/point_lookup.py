"""Point lookups: queries answered by one SELECT, in the calling thread.

The state of a query's dataflows is cached, and mostly unchanged. SQLite's data version after the SELECT shows the
version that it has read, so rows are returned only if it equals the cached version. While nothing is committed, all
queries share one SQLite transaction, because starting one costs as much as finding a row. A query reads only a time
that is complete in the cached state, so later commits do not matter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import apsw

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.compute.dataflow.database import open_reader
from derive.compute.dataflow.peek import DataflowPlace, PreparedPeek, Seen
from derive.compute.oneshot import BATCH_ROWS, size_of
from derive.errors import FlowError
from derive.functions.cancellation import running

_STEPS = 20_000
"""Number of SQLite steps after which a query is too slow; an interrupt may come after twice as many."""
_TRIES = 2


class PointLookupReader:
    """A connection that answers fast queries, one at a time.

    Args:
        folder: folder of the instance.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._reader: apsw.Connection | None = None
        self._asked = 0
        self._running = running(_is_long)
        self._is_paused = False

    def rows(
        self,
        query: PreparedPeek,
        kept: Mapping[GlobalId, DataflowPlace],
        as_of: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
    ) -> list[Row] | None:
        """Return the rows of a query at a time; None if it is slow, fails, or reads an unknown time.

        Args:
            query: the query.
            kept: places of the rows.
            as_of: the time.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with self._running:
                rows = self._read(query, kept, as_of, arguments)
        except (FlowError, apsw.Error):  # the slow path reports the error
            return None
        finally:
            self._lock.release()
        if rows is not None and most_bytes is not None and sum(map(size_of, rows)) > most_bytes:
            return None
        return rows

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Allow commits for the length of the block: end the shared transaction, and use none for each SELECT."""
        with self._lock:
            self._is_paused = True
            if self._reader is not None and self._reader.in_transaction:
                self._reader.execute("ROLLBACK")
        try:
            yield
        finally:
            self._is_paused = False

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def _read(
        self, query: PreparedPeek, kept: Mapping[GlobalId, DataflowPlace], as_of: int, arguments: Sequence[Datum]
    ) -> list[Row] | None:
        reader = self._reader or self._open()
        if not self._is_paused and not reader.in_transaction:
            reader.execute("BEGIN")
        for _ in range(_TRIES):
            seen = query.seen_by(reader, kept)
            select = query.select(seen, as_of, arguments) if seen else None
            if seen is None or select is None:  # it may be known by now
                seen = self._look(reader, query, kept)
                select = query.select(seen, as_of, arguments)
            if select is None:
                return None
            self._asked = 0
            cursor = reader.execute(*select)
            rows = list(islice(cursor, BATCH_ROWS))
            if len(rows) == BATCH_ROWS:
                cursor.close()
                return None
            if reader.data_version() == seen.version:
                return rows
        return None

    def _look(self, reader: apsw.Connection, query: PreparedPeek, kept: Mapping[GlobalId, DataflowPlace]) -> Seen:
        if reader.in_transaction:
            return query.look(reader, kept)
        reader.execute("BEGIN")
        try:
            return query.look(reader, kept)
        finally:
            reader.execute("ROLLBACK")

    def _open(self) -> apsw.Connection:
        self._reader = reader = open_reader(self._folder)
        reader.set_progress_handler(self._takes_long, _STEPS)
        return reader

    def _takes_long(self) -> bool:
        """Return whether to interrupt.

        The first call may be too early, as SQLite counts steps of earlier statements.
        """
        self._asked += 1
        return self._asked > 1


def _is_long() -> bool:  # called by functions that work long on one value
    return True
