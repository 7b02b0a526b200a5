"""The rows of an operator as a table that others look rows up in, and the changes that it had since some time.

`cur` has the rows at the latest time and how often each is there; `hist` has changes, with their times. At an earlier
time there is what `cur` has, less all changes after that.

One index finds a row again that changes. It begins with the columns by which others look rows up, where these are known
from the beginning, so that they need no index of their own; and the first rows come in its order, so that pages of the
table and of the index are written one after the other, here and by whoever takes the tables over.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from derive.algebra.expression import Column, Expression
from derive.algebra.types import Type
from derive.compute.plans.plan import Grouped, Plan
from derive.compute.sqlite.block import names
from derive.functions.registry import sql_of

MOST_INDEXED = 12
"""So many columns are at most indexed to find a row again."""
_LARGE = {Type.JSONB, Type.BYTEA}


class Arrangement:
    """Tables of one operator's rows.

    Attributes:
        table: has the rows at the latest time.
        history: has changes.
        order: columns, in the order in which first rows are best put into the table.
    """

    def __init__(self, connection: apsw.Connection, number: int, plan: Plan) -> None:
        """What is in the tables of an operator.

        Args:
            connection: that writes.
            number: of the operator.
            plan: of the operator.
        """
        self._connection = connection
        self._plan = plan
        self._width = len(plan.types) or 1
        self.order = names(self._width)
        self.table = f"a{number}"
        self.history = f"h{number}"
        columns = range(self._width)
        match = " AND ".join(f"x.c{index} IS d.c{index}" for index in columns)
        changes = f"temp.d{number}"
        self._keep = f"INSERT INTO {self.history} SELECT ?, {names(self._width)}, w FROM {changes}"
        self._delete = (
            f"DELETE FROM {self.table} WHERE rowid IN (SELECT x.rowid FROM {changes} d CROSS JOIN {self.table} x ON"
            f" {match} WHERE d.w < 0 AND x.w + d.w = 0)"
        )
        self._last = f"SELECT max(rowid) FROM {self.table}"
        self._insert = (
            f"INSERT INTO {self.table} SELECT {names(self._width, 'd.')}, d.w FROM {changes} d"
            f" WHERE d.w > 0 AND NOT EXISTS (SELECT 1 FROM {self.table} x WHERE {match})"
        )
        self._update = f"UPDATE {self.table} AS x SET w = x.w + d.w FROM {changes} d WHERE x.rowid <= ? AND {match}"

    def create(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Make the table; all of its first rows are to be put into it, each once, and then it is to be completed.

        Args:
            lookups: expressions about rows by which they are going to be looked up.
        """
        found_by = next((plain for plain in map(_plain, lookups) if plain), [])
        identity = list(dict.fromkeys([*found_by, *_identity(self._plan)]))[: max(MOST_INDEXED, len(found_by))]
        self._identity = names_of(identity)
        self.order = names_of([*identity, *(index for index in range(self._width) if index not in identity)])
        self._connection.execute(f"CREATE TABLE {self.table}({names(self._width)}, w INTEGER NOT NULL)")

    def complete(self) -> None:
        """Have rows found again, once the first ones are there."""
        self._connection.execute(f"CREATE INDEX {self.table}_row ON {self.table}({self._identity})")
        self._connection.execute(f"CREATE INDEX {self.table}_copies ON {self.table}(w) WHERE w <> 1")

    def keep_history(self) -> None:
        """Changes from now on are kept."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.history}(t INTEGER, {names(self._width)}, w INTEGER)"
        )
        self._connection.execute(f"CREATE INDEX IF NOT EXISTS {self.history}_t ON {self.history}(t)")

    def index(self, key: Sequence[Expression]) -> None:
        """Have rows looked up by expressions about them."""
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
        """Take in the operator's changes.

        Args:
            time: at which they happen.
            count: how many rows changed.
            keeps_history: whether the changes are kept.
        """
        execute, connection = self._connection.execute, self._connection
        if keeps_history:
            execute(self._keep, (time,))
        execute(self._delete)
        done = connection.changes()
        last = execute(self._last).get
        execute(self._insert)
        done += connection.changes()
        if done < count:
            execute(self._update, (last,))

    def drop(self) -> None:
        """Remove the tables."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self.table}")
        self._connection.execute(f"DROP TABLE IF EXISTS {self.history}")


def names_of(columns: Sequence[int]) -> str:
    """Names of columns, with a comma in between."""
    return ", ".join(f"c{index}" for index in columns)


def _plain(key: Sequence[Expression]) -> list[int]:
    """The columns that a key consists of; none if something of it is worked out."""
    plain = [part.index for part in key if isinstance(part, Column)]
    return plain if len(plain) == len(key) else []


def _identity(plan: Plan) -> list[int]:
    """Columns by which a row is found again, or few that may be it."""
    if isinstance(plan, Grouped) and plan.keys:
        return list(range(plan.keys))
    small = [index for index, kind in enumerate(plan.types) if kind not in _LARGE]
    return (small or list(range(len(plan.types))) or [0])[:MOST_INDEXED]


def copies(table: str, width: int) -> str:
    """A query of rows, each as often as it is there, from a table that says how often that is."""
    columns = names(width)
    return (
        f"(WITH RECURSIVE copied({columns}, w) AS (SELECT {columns}, w FROM {table} WHERE w > 0"
        f" UNION ALL SELECT {columns}, w - 1 FROM copied WHERE w > 1) SELECT {columns} FROM copied)"
    )


def rows_as_of(table: str, history: str, width: int, time: str) -> str:
    """A query of the rows of an arrangement at a time, and how often each is there."""
    columns = names(width)
    return (
        f"(SELECT {columns}, sum(w) AS w FROM (SELECT {columns}, w FROM {table} UNION ALL"
        f" SELECT {columns}, -w FROM {history} WHERE t > {time}) GROUP BY {columns} HAVING sum(w) <> 0)"
    )
