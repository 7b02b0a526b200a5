"""What is to be stored in one table by the next commit."""

from __future__ import annotations

from typing import Any

import psycopg

from connectors.materialize_postgres.dialect import POSTGRES
from connectors.materialize_sql.column import Table
from connectors.materialize_sql.endpoint import Change, Columns
from connectors.materialize_sql.names import quote
from connectors.materialize_sql.statements import upsert


class Staging:
    """Rows of one table that wait, in memory or in a temporary table, and the statements that move them.

    Attributes:
        deleted: columns of keys of which the rows are to be deleted.
        rows: how many wait in memory.
        bytes: how long their documents are.
        select: the documents of some keys; its parameters are the texts of each component.
        copy: COPY of new rows into the table itself.
        copy_temporary: the same into the temporary table.

    Args:
        index: of the table, among those of a session.
        table: whose rows are stored.
    """

    def __init__(self, index: int, table: Table) -> None:
        self._table = table
        self._name = f"flow_staged_{index}"
        temporary = f"pg_temp.{quote(self._name)}"
        target = POSTGRES.table(table.path)
        self._names = ", ".join(quote(column.name) for column in table.columns)
        self.copy = f"COPY {target} ({self._names}) FROM STDIN"
        self.copy_temporary = f"COPY {temporary} ({self._names}) FROM STDIN"
        self._insert = upsert(POSTGRES, table)
        self._move = upsert(POSTGRES, table, f"SELECT {self._names} FROM {temporary}")
        self._truncate = f"TRUNCATE {temporary}"
        document = "NULL" if table.document is None else f"stored.{quote(table.document)}"
        wanted, matches = _matching(table)
        self.select = (
            f"SELECT {document} FROM {target} AS stored JOIN {wanted} ON {matches} WHERE {document} IS NOT NULL"
        )
        self._delete = f"DELETE FROM {target} AS stored USING {wanted} WHERE {matches}"
        self._new: list[list[Any]] = [[] for _ in table.columns]
        self._others: list[list[Any]] = [[] for _ in table.columns]
        self.deleted: list[list[list[Any]]] = []
        self.rows = 0
        self.bytes = 0
        self._is_created = False
        self._is_moved = True

    def add(self, columns: Columns, change: Change) -> None:
        """Take rows, whose documents are bytes."""
        self.rows += len(columns[0])
        if self._table.document is not None:
            self.bytes += sum(map(len, columns[-1]))
            columns = [*columns[:-1], list(map(bytes.decode, columns[-1]))]
        for kept, column in zip(self._new if change == "insert" else self._others, columns, strict=True):
            kept.extend(column)

    def take(self) -> tuple[Columns | None, Columns | None]:
        """What waits in memory: new rows and others, None where there are none."""
        new, others = self._new, self._others
        self._new, self._others = [[] for _ in self._table.columns], [[] for _ in self._table.columns]
        self.rows = self.bytes = 0
        return new if new[0] else None, others if others[0] else None

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See that there is a temporary table, into which rows are copied next."""
        self._is_moved = False
        if not self._is_created:
            target = POSTGRES.table(self._table.path)
            connection.execute(
                f"CREATE TEMPORARY TABLE {quote(self._name)} AS SELECT {self._names} FROM {target} WITH NO DATA"
            )
            self._is_created = True

    def write(self, cursor: psycopg.Cursor[Any]) -> None:
        """Store and delete all that waits."""
        if not self._is_moved:
            cursor.execute(self._move)
            cursor.execute(self._truncate)
            self._is_moved = True
        for columns in self.take():
            if columns is not None:
                cursor.executemany(self._insert, list(zip(*columns, strict=True)))
        for keys in self.deleted:
            cursor.execute(self._delete, keys)
        self.deleted.clear()


def _matching(table: Table) -> tuple[str, str]:
    """Keys as a table, whose parameters are the texts of each component, and the condition that a row has one."""
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(table.keys) + 1))
    names = ", ".join(f"key_{number}" for number in range(len(table.keys)))
    conditions = " AND ".join(
        f"stored.{quote(column.name)} = wanted.key_{number}::{column.type}" for number, column in enumerate(table.keys)
    )
    return f"unnest({arrays}) AS wanted ({names})", conditions
