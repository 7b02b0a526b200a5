"""Rows on their way into PostgreSQL, and documents out of it.

Until a commit, rows are where no one waits for them: few are in memory, many in temporary tables, which COPY fills.
The commit is sent as one: what ends it is on its way before what begins it is answered. So a process that is stopped
between the two keeps no lock from one that takes over, and few rows take one journey to the server and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from connectors.materialize_postgres.copy_text import copy_text
from connectors.materialize_postgres.dialect import POSTGRES
from connectors.materialize_postgres.failure import explain, translated
from connectors.materialize_sql.column import Table
from connectors.materialize_sql.endpoint import Columns
from connectors.materialize_sql.fence import Fence, renew, renewal
from connectors.materialize_sql.names import quote
from connectors.materialize_sql.statements import upsert

_FEW_ROWS = 200
_FEW_BYTES = 64 << 10
_KEYS_AT_ONCE = 10_000


class PostgresTransfer:
    """Fulfils `Transfer`.

    Args:
        where: the database, for messages.
        connection: a connection to it.
        tables: whose rows are moved.
        fence: the right to commit them.
    """

    def __init__(self, where: str, connection: psycopg.Connection[Any], tables: Sequence[Table], fence: Fence) -> None:
        self._where = where
        self._connection = connection
        self._fence = fence
        self._renew = f"WITH renewed AS ({renew(POSTGRES, fence)} RETURNING 1) SELECT 1 / count(*) FROM renewed"
        self._staging = [_Staging(index, table) for index, table in enumerate(tables)]

    def load(self, index: int, keys: Columns) -> Iterator[bytes]:
        """The documents of some keys."""
        statement, count = self._staging[index].select, len(keys[0]) if keys else 0
        with translated(self._where):
            for begin in range(0, count, _KEYS_AT_ONCE):
                some = [list(column[begin : begin + _KEYS_AT_ONCE]) for column in keys]
                for (document,) in self._connection.execute(statement, some):
                    yield document

    def stage(self, index: int, columns: Columns, *, deleted: bool) -> None:
        """Take rows to store, or keys to delete."""
        staging = self._staging[index]
        if deleted:
            staging.deleted.append([list(column) for column in columns])
            return
        staging.add(columns)
        if staging.rows > _FEW_ROWS or staging.bytes > _FEW_BYTES:
            with translated(self._where):
                staging.copy(self._connection)

    def commit(self, checkpoint: bytes) -> None:
        """Store what was staged and the checkpoint in one transaction."""
        try:
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(self._renew, renewal(self._fence, checkpoint))
                for staging in self._staging:
                    staging.write(cursor)
                cursor.execute("COMMIT")
        except psycopg.errors.DivisionByZero as exc:
            self._roll_back()
            raise self._fence.lost() from exc
        except psycopg.Error as exc:
            self._roll_back()
            raise explain(self._where, exc) from exc

    def close(self) -> None:
        """Forget what is staged, and end the connection."""
        self._connection.close()

    def _roll_back(self) -> None:
        if not self._connection.closed:
            self._connection.rollback()


class _Staging:
    """What is to be stored in one table by the next commit."""

    def __init__(self, index: int, table: Table) -> None:
        self._table = table
        self._temporary = f'pg_temp."flow_staged_{index}"'
        self._names = ", ".join(quote(column.name) for column in table.columns)
        self._insert = upsert(POSTGRES, table)
        self._insert_copied = upsert(POSTGRES, table, f"SELECT {self._names} FROM {self._temporary}")
        matching = _matching(table)
        target = POSTGRES.table(table.path)
        document = "NULL" if table.document is None else f"stored.{quote(table.document)}"
        self.select = f"SELECT {document} FROM {target} AS stored JOIN {matching}"
        self._delete = f"DELETE FROM {target} AS stored USING {matching.replace(' ON ', ' WHERE ', 1)}"
        self._columns: list[list[Any]] = [[] for _ in table.columns]
        self.deleted: list[list[list[Any]]] = []
        self.rows = 0
        self.bytes = 0
        self._is_created = False
        self._is_copied = False

    def add(self, columns: Columns) -> None:
        """Take rows, whose documents are bytes."""
        self.rows += len(columns[0])
        if self._table.document is not None:
            self.bytes += sum(map(len, columns[-1]))
            columns = [*columns[:-1], [document.decode() for document in columns[-1]]]
        for kept, column in zip(self._columns, columns, strict=True):
            kept.extend(column)

    def copy(self, connection: psycopg.Connection[Any]) -> None:
        """Move what is in memory to the temporary table."""
        if not self._is_created:
            connection.execute(
                f"CREATE TEMPORARY TABLE IF NOT EXISTS {self._temporary[len('pg_temp.') :]} ON COMMIT PRESERVE ROWS AS"
                f" SELECT {self._names} FROM {POSTGRES.table(self._table.path)} WITH NO DATA"
            )
            self._is_created = True
        with connection.cursor() as cursor, cursor.copy(f"COPY {self._temporary} ({self._names}) FROM STDIN") as copy:
            copy.write(copy_text(self._columns))
        self._is_copied = True
        self._forget()

    def write(self, cursor: psycopg.Cursor[Any]) -> None:
        """Store and delete what was staged, which is forgotten."""
        if self._is_copied:
            cursor.execute(self._insert_copied)
            cursor.execute(f"TRUNCATE {self._temporary}")
            self._is_copied = False
        if self.rows:
            cursor.executemany(self._insert, list(zip(*self._columns, strict=True)))
        for keys in self.deleted:
            cursor.execute(self._delete, keys)
        self.deleted.clear()
        self._forget()

    def _forget(self) -> None:
        for column in self._columns:
            column.clear()
        self.rows = self.bytes = 0


def _matching(table: Table) -> str:
    """The rows of a table that have one of some keys; its parameters are the texts of each component."""
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(table.keys) + 1))
    names = ", ".join(f"key_{number}" for number in range(len(table.keys)))
    conditions = " AND ".join(
        f"stored.{quote(column.name)} = wanted.key_{number}::{column.type}" for number, column in enumerate(table.keys)
    )
    return f"unnest({arrays}) AS wanted ({names}) ON {conditions}"
