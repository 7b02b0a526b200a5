"""An arrangement: the rows of an operator as an indexed table, and the history of its changes since some time.

`cur` has the rows at the latest time with their counts; `hist` has changes with their times. The rows at an earlier
time are the rows of `cur` less all later changes.

One index finds a changed row. The index begins with the columns of known lookups, so that these lookups need no index
of their own. It has one column more than a sample of the first rows needs to tell rows apart. The first rows are
inserted in the order of the index, so that the pages of the table and of the index are written sequentially, also by an
adoption.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.algebra.expression import Column, Expression
from derive.algebra.types import Type
from derive.compute.plans.plan import Grouped, Plan
from derive.compute.sqlite import names
from derive.functions.registry import sql_of

MOST_INDEXED = 12
"""Maximum number of columns in the index that finds a row."""
_LARGE = {Type.JSONB, Type.BYTEA}
_FEWEST, _SAMPLE, _SAME = 1_000, 500, 8
"""Number of rows from which on the index has fewer columns, of rows in the sample, and of rows that are few."""


class Arrangement:
    """Tables of one operator's rows.

    Attributes:
        table: table of the rows at the latest time.
        history: table of the changes.
        order: columns in the best order for inserting the first rows.
    """

    def __init__(self, connection: apsw.Connection, number: int, plan: Plan) -> None:
        """Describe the tables of an operator.

        Args:
            connection: writing connection.
            number: number of the operator.
            plan: plan of the operator.
        """
        self._connection = connection
        self._rows: int | None = None
        self._plan = plan
        self._identity: list[int] = []
        self._least = 1
        self._width = len(plan.types) or 1
        self.order = names(self._width)
        self.table = f"a{number}"
        self.history = f"h{number}"
        columns = range(self._width)
        match = " AND ".join(f"x.c{index} IS d.c{index}" for index in columns)
        changes = f"temp.d{number}"
        by_row = f"INDEXED BY {self.table}_row"  # another index may have as many columns, but find more rows
        self._keep = f"INSERT INTO {self.history} SELECT ?, {names(self._width)}, w FROM {changes}"
        self._delete = (
            f"DELETE FROM {self.table} WHERE rowid IN (SELECT x.rowid FROM {changes} d CROSS JOIN {self.table} x"
            f" {by_row} ON {match} WHERE d.w < 0 AND x.w + d.w = 0)"
        )
        self._last = f"SELECT max(rowid) FROM {self.table}"
        self._insert = (
            f"INSERT INTO {self.table} SELECT {names(self._width, 'd.')}, d.w FROM {changes} d"
            f" WHERE d.w > 0 AND NOT EXISTS (SELECT 1 FROM {self.table} x {by_row} WHERE {match})"
        )
        self._update = (
            f"UPDATE {self.table} AS x {by_row} SET w = x.w + d.w FROM {changes} d WHERE x.rowid <= ? AND {match}"
        )

    @property
    def rows(self) -> int:
        """Return the approximate number of rows."""
        if self._rows is None:
            self._rows = int(self._connection.execute(f"SELECT count(*) FROM {self.table}").get)
        return self._rows

    def create(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Create the table; the caller then inserts all first rows, each once, and calls `complete`.

        Args:
            lookups: expressions over rows, by which rows will be looked up.
        """
        found_by = next((plain for plain in map(_plain, lookups) if plain), [])
        identity = list(dict.fromkeys([*found_by, *_identity(self._plan)]))[: max(MOST_INDEXED, len(found_by))]
        self._identity, self._least = identity, max(1, len(found_by))
        self.order = names_of([*identity, *(index for index in range(self._width) if index not in identity)])
        self._connection.execute(f"CREATE TABLE {self.table}({names(self._width)}, w INTEGER NOT NULL)")

    def complete(self) -> None:
        """Create the indexes that find rows, after the first rows are inserted."""
        self._identity = self._identity[: self._selective()]
        self._create_indexes()

    def copy(self, other: Arrangement) -> None:
        """Create the tables with the rows of another, complete arrangement; the types of its rows are the same."""
        self._identity, self.order = other._identity, other.order
        self._connection.execute(f"CREATE TABLE {self.table}({names(self._width)}, w INTEGER NOT NULL)")
        self._create_indexes()
        # SQLite copies the entries of the table and of equal indexes without sorting.
        self._connection.execute(f"INSERT INTO {self.table} SELECT * FROM {other.table}")

    def _create_indexes(self) -> None:
        self._connection.execute(f"CREATE INDEX {self.table}_row ON {self.table}({names_of(self._identity)})")
        self._connection.execute(f"CREATE INDEX {self.table}_copies ON {self.table}(w) WHERE w <> 1")

    def _selective(self) -> int:
        """Return the number of columns of the index that finds a row.

        The first rows are in the order of the index. So a row that differs from the row some places after it is one of
        few rows with the same values.
        """
        last = int(self._connection.execute(f"SELECT ifnull(max(rowid), 0) FROM {self.table}").get)
        if last < _FEWEST:
            return len(self._identity)
        chosen = ", ".join(str(number) for number in range(1, last - _SAME + 1, last // _SAMPLE | 1))
        for count in range(self._least, len(self._identity)):
            same = " AND ".join(f"x.c{index} IS y.c{index}" for index in self._identity[:count])
            if not self._connection.execute(
                f"SELECT EXISTS(SELECT 1 FROM {self.table} x CROSS JOIN {self.table} y"
                f" WHERE x.rowid IN ({chosen}) AND y.rowid = x.rowid + {_SAME} AND {same})"
            ).get:
                return min(count + 1, len(self._identity))
        return len(self._identity)

    def keep_history(self) -> None:
        """Keep changes from now on."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.history}(t INTEGER, {names(self._width)}, w INTEGER)"
        )
        self._connection.execute(f"CREATE INDEX IF NOT EXISTS {self.history}_t ON {self.history}(t)")

    def index(self, key: Sequence[Expression]) -> None:
        """Create an index for lookups by expressions over rows."""
        plain = _plain(key)
        texts = [sql_of(part, lambda column: f"c{column.index}") for part in key]
        if plain:
            identity = self._connection.execute("SELECT name FROM pragma_index_info(?)", (f"{self.table}_row",))
            if [name for (name,) in identity][: len(plain)] == texts:
                return
            name = f"{self.table}_{'_'.join(map(str, plain))}"
        else:
            existing = self._connection.execute(
                "SELECT name FROM sqlite_schema WHERE tbl_name = ? AND type = 'index' AND sql LIKE ?",
                (self.table, f"%({', '.join(f'({text})' for text in texts)})"),
            ).get
            if existing:
                return
            count = self._connection.execute("SELECT count(*) FROM sqlite_schema WHERE tbl_name = ?", (self.table,)).get
            name = f"{self.table}_x{count}"
            texts = [f"({text})" for text in texts]
        self._connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {self.table}({', '.join(texts)})")

    def apply(self, time: int, count: int, *, keeps_history: bool) -> None:
        """Apply the operator's changes.

        Args:
            time: timestamp of the changes.
            count: number of changed rows.
            keeps_history: whether to keep the changes.
        """
        execute, connection = self._connection.execute, self._connection
        if keeps_history:
            execute(self._keep, (time,))
        execute(self._delete)
        deleted = connection.changes()
        last = execute(self._last).get
        execute(self._insert)
        inserted = connection.changes()
        if self._rows is not None:
            self._rows += inserted - deleted
        if deleted + inserted < count:
            execute(self._update, (last,))

    def drop(self) -> None:
        """Drop the tables."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self.table}")
        self._connection.execute(f"DROP TABLE IF EXISTS {self.history}")


def names_of(columns: Sequence[int]) -> str:
    """Return names of columns, separated by commas."""
    return ", ".join(f"c{index}" for index in columns)


def _plain(key: Sequence[Expression]) -> list[int]:
    """Return the columns of a key; empty if a part of the key is computed."""
    plain = [part.index for part in key if isinstance(part, Column)]
    return plain if len(plain) == len(key) else []


def _identity(plan: Plan) -> list[int]:
    """Return columns whose values nearly identify a row."""
    if isinstance(plan, Grouped) and plan.keys:
        return list(range(plan.keys))
    small = [index for index, kind in enumerate(plan.types) if kind not in _LARGE]
    return (small or list(range(len(plan.types))) or [0])[:MOST_INDEXED]


def copies(table: str, width: int) -> str:
    """Return a query that repeats each row by its count."""
    columns = names(width)
    return (
        f"(WITH RECURSIVE copied({columns}, w) AS (SELECT {columns}, w FROM {table} WHERE w > 0"
        f" UNION ALL SELECT {columns}, w - 1 FROM copied WHERE w > 1) SELECT {columns} FROM copied)"
    )


def rows_as_of(table: str, history: str, width: int, time: str) -> str:
    """Return a query of the rows of an arrangement at a time, with their counts."""
    columns = names(width)
    return (
        f"(SELECT {columns}, sum(w) AS w FROM (SELECT {columns}, w FROM {table} UNION ALL"
        f" SELECT {columns}, -w FROM {history} WHERE t > {time}) GROUP BY {columns} HAVING sum(w) <> 0)"
    )
