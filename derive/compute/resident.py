"""Rows of tables in memory, and one-time queries of them.

A one-time query fetches the rows of its tables, which costs much more than the query of a small table. The rows of
such tables stay in a SQLite database in memory. A query is lowered once, and its parameters are bound, so SQLite
prepares the SELECT once as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from time import thread_time

import apsw

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.types import Datum, Row
from derive.compute.oneshot import size_of
from derive.compute.sqlite import connect, finished_select, names, parameters_of, with_arguments
from derive.errors import FlowError
from derive.functions.statement_context import running

_STEPS = 2_000
"""Number of SQLite steps between checks of the time."""
_BATCH = 1_000
"""Number of rows that are fetched between checks of their size."""
_MEASURED = 20
"""Number of rows of a batch whose size is measured."""
_SCANNED_EACH = 25
"""Number of rows of a table that are scanned in the time in which an index finds one row."""
_SAMPLE = 1_000
"""Approximate number of rows from which the columns of an index are chosen."""
_SECONDS, _SECONDS_EACH = 0.1, 0.0001
"""Processor time for the search of deleted rows, and additional time for each, in seconds.

The search of rows of which an index no longer tells most apart, because the table has changed, would take longer.
"""


class ResidentQuery:
    """A query of tables in memory that can be repeated with other arguments.

    Args:
        relation: the relation over tables, whose parameters are bound on execution.
        finishing: the final processing of its rows.

    Attributes:
        is_slow: whether an execution has exceeded its time.

    Raises:
        SqlError: the query is recursive (0A000).
    """

    def __init__(self, relation: Relation, finishing: Finishing) -> None:
        self.sql = finished_select(with_arguments(relation), with_arguments(finishing), _name)
        self._names = {f"p{part.index}": part.index for part in parameters_of((relation, finishing))}
        self.is_slow = False

    def bindings(self, arguments: Sequence[Datum]) -> dict[str, Datum]:
        """Return the arguments by the names of the parameters."""
        return {name: arguments[index] for name, index in self._names.items()}


@dataclass(frozen=True, slots=True)
class _Stored:
    """Number of rows of a table, and whether they have an index."""

    count: int = 0
    is_indexed: bool = False


class ResidentRows:
    """Rows of tables in memory. One thread at a time calls the methods.

    Args:
        most_bytes: largest size of the database.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._opened: apsw.Connection | None = None
        self._tables: dict[GlobalId, _Stored] = {}
        self._is_over: Callable[[], bool] = _never

    @property
    def size(self) -> int:
        """Return the number of bytes in use."""
        if self._opened is None:
            return 0
        pages, free, size = (self._number(name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * size

    def drop(self, table: GlobalId) -> None:
        """Drop a table; its memory serves other tables."""
        if self._tables.pop(table, None) is not None:
            self._connection.execute(f"DROP TABLE r{table}")

    def change(self, table: GlobalId, width: int, removed: Sequence[tuple[Row, int]], added: Sequence[Row]) -> bool:
        """Delete rows, each as often as told, and insert rows; create the table first if it does not exist.

        Args:
            table: the table.
            width: number of its columns.
            removed: rows with numbers of their copies.
            added: rows.

        Returns:
            False, without an effect, if the table does not have the rows, or their search takes too long.

        Raises:
            apsw.FullError: the database would be too large; nothing has changed.
        """
        connection, stored = self._connection, self._tables.get(table)
        if width and stored is not None and len(removed) + len(added) == 1:  # one statement needs no transaction
            if added:
                self._insert(table, width, added)
                self._tables[table] = _Stored(stored.count + 1, stored.is_indexed)
                return True
            row, copies = removed[0]
            # Of equal numbers that differ, such as 0.0 and -0.0, all equal rows are compared.
            if stored.is_indexed and copies == 1 and 0 not in row:
                return self._delete_one(table, width, row, stored)
        try:
            connection.execute("BEGIN")
            if stored is None:
                connection.execute(f"CREATE TABLE r{table}({names(width)})")
                stored = _Stored()
            is_indexed = stored.is_indexed
            if len(removed) * _SCANNED_EACH > stored.count and width:
                gone = self._found_by_scan(table, width, removed)
            else:
                if removed and not is_indexed:
                    self._create_index(table, width)
                    is_indexed = True
                gone = self._found_by_index(table, width, removed)
            count = sum(count for _, count in removed)
            if len(gone) < count:
                return False
            connection.executemany(f"DELETE FROM r{table} WHERE rowid = ?", gone)
            self._insert(table, width, added)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._tables[table] = _Stored(stored.count - count + len(added), is_indexed)
        return True

    def _insert(self, table: GlobalId, width: int, added: Sequence[Row]) -> None:
        insert = f"INSERT INTO r{table} VALUES ({', '.join('?' * (width or 1))})"
        self._connection.executemany(insert, added if width else ((None,) for _ in added))

    def _delete_one(self, table: GlobalId, width: int, row: Row, stored: _Stored) -> bool:
        """Delete one row by the index; return False if the table does not have it, or the search takes too long."""
        same = " AND ".join([f"c{index} IS ?" for index in range(width)])
        end = thread_time() + _SECONDS
        self._is_over = lambda: thread_time() > end
        try:
            self._connection.execute(
                f"DELETE FROM r{table} WHERE rowid = (SELECT rowid FROM r{table} WHERE {same} LIMIT 1)", row
            )
        except apsw.InterruptError:
            return False
        finally:
            self._is_over = _never
        if not self._connection.changes():
            return False
        self._tables[table] = _Stored(stored.count - 1, stored.is_indexed)
        return True

    def _found_by_scan(self, table: GlobalId, width: int, removed: Sequence[tuple[Row, int]]) -> list[tuple[int]]:
        """Return the numbers of the rows that are removed, as far as the table has them."""
        connection = self._connection
        left = [count for _, count in removed]
        columns = ", ".join(f"c{index}" for index in range(width))
        same = " AND ".join(f"removed.c{index} IS r.c{index}" for index in range(width))
        connection.execute(f"CREATE TABLE removed({columns}, n)")
        insert = f"INSERT INTO removed VALUES ({', '.join('?' * (width + 1))})"
        connection.executemany(insert, ((*row, number) for number, (row, _) in enumerate(removed)))
        connection.execute(f"CREATE INDEX removed_rows ON removed({columns})")
        gone: list[tuple[int]] = []
        # NOT INDEXED: the scan is in the order of the table, and each of its rows is compared with few removed ones.
        select = f"SELECT r.rowid, removed.n, r.* FROM r{table} AS r NOT INDEXED CROSS JOIN removed ON {same}"
        for number, place, *data in connection.execute(select):
            row = removed[place][0]
            if left[place] and (0 not in row or list(map(repr, data)) == list(map(repr, row))):
                left[place] -= 1
                gone.append((number,))
        connection.execute("DROP TABLE removed")
        return gone

    def _found_by_index(self, table: GlobalId, width: int, removed: Sequence[tuple[Row, int]]) -> list[tuple[int]]:
        """Return the numbers of the rows that are removed, as far as the table has them; none if it takes too long."""
        same = " AND ".join(f"c{index} IS ?" for index in range(width)) or "1"
        select = f"SELECT ?, rowid, {names(width)} FROM r{table} WHERE {same} LIMIT ?"
        # SQLite's equal numbers may differ, such as 0.0 and -0.0: then all equal rows are compared.
        asked = ((place, *row, -1 if 0 in row else count) for place, (row, count) in enumerate(removed))
        left = [count for _, count in removed]
        gone: list[tuple[int]] = []
        end = thread_time() + _SECONDS + _SECONDS_EACH * len(removed)
        self._is_over = lambda: thread_time() > end
        try:
            for place, number, *data in self._connection.executemany(select, asked):
                row = removed[place][0]
                if left[place] and (0 not in row or list(map(repr, data)) == list(map(repr, row))):
                    left[place] -= 1
                    gone.append((number,))
        except apsw.InterruptError:
            return []
        finally:
            self._is_over = _never
        return gone

    def _create_index(self, table: GlobalId, width: int) -> None:
        """Create an index that finds equal rows: of one column, if it tells most rows apart, or of all columns."""
        last = self._connection.execute(f"SELECT max(rowid) FROM r{table}").get or 0
        stride = max(1, last // _SAMPLE)
        sample = self._connection.execute(f"SELECT {names(width)} FROM r{table} WHERE rowid % {stride} = 0").fetchall()
        counts = {index: len(set(map(itemgetter(index), sample))) for index in range(width or 1)}
        columns = sorted(counts, key=lambda index: -counts[index])
        if 2 * counts[columns[0]] > len(sample):
            columns = columns[:1]
        listed = ", ".join(f"c{index}" for index in columns)
        self._connection.execute(f"CREATE INDEX r{table}_rows ON r{table}({listed})")

    def rows(
        self, query: ResidentQuery, arguments: Sequence[Datum], most_bytes: int | None, is_over: Callable[[], bool]
    ) -> list[Row] | None:
        """Return the rows of a query; None if the query is ended, fails, or has a result that is too large.

        Args:
            query: the query.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
            is_over: called from time to time; True ends the query.
        """
        rows: list[Row] = []
        size, self._is_over = 0, is_over
        try:
            with running(is_over):
                cursor = self._connection.execute(query.sql, query.bindings(arguments))
                while batch := list(islice(cursor, _BATCH)):
                    rows += batch
                    size += _size_of(batch) if most_bytes is not None else 0
                    if most_bytes is not None and size > most_bytes:
                        cursor.close(force=True)
                        return None
        except (FlowError, apsw.Error):  # the evaluation over stored rows reports the error
            query.is_slow |= is_over()
            return None
        finally:
            self._is_over = _never
        return rows

    @property
    def _connection(self) -> apsw.Connection:
        if self._opened is None:
            self._opened = connection = connect(":memory:")
            size = self._number("page_size")
            connection.execute(f"PRAGMA max_page_count = {max(1, self._most_bytes // size)}")
            connection.set_progress_handler(lambda: self._is_over(), _STEPS)  # noqa: PLW0108 - it changes
        return self._opened

    def _number(self, name: str) -> int:
        number: int = self._connection.execute(f"PRAGMA {name}").get
        return number


def _size_of(rows: Sequence[Row]) -> int:
    """Return the approximate size of rows in bytes; of many rows, some are measured."""
    measured = rows[:: max(1, len(rows) // _MEASURED)]
    return sum(map(size_of, measured)) * len(rows) // len(measured)


def _never() -> bool:
    return False


def _name(get: Get) -> str:
    return f"r{get.id}"
