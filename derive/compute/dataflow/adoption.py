"""Adoption: copying tables that another process has computed into an instance's database, in batches.

Each batch is a transaction of some milliseconds, between which other dataflows advance; if others wait for processors,
a pause as long as the batch follows. The tables are registered after the last batch: tables of an incomplete adoption
belong to no operator, and are removed.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

import apsw

from derive.compute.dataflow.database import NAME
from derive.compute.dataflow.throttle import Throttle

_BATCH_SECONDS = 0.003
"""Approximate duration of a batch, in seconds."""
_FEWEST_ROWS, _MOST_ROWS = 200, 20_000
_TABLE = re.compile(r"[aghm](\d+)(_\d+)?")
"""Names of operators' tables, with the operator's number."""
_NAMED = ("operators", "errors", "errors_history", "cohorts", "dataflows")


class Adoption:
    """Tables being copied from one database into another.

    Args:
        connection: writing connection of the target database.
        folder: folder of the source database.
    """

    def __init__(self, connection: apsw.Connection, folder: Path) -> None:
        self._connection = connection
        self._rows = 1_000
        self._last: Any = None
        self._throttle = Throttle(_BATCH_SECONDS)
        self.loaded = 0
        connection.execute("ATTACH ? AS staged", (str(folder / NAME),))
        self._tables: deque[str] = deque()
        with connection:
            for name, text in self._schema("table"):
                if _TABLE.fullmatch(name):
                    connection.execute(text)
                    self._tables.append(name)
            for _, text in self._schema("index"):
                connection.execute(text)
        self._made = tuple(self._tables)

    def _schema(self, kind: str) -> list[tuple[str, str]]:
        of_operators = "SELECT name, sql FROM staged.sqlite_schema WHERE type = ? AND sql IS NOT NULL AND tbl_name GLOB"
        rows: Any = self._connection.execute(f"{of_operators} '[aghm][0-9]*'", (kind,)).fetchall()
        return list(rows)

    def load(self) -> bool:
        """Copy a batch; return whether there are more."""
        if not self._tables:
            return False
        self._throttle.pause()
        begin = time.monotonic()
        with self._connection:
            count = self._copy(self._tables[0])
        self.loaded += count
        if count < self._rows:
            self._tables.popleft()
            self._last = None
        elif time.monotonic() - begin > _BATCH_SECONDS:
            self._rows = max(_FEWEST_ROWS, self._rows // 2)
        elif time.monotonic() - begin < _BATCH_SECONDS / 2:
            self._rows = min(_MOST_ROWS, self._rows * 2)
        return True

    def _copy(self, table: str) -> int:
        """Copy the next rows of a table in the order of its key; return their number."""
        execute = self._connection.execute
        columns = [str(row[1]) for row in execute(f"PRAGMA staged.table_info({table})")]
        key = [str(row[1]) for row in execute(f"PRAGMA staged.table_info({table})") if row[5]] or ["rowid"]
        names = ", ".join(dict.fromkeys([*key, *columns]))
        order = ", ".join(key)
        after = "" if self._last is None else f"WHERE ({order}) > ({', '.join('?' * len(key))})"
        execute(
            f"INSERT INTO main.{table}({names}) SELECT {names} FROM staged.{table} {after} ORDER BY {order} LIMIT ?",
            (*(self._last or ()), self._rows),
        )
        count = self._connection.changes()
        self._last = execute(
            f"SELECT {order} FROM main.{table} ORDER BY {', '.join(f'{name} DESC' for name in key)} LIMIT 1"
        ).fetchone()
        return count

    def complete(self) -> None:
        """Register the copied tables in one transaction."""
        with self._connection:
            for table in _NAMED:
                self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM staged.{table}")
        self._connection.execute("DETACH staged")

    def cancel(self) -> None:
        """Remove the copied tables."""
        self._connection.execute("DETACH staged")
        with self._connection:
            drop_tables(self._connection, self._made)


def drop_tables(connection: apsw.Connection, tables: Collection[str]) -> None:
    """Drop tables, if they exist."""
    for table in tables:
        connection.execute(f"DROP TABLE IF EXISTS main.{table}")


def drop_unnamed(connection: apsw.Connection) -> None:
    """Drop tables of no operator, which belong to incomplete adoptions."""
    numbers = {row[0] for row in connection.execute("SELECT number FROM operators")}
    rows: Any = connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
    tables = [(name, match) for (name,) in rows if (match := _TABLE.fullmatch(name))]
    with connection:
        drop_tables(connection, [name for name, match in tables if int(match[1]) not in numbers])
