"""Rows of small tables in memory, for queries without an index.

One process writes all tables of SQL, and group commit gives its writes an order. So a copy of the rows at a time that
follows the commits is exact, like an index of keys. A table is copied at its second read. Committed rows are added at
the next read, so a table that is only written costs nothing. Tables that are large, or that processes of tasks write,
are always read from Storage.

Deletions are found one after the other, on the event loop. Changes that would take too long discard the copy instead,
and the next queries of this table alone use a copy of a large table, which finds all deleted rows in one scan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row, Type
from derive.compute.resident import ResidentQuery, ResidentRows
from derive.errors import FlowError, SqlError
from derive.recently_used import RecentlyUsed
from derive.relations.columns import columns_of
from derive.relations.table_rows import StoredRow, rows_of
from derive.sql.catalog.items import is_provisional
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import ids_of, types_read
from derive.sql.planner.planned import PlannedQuery
from derive.sql.transactions.large_tables import Contents, LargeTables
from derive.sql.transactions.writes import InsertedRows, Write, by_table, tables_of
from derive.storage.table_types import Table

MOST_BYTES = 64 << 20
"""Default size of all copies, in bytes."""
_LARGER = 4
"""Ratio of the sizes of all copies of large tables and of small ones."""
MOST_ROWS = 50_000
"""Greatest number of rows of a copied table; the scan of more rows would delay other sessions."""
_MOST_PENDING = 2_000
"""Number of changed rows after which a table is copied again."""
_MOST_COMPARED = 50_000
"""Greatest number of rows that deletions are compared with, one after the other."""
_ROWS_A_READ = 200
"""Number of rows that are copied again in the additional time of one query of a copy of a large table."""
_AT_ONCE = 2_000
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
        since: time from which on the copy has the rows of the table, with the pending changes.
        rows: number of rows without the pending changes.
        is_loaded: whether the rows are loaded.
        latest: time of the last noted commit.
        pending: committed changes that are not applied yet: time, row, and the change of its count.
    """

    source: Table
    types: tuple[Type, ...]
    since: int
    rows: int = 0
    is_loaded: bool = False
    latest: int = 0
    pending: list[tuple[int, Row, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Rewritten:
    """A table whose copy was discarded, because too many of its rows were changed.

    Attributes:
        rows: number of its rows before the changes.
        reads: number of queries that still use a copy of a large table.
    """

    rows: int
    reads: int


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
        self._rewritten: RecentlyUsed[GlobalId, _Rewritten] = RecentlyUsed(_MOST_QUERIES)

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
        """Copy the missing tables of a query at a time, if each is small; return whether all tables are copied.

        Args:
            asked: the query.
            time: the time.
            is_applied: returns whether all commits of a table so far, which were noted, are at or before a time. A
                later commit may come while another table is copied.
        """
        assert asked.tables is not None
        if len(asked.tables) == 1 and self._is_rewritten(next(iter(asked.tables))):
            return False
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
        return self.are_loaded(asked)

    def _is_rewritten(self, identifier: GlobalId) -> bool:
        """Return whether a query of a table uses a copy of a large table, because the table was rewritten."""
        rewritten = self._rewritten.get(identifier)
        if rewritten is None:
            return False
        rewritten.reads -= 1
        if rewritten.reads <= 0:
            self._rewritten.forget(identifier)
        return True

    async def _load(self, identifier: GlobalId, time: int) -> None:
        source = self._source(identifier)
        if source is None:
            return
        copy = self._copies[identifier] = _Copy(source, tuple(column.type for column in columns_of(source)), time)
        try:
            rows = await asyncio.to_thread(self._contents, source, time, MOST_ROWS, self._most_bytes)
            if self._copies.get(identifier) is not copy:
                return
            if rows is None:
                self._refused.put(identifier, time)
                self._discard_small([identifier])
                return
            for begin in range(0, len(rows) or 1, _AT_ONCE):
                if not self._insert(identifier, copy, rows[begin : begin + _AT_ONCE]):
                    self._refused.put(identifier, time)
                    return
                await asyncio.sleep(0)
                if self._copies.get(identifier) is not copy:
                    return
            copy.rows, copy.is_loaded = len(rows), True
        except FlowError:  # the evaluation over stored rows reports the error
            pass
        finally:
            if not copy.is_loaded and self._copies.get(identifier) is copy:
                self._discard_small([identifier])

    def _insert(self, identifier: GlobalId, copy: _Copy, rows: Sequence[Row]) -> bool:
        """Insert rows into a copy; discard other copies if there is no memory, and then this copy."""
        while not self._rows.insert(identifier, len(copy.source.columns), rows):
            oldest = next((one for one in self._copies if one != identifier), identifier)
            self._discard_small([oldest])
            if oldest == identifier:
                return False
        return True

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
            is_fit = copy.is_loaded and copy.since <= time and copy.latest <= time
            if not is_fit or types != copy.types:
                return None
            if copy.pending and not self._apply(identifier, copy):
                return None
        if not self.are_loaded(asked):
            return None
        end = thread_time() + _SECONDS
        return self._rows.rows(asked.lowered, arguments, most_bytes, lambda: thread_time() > end)

    def _apply(self, identifier: GlobalId, copy: _Copy) -> bool:
        """Apply the pending changes of a copy; discard the copy and return False if that is not possible."""
        changes = [(row, diff) for time, row, diff in copy.pending if time > copy.since]
        copy.pending.clear()
        is_short = _deletions(diff for _, diff in changes) * copy.rows <= _MOST_COMPARED
        if is_short and self._changed(identifier, copy, changes):
            return True
        if not is_short:
            self._note_rewritten(identifier, copy.rows)
        self._discard_small([identifier])
        return False

    def _note_rewritten(self, identifier: GlobalId, rows: int) -> None:
        if reads := rows // _ROWS_A_READ:
            self._rewritten.put(identifier, _Rewritten(rows, reads))

    def _changed(self, identifier: GlobalId, copy: _Copy, changes: Sequence[tuple[Row, int]]) -> bool:
        """Apply changes of counts in their order; return False if that is not possible."""
        if any(type(row) is StoredRow for row, _ in changes):
            return False
        # The copy has the rows as they are read from Storage, where equal rows have equal texts.
        stored = rows_of(copy.source)
        rows = stored.rows([text for text, _, _ in stored.changes(changes)])
        added: list[Row] = []
        for row, (_, diff) in zip(rows, changes, strict=True):
            if diff > 0:
                added += [row] * diff
                continue
            if not self._insert(identifier, copy, added):
                return False
            added = []
            if not all(self._rows.delete(identifier, row) for _ in range(-diff)):
                return False
        if not self._insert(identifier, copy, added):
            return False
        copy.rows += sum(diff for _, diff in changes)
        return copy.rows <= MOST_ROWS

    def note(self, writes: Sequence[Write], time: int) -> None:
        """Note the committed writes of a time."""
        self.large.note(writes, time)
        for identifier, (rows, diffs) in by_table(writes).items() if self._rewritten else ():
            rewritten = self._rewritten.get(identifier)
            if rewritten is not None and (
                len(rows) > _MOST_PENDING or _deletions(diffs) * rewritten.rows > _MOST_COMPARED
            ):
                self._note_rewritten(identifier, rewritten.rows)
        if type(writes) is InsertedRows and len(writes) > _MOST_PENDING:
            self._discard_small([writes.table])
            return
        for identifier, row, diff in writes if not self._copies.keys().isdisjoint(tables_of(writes)) else ():
            copy = self._copies.get(identifier)
            if copy is not None:
                copy.latest = time
                copy.pending.append((time, row, diff))
                if len(copy.pending) > _MOST_PENDING:
                    self._note_rewritten(identifier, copy.rows)
                    self._discard_small([identifier])

    def discard(self, ids: Collection[GlobalId]) -> None:
        """Discard the copies of some tables."""
        self.large.discard(ids)
        self._discard_small(ids)

    def _discard_small(self, ids: Collection[GlobalId]) -> None:
        for identifier in ids:
            if self._copies.pop(identifier, None) is not None:
                self._rows.drop(identifier)


def _deletions(diffs: Iterable[int]) -> int:
    return sum(-diff for diff in diffs if diff < 0)


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
