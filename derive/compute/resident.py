"""Rows of tables in memory, and one-time queries of them.

A one-time query fetches the rows of its tables, which costs much more than the query of a small table. The rows of
such tables stay in a SQLite database in memory. A query is lowered once, and its parameters are bound, so SQLite
prepares the SELECT once as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

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


class ResidentRows:
    """Rows of tables in memory. One thread at a time calls the methods.

    Args:
        most_bytes: largest size of the database.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._opened: apsw.Connection | None = None
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
        self._connection.execute(f"DROP TABLE IF EXISTS r{table}")

    def insert(self, table: GlobalId, width: int, rows: Sequence[Row]) -> bool:
        """Insert rows, and create the table first if it does not exist.

        Args:
            table: the table.
            width: number of its columns.
            rows: the rows.

        Returns:
            False, without an effect, if the database would be too large.
        """
        connection = self._connection
        insert = f"INSERT INTO r{table} VALUES ({', '.join('?' * (width or 1))})"
        try:
            connection.execute(f"BEGIN; CREATE TABLE IF NOT EXISTS r{table}({names(width)})")
            connection.executemany(insert, rows if width else ((None,) for _ in rows))
            connection.execute("COMMIT")
        except apsw.FullError:
            return False
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return True

    def delete(self, table: GlobalId, row: Row) -> bool:
        """Delete one row; return False if the table does not have the row."""
        condition = " AND ".join(f"c{index} IS ?" for index in range(len(row))) or "1"
        equal = self._connection.execute(f"SELECT rowid, * FROM r{table} WHERE {condition}", row).fetchall()
        # SQLite's equal numbers may differ, such as 0.0 and -0.0.
        same = [number for number, *data in equal if not row or list(map(repr, data)) == list(map(repr, row))]
        if not same:
            return False
        self._connection.execute(f"DELETE FROM r{table} WHERE rowid = ?", same[:1])
        return True

    def remove(self, table: GlobalId, rows: Sequence[tuple[Row, int]]) -> bool:
        """Delete rows, each as often as told, in one scan; return False if the table does not have them."""
        connection = self._connection
        listed, left = [row for row, _ in rows], [count for _, count in rows]
        width = len(listed[0])
        columns = ", ".join(f"c{index}" for index in range(width))
        same = " AND ".join(f"removed.c{index} IS r.c{index}" for index in range(width))
        try:
            connection.execute(f"BEGIN; CREATE TABLE removed({columns}, n)").fetchall()
            insert = f"INSERT INTO removed VALUES ({', '.join('?' * (width + 1))})"
            connection.executemany(insert, ((*row, number) for number, row in enumerate(listed)))
            connection.execute(f"CREATE INDEX removed_rows ON removed({columns})")
            gone: list[tuple[int]] = []
            select = f"SELECT r.rowid, removed.n, r.* FROM r{table} AS r CROSS JOIN removed ON {same}"
            for place, number, *data in connection.execute(select):
                # SQLite's equal numbers may differ, such as 0.0 and -0.0.
                if left[number] and (0 not in data or list(map(repr, data)) == list(map(repr, listed[number]))):
                    left[number] -= 1
                    gone.append((place,))
            connection.executemany(f"DELETE FROM r{table} WHERE rowid = ?", gone)
            connection.execute("DROP TABLE removed; COMMIT").fetchall()
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return not any(left)

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
