"""Copies of single tables in memory, for queries that take longer than a turn of the event loop.

UPDATE and DELETE of many rows, and queries without an index, scan one table. Its rows in Storage are JSON documents in
many files, so a scan of a copy in memory takes a fraction of the time. Each copied table has a database of its own,
which one thread at a time uses; while a query takes long, other sessions read Storage. As with small tables, a copy is
made at the second read, and committed rows are added at the next read. A table that is rewritten between its reads has
no copy, which would serve one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic

import apsw

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row, Type
from derive.compute.resident import ResidentQuery, ResidentRows
from derive.errors import FlowError
from derive.recently_used import RecentlyUsed
from derive.relations.columns import columns_of
from derive.sql.transactions.table_changes import LEAST_PENDING, Changes, PendingChanges, net_changes
from derive.sql.transactions.writes import Write, by_table, tables_of
from derive.storage.table_types import Table

MOST_BYTES = 256 << 20
"""Default size of all copies, in bytes."""
MOST_ROWS = 2_000_000
"""Greatest number of rows of a copied table."""
_MOST_RESULT = 64 << 20
"""Size in bytes from which a result is computed from Storage, in batches."""
_MOST_TABLES = 1_000
_RETRY = 60_000_000
"""Time after which a table that was too large is read again, in microseconds."""
_PATIENCE_SECONDS = 1.0
"""Time for which a query waits for the end of another query of its copy, in seconds."""

Contents = Callable[[Table, int, int, int], list[Row] | None]
"""A function that returns the rows of a table at a time; None if they are more than a number of rows, or of bytes."""


@dataclass(slots=True)
class _LargeCopy:
    """A copy of a table, and the commits that it does not have yet."""

    source: Table
    types: tuple[Type, ...]
    pending: PendingChanges
    rows: ResidentRows
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: float = field(default_factory=monotonic)
    """Time at which the holder of the lock has begun."""
    count: int = 0
    is_loaded: bool = False

    async def acquire(self) -> bool:
        """Acquire the lock, unless its holder takes long; return whether it is acquired."""
        if self.lock.locked() and monotonic() - self.begun > _PATIENCE_SECONDS:
            return False
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.lock.acquire()
        except TimeoutError:
            return False
        self.begun = monotonic()
        return True

    def fill(self, rows: list[Row]) -> bool:
        self.count = len(rows)
        return self.rows.change(self.source.id, len(self.types), (), rows)

    def answer(
        self,
        pending: Sequence[Changes],
        query: ResidentQuery,
        arguments: Sequence[Datum],
        most_bytes: int,
        is_over: Callable[[], bool],
    ) -> tuple[bool, list[Row] | None]:
        """Apply pending changes, and return whether this succeeded, and the rows of the query."""
        if pending and not self._apply(pending):
            return False, None
        return True, self.rows.rows(query, arguments, most_bytes, is_over)

    def _apply(self, pending: Sequence[Changes]) -> bool:
        changes = net_changes(self.source, pending)
        if changes is None:
            return False
        removed, added = changes
        self.count += len(added) - sum(count for _, count in removed)
        return self.rows.change(self.source.id, len(self.types), removed, added)


class LargeTables:
    """Copies of single tables, within a size. All methods run in one event loop.

    Args:
        source: returns a table with its present columns.
        contents: returns the rows of a table at a time. It runs in a thread.
        most_bytes: size of all copies, in bytes; 0 for no copies.
    """

    def __init__(
        self, source: Callable[[GlobalId], Table | None], contents: Contents, most_bytes: int = MOST_BYTES
    ) -> None:
        self._source, self._contents, self._most_bytes = source, contents, most_bytes
        self._copies: dict[GlobalId, _LargeCopy] = {}  # ordered by use, the latest last
        self._read: RecentlyUsed[GlobalId, int] = RecentlyUsed(_MOST_TABLES)
        self._refused: RecentlyUsed[GlobalId, int] = RecentlyUsed(_MOST_TABLES)
        self._rewritten: RecentlyUsed[GlobalId, int] = RecentlyUsed(_MOST_TABLES)
        """Number of changes that have discarded the copy of a table."""

    @property
    def size(self) -> int:
        """Return the number of bytes in use, without tables that are being copied."""
        return sum(copy.rows.size for copy in self._copies.values() if copy.is_loaded and not copy.lock.locked())

    async def rows(
        self,
        query: ResidentQuery,
        table: tuple[GlobalId, tuple[Type, ...]],
        time: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
        is_applied: Callable[[GlobalId, int], bool],
        is_over: Callable[[], bool],
    ) -> list[Row] | None:
        """Return the rows of a query of one table at a time; None if Storage must be read.

        Args:
            query: the query.
            table: the table, with the types of its columns.
            time: the time.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
            is_applied: returns whether all commits of a table so far, which were noted, are at or before a time.
            is_over: returns whether the statement is cancelled; any thread calls it.
        """
        identifier, types = table
        copy = await self._copy(identifier, time, is_applied) if types else None
        if copy is None or not await copy.acquire():
            return None
        try:
            is_fit = self._copies.get(identifier) is copy and copy.is_loaded and copy.types == types
            pending = copy.pending
            if not (is_fit and max(pending.since, pending.latest) <= time and is_applied(identifier, time)):
                return None
            self._copies[identifier] = self._copies.pop(identifier)
            limit = _MOST_RESULT if most_bytes is None else min(most_bytes, _MOST_RESULT)
            is_current, rows = False, None
            try:
                is_current, rows = await asyncio.to_thread(
                    copy.answer, pending.take(), query, arguments, limit, is_over
                )
            except (FlowError, apsw.Error):  # the evaluation over stored rows reports the error
                pass
            finally:
                if not is_current:  # also if this task is cancelled, while the thread goes on
                    self._discard(identifier, copy)
            return rows
        finally:
            copy.lock.release()

    async def _copy(
        self, identifier: GlobalId, time: int, is_applied: Callable[[GlobalId, int], bool]
    ) -> _LargeCopy | None:
        """Return the copy of a table, which is made at the second read; None without one."""
        copy = self._copies.get(identifier)
        if copy is not None or self._most_bytes == 0:
            return copy
        refused, is_first = self._refused.get(identifier), self._read.get(identifier) is None
        self._read.put(identifier, time)
        if is_first or (refused is not None and time - refused < _RETRY) or not is_applied(identifier, time):
            return None
        source = self._source(identifier)
        return None if source is None else await self._loaded(identifier, source, time)

    async def _loaded(self, identifier: GlobalId, source: Table, time: int) -> _LargeCopy | None:
        types = tuple(column.type for column in columns_of(source))
        copy = self._copies[identifier] = _LargeCopy(
            source, types, PendingChanges(time), ResidentRows(self._most_bytes)
        )

        def load() -> bool:
            contents = self._contents(source, time, MOST_ROWS, self._most_bytes)
            return contents is not None and copy.fill(contents)

        try:
            async with copy.lock:
                copy.is_loaded = await asyncio.to_thread(load)
        except (FlowError, apsw.FullError):  # the evaluation over stored rows reports the error
            pass
        finally:
            if not copy.is_loaded:
                self._refused.put(identifier, time)
                self._discard(identifier, copy)
        while self.size > self._most_bytes and len(self._copies) > 1:
            self.discard([next(iter(self._copies))])
        return copy

    def _discard(self, identifier: GlobalId, copy: _LargeCopy) -> None:
        if self._copies.get(identifier) is copy:
            del self._copies[identifier]

    def note(self, writes: Sequence[Write], time: int) -> None:
        """Note the committed writes of a time."""
        tables = tables_of(writes)
        if self._copies.keys().isdisjoint(tables) and not any(map(self._rewritten.get, tables)):
            return
        for identifier, (rows, diffs) in by_table(writes).items():
            copy = self._copies.get(identifier)
            if copy is None:
                if len(rows) > (self._rewritten.get(identifier) or MOST_ROWS):
                    self._read.forget(identifier)
                continue
            copy.pending.add(rows, diffs, time)
            if copy.is_loaded and copy.pending.is_excessive(copy.count):
                self._rewritten.put(identifier, max(LEAST_PENDING, copy.count))
                self._read.forget(identifier)
                self.discard([identifier])

    def discard(self, ids: Collection[GlobalId]) -> None:
        """Discard the copies of some tables; a thread that uses one goes on with it."""
        for identifier in ids:
            self._copies.pop(identifier, None)
