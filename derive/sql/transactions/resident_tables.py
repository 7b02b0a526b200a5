"""Rows of small tables in memory, for queries without an index.

One process writes all tables of SQL, and group commit gives its writes an order. So a copy of the rows at a time that
follows the commits is exact, like an index of keys. A table is copied at its second read. Committed rows are added at
the next read, so a table that is only written costs nothing. Tables that are large, or that processes of tasks write,
are always read from Storage.

Committed rows are added on the event loop, many of them in several steps, between which other sessions go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time

import apsw

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row, Type
from derive.compute.resident import ResidentQuery, ResidentRows
from derive.errors import FlowError, SqlError
from derive.recently_used import RecentlyUsed
from derive.relations.columns import columns_of
from derive.sql.catalog.items import is_provisional
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import ids_of, types_read
from derive.sql.planner.planned import PlannedQuery
from derive.sql.transactions.large_tables import Contents, LargeTables
from derive.sql.transactions.table_changes import PendingChanges, net_changes
from derive.sql.transactions.writes import Write, by_table, tables_of
from derive.storage.table_types import Table

MOST_BYTES = 64 << 20
"""Default size of all copies, in bytes."""
_LARGER = 4
"""Ratio of the sizes of all copies of large tables and of small ones."""
MOST_ROWS = 50_000
"""Greatest number of rows of a copied table; the scan of more rows would delay other sessions."""
_CHANGED_AT_ONCE = 500
"""Number of changed rows that are added to a copy in one turn of the event loop."""
_AT_ONCE = 2_000
"""Number of rows that are copied in one turn of the event loop."""
_SECONDS = 0.005
"""Processor time up to which a query is evaluated on the event loop, in seconds."""
_MOST_QUERIES = 1_000
_RETRY = 60_000_000
"""Time after which a table that was too large is read again, in microseconds."""


@dataclass(frozen=True, slots=True)
class TableQuery:
    """A query of tables that SQL writes.

    Attributes:
        query: the query.
        version: version of the catalog.
        tables: types of the columns of each table; None for a query of another kind.
        lowered: the query over copies; None for a query of another kind.
    """

    query: PlannedQuery
    version: int
    tables: Mapping[GlobalId, tuple[Type, ...]] | None = None
    lowered: ResidentQuery | None = None


@dataclass(slots=True)
class _Copy:
    """A copy of a table.

    Attributes:
        source: the table.
        types: types of its columns.
        pending: commits that the copy does not have yet.
        rows: number of its rows.
        is_loaded: whether the copy has the rows of all commits except the pending ones.
        turn: held while many changes are added.
    """

    source: Table
    types: tuple[Type, ...]
    pending: PendingChanges
    rows: int = 0
    is_loaded: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ResidentTables:
    """Copies of tables, within a size. All methods run in one event loop.

    Args:
        source: returns a table with its present columns.
        contents: returns the rows of a table at a time; None if they are more than a number of rows, or of bytes. It
            runs in a thread.
        most_bytes: size of all copies of small tables, in bytes; 0 for no copies.

    Attributes:
        large: copies of single tables for queries that take longer.
    """

    def __init__(
        self,
        source: Callable[[GlobalId], Table | None],
        contents: Contents,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._source, self._contents = source, contents
        self._most_bytes = most_bytes
        self.large = LargeTables(source, contents, _LARGER * most_bytes)
        self._is_on = most_bytes > 0
        self._rows = ResidentRows(most_bytes)
        self._copies: dict[GlobalId, _Copy] = {}  # ordered by use, the latest last
        self._queries: RecentlyUsed[int, TableQuery] = RecentlyUsed(_MOST_QUERIES)
        self._read: RecentlyUsed[GlobalId, int] = RecentlyUsed(_MOST_QUERIES)
        self._refused: RecentlyUsed[GlobalId, int] = RecentlyUsed(_MOST_QUERIES)

    @property
    def size(self) -> int:
        """Return the number of bytes in use."""
        return self._rows.size

    def find(self, query: PlannedQuery, objects: Objects) -> TableQuery | None:
        """Return a query as a query of tables that SQL writes; None for a query of another kind."""
        asked = self._queries.get(id(query))
        if asked is None or asked.query is not query or asked.version != objects.version:
            asked = self._queries.put(id(query), _query_of(query, objects) or TableQuery(query, objects.version))
        return asked if self._is_on and asked.lowered is not None else None

    def are_loaded(self, asked: TableQuery) -> bool:
        """Return whether all tables of a query are copied."""
        return all((copy := self._copies.get(id_)) is not None and copy.is_loaded for id_ in asked.tables or ())

    async def load(self, asked: TableQuery, time: int, is_applied: Callable[[GlobalId, int], bool]) -> bool:
        """Copy the missing tables of a query at a time, if each is small, and add many changes to its other tables.

        Args:
            asked: the query.
            time: the time.
            is_applied: returns whether all commits of a table so far, which were noted, are at or before a time. A
                later commit may come while another table is copied.

        Returns:
            Whether all tables are copied.
        """
        assert asked.tables is not None
        is_first = False
        for identifier in asked.tables:
            is_first |= self._read.get(identifier) is None
            self._read.put(identifier, time)
            refused = self._refused.get(identifier)
            if refused is not None and time - refused < _RETRY:
                return False
        if is_first:
            return False
        for identifier in asked.tables:
            if identifier not in self._copies:
                if not is_applied(identifier, time):
                    return False
                await self._load(identifier, time)
            elif self._copies[identifier].pending.size > _CHANGED_AT_ONCE or self._copies[identifier].turn.locked():
                await self._catch_up(identifier)
        return self.are_loaded(asked)

    async def _load(self, identifier: GlobalId, time: int) -> None:
        source = self._source(identifier)
        if source is None:
            return
        types = tuple(column.type for column in columns_of(source))
        copy = self._copies[identifier] = _Copy(source, types, PendingChanges(time))
        try:
            rows = await asyncio.to_thread(self._contents, source, time, MOST_ROWS, self._most_bytes)
            if self._copies.get(identifier) is not copy:
                return
            if rows is None:
                self._refused.put(identifier, time)
                self._discard_small([identifier])
                return
            for begin in range(0, len(rows) or 1, _AT_ONCE):
                if not self._change(identifier, copy, (), rows[begin : begin + _AT_ONCE]):
                    self._refused.put(identifier, time)
                    return
                await asyncio.sleep(0)
                if self._copies.get(identifier) is not copy:
                    return
            copy.is_loaded = True
        except FlowError:  # the evaluation over stored rows reports the error
            pass
        finally:
            if not copy.is_loaded and self._copies.get(identifier) is copy:
                self._discard_small([identifier])

    def _change(
        self, identifier: GlobalId, copy: _Copy, removed: Sequence[tuple[Row, int]], added: Sequence[Row]
    ) -> bool:
        """Change the rows of a copy, and discard other copies if there is no memory; return False on failure."""
        while True:
            try:
                is_changed = self._rows.change(identifier, len(copy.source.columns), removed, added)
            except apsw.FullError:
                oldest = next((one for one in self._copies if one != identifier), None)
                if oldest is None:
                    return False
                self._discard_small([oldest])
            except apsw.Error:  # for example, SQLite has limits for a table of very many columns
                return False
            else:
                copy.rows += len(added) - sum(count for _, count in removed)
                return is_changed

    def rows(
        self, asked: TableQuery, time: int, arguments: Sequence[Datum], most_bytes: int | None
    ) -> list[Row] | None:
        """Return the rows of a query at a time; None if the copies do not have them, or the query is slow or fails.

        Args:
            asked: the query.
            time: the time; all commits of its tables up to this time are noted.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
        """
        assert asked.tables is not None
        assert asked.lowered is not None
        if asked.lowered.is_slow:
            return None
        for identifier, types in asked.tables.items():
            copy = self._copies.pop(identifier, None)
            if copy is None:
                return None
            self._copies[identifier] = copy
            pending = copy.pending
            if not copy.is_loaded or max(pending.since, pending.latest) > time or types != copy.types:
                return None
            if pending.size and (pending.size > _CHANGED_AT_ONCE or not self._apply(identifier, copy)):
                return None
        if not self.are_loaded(asked):
            return None
        end = thread_time() + _SECONDS
        return self._rows.rows(asked.lowered, arguments, most_bytes, lambda: thread_time() > end)

    def _apply(self, identifier: GlobalId, copy: _Copy) -> bool:
        """Add the pending changes to a copy at once; discard the copy and return False if that is not possible."""
        changes = net_changes(copy.source, copy.pending.take())
        if changes is not None and self._change(identifier, copy, *changes) and copy.rows <= MOST_ROWS:
            return True
        self._discard_small([identifier])
        return False

    async def _catch_up(self, identifier: GlobalId) -> None:
        """Add the pending changes to a copy, if they are many, in several steps; or discard the copy."""
        copy = self._copies[identifier]
        async with copy.turn:
            if self._copies.get(identifier) is not copy or copy.pending.size <= _CHANGED_AT_ONCE:
                return
            changes, copy.is_loaded = net_changes(copy.source, copy.pending.take()), False
            try:
                removed, added = changes or ((), ())
                for begin in range(0, max(len(removed), len(added)), _CHANGED_AT_ONCE):
                    part = slice(begin, begin + _CHANGED_AT_ONCE)
                    if not self._change(identifier, copy, removed[part], added[part]):
                        return
                    await asyncio.sleep(0)
                    if self._copies.get(identifier) is not copy:
                        return
                copy.is_loaded = changes is not None and copy.rows <= MOST_ROWS
            finally:
                if not copy.is_loaded and self._copies.get(identifier) is copy:
                    self._discard_small([identifier])

    def note(self, writes: Sequence[Write], time: int) -> None:
        """Note the committed writes of a time."""
        self.large.note(writes, time)
        if self._copies.keys().isdisjoint(tables_of(writes)):
            return
        for identifier, (rows, diffs) in by_table(writes).items():
            copy = self._copies.get(identifier)
            if copy is not None:
                copy.pending.add(rows, diffs, time)
                if copy.is_loaded and copy.pending.is_excessive(copy.rows):
                    self._discard_small([identifier])

    def discard(self, ids: Collection[GlobalId]) -> None:
        """Discard the copies of some tables."""
        self.large.discard(ids)
        self._discard_small(ids)

    def _discard_small(self, ids: Collection[GlobalId]) -> None:
        for identifier in ids:
            if self._copies.pop(identifier, None) is not None:
                self._rows.drop(identifier)


def _query_of(query: PlannedQuery, objects: Objects) -> TableQuery | None:
    if query.limit is not None or query.offset is not None or query.is_of_session or query.needs_context:
        return None
    tables = types_read(query.relation)
    if not (tables and query.columns) or tables.keys() != ids_of(query.relation):
        return None
    for identifier in tables:
        item = objects.items.get(identifier)
        if is_provisional(identifier) or item is None or item.kind is not ObjectKind.TABLE:
            return None
    try:
        return TableQuery(query, objects.version, tables, ResidentQuery(query.relation, query.finishing))
    except SqlError:
        return None
