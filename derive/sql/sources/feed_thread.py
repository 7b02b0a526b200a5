"""A thread for each source, so that a slow or unreadable source does not delay the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.backoff import Backoff
from derive.errors import FencedError
from derive.relations.tables.input import table_at
from derive.sql.sources.definitions import SourceDefinition, polled
from derive.sql.sources.file_access import ALL_FILES, FileAccess
from derive.sql.transactions.timeline import Write
from derive.storage.store import Store

_LOOK_SECONDS, _BREATH_SECONDS = 0.1, 0.01
"""Intervals between two polls of a source: if idle, and if more data remains, in seconds."""

_BACKOFF = Backoff(_LOOK_SECONDS, 3.0)
"""Pauses, in seconds, before a source that failed is polled again."""


class IngestionThread:
    """A thread that commits the new rows of a source together with its position.

    Args:
        store: the data folder.
        source: the source.
        commit: function that commits writes, and returns after the commit.
        predecessor: earlier feeder of the same identifier, which ends first.
        files: files that sources may read.
        notify: function called after each change of `is_begun` or `failure`.

    Attributes:
        failure: current failure of the source; None without one.
        is_begun: whether the source has read all data that existed when it was created.
    """

    def __init__(
        self,
        store: Store,
        source: SourceDefinition,
        commit: Callable[[Sequence[Write]], object],
        predecessor: IngestionThread | None = None,
        files: FileAccess = ALL_FILES,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._files, self._notify = files, notify
        self.is_begun = False
        self._store, self._source, self._commit, self._predecessor = store, source, commit, predecessor
        self._position: Row | None = None
        self.failure: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feed, name=f"flowctl-source-{source.id}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the feeder; a commit in progress completes."""
        self._ended.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the feeder, up to a timeout, since a blocked read cannot be interrupted."""
        self._thread.join(seconds)

    @property
    def source_id(self) -> GlobalId:
        """Return the identifier of the source."""
        return self._source.id

    @property
    def is_at_work(self) -> bool:
        """Return whether the thread still runs."""
        return self._thread.is_alive()

    def _feed(self) -> None:
        if self._predecessor is not None:
            self._predecessor.join()
            self._predecessor = None
        pause, failures = 0.0, 0
        while not self._ended.wait(pause):
            begun = time.monotonic()
            try:
                is_idle = not self._feed_once()
                pause = max(_LOOK_SECONDS, 10 * (time.monotonic() - begun)) if is_idle else _BREATH_SECONDS
                self.failure, failures = None, 0
            except Exception as error:  # every error is reported and retried
                self._position = None  # the outcome of the commit is unknown
                self.failure = error
                self._notify()
                failures += 1
                pause = _BACKOFF.pause(failures)

    def _feed_once(self) -> bool:
        """Commit new rows; return whether there were any."""
        if self._position is None:
            self._position = self._stored_position()
        before, place = self._position, self._source.position
        changes, reached = polled(self._source, before, self._store.timeline.time(), self._files)
        if tuple(reached) == tuple(before):
            self._begin()  # the rest is an incomplete line
            return False
        if self._ended.is_set():
            return False
        writes = [(self._source.id, row, diff) for row, diff in changes]
        self._commit([*writes, (place, tuple(before), -1), (place, tuple(reached), 1)])
        self._position = reached
        if self._source.is_begun(reached):
            self._begin()
        return bool(changes)

    def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun = True
            self._notify()

    def _stored_position(self) -> Row:
        table = self._store.tables.table(self._source.position)
        if table is None:
            raise FencedError("the source was dropped")
        (position,) = [row for rows in table_at(self._store, table, table.upper - 1) for row in rows]
        return position
