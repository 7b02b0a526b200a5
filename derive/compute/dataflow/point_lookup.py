"""Queries that are answered at once: by one SELECT, in whatever thread asks.

What a query reads was seen when it was asked before, and mostly nothing was committed since. Whether that is so SQLite
tells when the SELECT is done: its data version is then that of the moment that the SELECT has read. So rows are given
only if they are of exactly what was seen. While nobody commits, all queries are of one transaction of SQLite, since to
begin one costs about as much as to find a row. A time is only asked for that is complete in what was seen, so what is
committed later changes nothing of it.
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
from derive.compute.dataflow.peek import Kept, PreparedPeek, Seen
from derive.compute.oneshot import BATCH_ROWS, size_of
from derive.errors import FlowError
from derive.functions.cancellation import running

_STEPS = 20_000
"""A query that takes so many steps of SQLite, or up to twice as many, takes longer than a moment."""
_TRIES = 2


class PromptReader:
    """A connection that answers queries, one at a time, if that takes no more than a moment.

    Args:
        folder: of the instance.
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
        kept: Mapping[GlobalId, Kept],
        as_of: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
    ) -> list[Row] | None:
        """The rows of a query at a time; None if it takes longer, fails, or asks for what is not known.

        Args:
            query: what is asked.
            kept: where rows are.
            as_of: the time.
            arguments: one for each parameter.
            most_bytes: so much may be in the result; None for any amount.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with self._running:
                rows = self._read(query, kept, as_of, arguments)
        except (FlowError, apsw.Error):  # whoever asks in another way is told
            return None
        finally:
            self._lock.release()
        if rows is not None and most_bytes is not None and sum(map(size_of, rows)) > most_bytes:
            return None
        return rows

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In this block something may be committed: what was begun to be read before ends, and each SELECT is alone."""
        with self._lock:
            self._is_paused = True
            if self._reader is not None and self._reader.in_transaction:
                self._reader.execute("ROLLBACK")
        try:
            yield
        finally:
            self._is_paused = False

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def _read(
        self, query: PreparedPeek, kept: Mapping[GlobalId, Kept], as_of: int, arguments: Sequence[Datum]
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

    def _look(self, reader: apsw.Connection, query: PreparedPeek, kept: Mapping[GlobalId, Kept]) -> Seen:
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
        """Whether to interrupt. The first time may be too soon: SQLite counts what a statement took before, too."""
        self._asked += 1
        return self._asked > 1


def _is_long() -> bool:  # asked by functions that have worked for long on one value
    return True
