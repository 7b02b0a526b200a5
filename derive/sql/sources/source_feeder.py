"""The feeders of sources with rows of their own: one thread for each source, reconciled with the catalog.

Each change of the catalog, and each start, names all desired sources: an unchanged source continues, and a dropped
source ends. The position of a source is stored with its rows, in the same commits, so another process can continue from
the position. Identifiers are permanent: a source that is dropped and created again starts from the beginning.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.backoff import Backoff
from derive.contents.rows import table_at
from derive.errors import FencedError, SqlError
from derive.reconcile import Reconciliation
from derive.sql.catalog.items import Item
from derive.sql.sources.definitions import SourceDefinition, polled
from derive.sql.sources.followed_file import ALL_FILES, FileAccess
from derive.sql.transactions.group_commit import GroupCommit
from derive.sql.transactions.writes import Write
from derive.storage.store import Store

_LOOK_SECONDS, _BREATH_SECONDS = 0.1, 0.01
"""Intervals between two polls of a source: if idle, and if more data remains, in seconds."""

_BACKOFF = Backoff(_LOOK_SECONDS, 3.0)
"""Pauses, in seconds, before a failed source is polled again."""


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
        failure: current failure of the source; None if missing.
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
        """Wait for the end of the feeder, up to a timeout, because a blocked read cannot be interrupted."""
        self._thread.join(seconds)

    @property
    def source_id(self) -> GlobalId:
        """Return the identifier of the source."""
        return self._source.id

    @property
    def is_at_work(self) -> bool:
        """Return whether the thread is still running."""
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
            raise FencedError("the source was dropped during the read")
        (position,) = [row for rows in table_at(self._store, table, table.upper - 1) for row in rows]
        return position


_CLOSE_SECONDS = 2.0
"""Longest wait for the feeders at shutdown, in seconds."""


class SourceFeeder:
    """The feeders of sources, in the process that owns the data folder.

    Args:
        store: the data folder.
        commits: group commit.
        files: files that sources may read.
    """

    def __init__(self, store: Store, commits: GroupCommit, files: FileAccess) -> None:
        self._store, self._commits, self._files = store, commits, files
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sources: Reconciliation[GlobalId, SourceDefinition] = Reconciliation(_difference, self._build, self._drop)
        self._threads: dict[GlobalId, IngestionThread] = {}
        self._ending: list[IngestionThread] = []
        self._changed = asyncio.Event()

    def begin(self, items: Mapping[GlobalId, Item]) -> None:
        """Begin to feed the existing sources, in this event loop."""
        self._loop = asyncio.get_running_loop()
        self.reconcile(items)

    def reconcile(self, items: Mapping[GlobalId, Item]) -> None:
        """Reconcile the feeders with the sources; do nothing before `begin`."""
        if self._loop is None:
            return
        self._sources.begin()
        for item in items.values():
            if (source := SourceDefinition.of(item)) is not None:
                self._sources.name(item.id, source)
        self._sources.complete()
        self._ending = [thread for thread in self._ending if thread.is_at_work]

    async def close(self) -> None:
        """Stop all feeders."""
        self.reconcile({})
        self._loop = None
        await asyncio.to_thread(self._join)

    def is_begun(self, ids: Collection[GlobalId]) -> bool:
        """Return whether sources with feeders have read all data that existed when they were created."""
        threads = (self._threads.get(identifier) for identifier in ids)
        return all(thread is None or thread.is_begun for thread in threads)

    async def begun(self, ids: Collection[GlobalId]) -> None:
        """Wait until sources have read all data that existed when they were created.

        Raises:
            SqlError: a source has failed.
        """
        while True:
            changed = self._changed
            self.check(ids)
            if self.is_begun(ids):
                return
            await changed.wait()

    def _notify(self) -> None:
        """Wake the waiting tasks."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _notify_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._notify)

    def check(self, ids: Collection[GlobalId]) -> None:
        """Check that sources have not failed.

        Raises:
            SqlError: a source has failed.
        """
        for identifier in ids:
            thread = self._threads.get(identifier)
            if thread is not None and isinstance(failure := thread.failure, SqlError):
                raise failure

    def states(self) -> list[tuple[GlobalId, int | None, Exception | None]]:
        """Return the sources with their `upper` and failure."""
        states: list[tuple[GlobalId, int | None, Exception | None]] = []
        for identifier, thread in sorted(self._threads.items()):
            table = self._store.tables.table(identifier)
            states.append((identifier, table.upper if table else None, thread.failure))
        return states

    def _build(self, identifier: GlobalId, source: SourceDefinition) -> None:
        predecessor = next((thread for thread in reversed(self._ending) if thread.source_id == identifier), None)
        assert self._loop is not None
        commit = partial(self._commit, self._loop)
        notify = partial(self._notify_from_thread, self._loop)
        self._threads[identifier] = IngestionThread(self._store, source, commit, predecessor, self._files, notify)

    def _drop(self, identifier: GlobalId, _: SourceDefinition) -> None:
        thread = self._threads.pop(identifier)
        thread.end()
        self._ending.append(thread)
        self._notify()

    def _commit(self, loop: asyncio.AbstractEventLoop, writes: Sequence[Write]) -> None:
        """Commit writes, from the thread of a feeder."""
        asyncio.run_coroutine_threadsafe(self._written(writes), loop).result()

    async def _written(self, writes: Sequence[Write]) -> None:
        await self._commits.commit(writes)

    def _join(self) -> None:
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._ending:
            thread.join(max(0.0, end - time.monotonic()))


def _difference(_: GlobalId, present: SourceDefinition, desired: SourceDefinition) -> str | None:
    return None if present == desired else "has another definition"
