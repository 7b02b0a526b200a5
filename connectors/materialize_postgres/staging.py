"""Rows that the next commit stores in one table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from connectors.materialize_postgres.dialect import POSTGRES
from connectors.materialize_sql.column import Table
from connectors.materialize_sql.endpoint import Change, Columns
from connectors.materialize_sql.names import quote
from connectors.materialize_sql.statements import upsert


class Staging:
    """Staged rows of one table, in memory or in a temporary table, and the statements that move them.

    Attributes:
        deleted: keys of rows to delete, each component as the text of an array.
        rows: number of rows in memory.
        bytes: total size of their documents.
        select: statement that returns the documents of some keys; its parameters are the arrays of each component.
        copy: COPY statement of new rows into the table.

    Args:
        index: index of the table in the session.
        table: table of the rows.
    """

    def __init__(self, index: int, table: Table) -> None:
        self._table = table
        self._name = f"flow_staged_{index}"
        temporary = f"pg_temp.{quote(self._name)}"
        target = POSTGRES.table(table.path)
        self._names = ", ".join(quote(column.name) for column in table.columns)
        self.copy = f"COPY {target} ({self._names}) FROM STDIN"
        self._copy_temporary = f"COPY {temporary} ({self._names}) FROM STDIN"
        self._insert = upsert(POSTGRES, table)
        self._move = upsert(POSTGRES, table, f"SELECT {self._names} FROM {temporary}")
        self._truncate = f"TRUNCATE {temporary}"
        self.select = _select(table)
        self._delete = _delete(table)
        self._new: list[list[Any]] = [[] for _ in table.columns]
        self._others: list[list[Any]] = [[] for _ in table.columns]
        self.deleted: list[list[str]] = []
        self.rows = 0
        self.bytes = 0
        self._is_created = False

    def add(self, columns: Columns, change: Change) -> None:
        """Add rows, whose documents are bytes."""
        self.rows += len(columns[0])
        if self._table.document is not None:
            self.bytes += sum(map(len, columns[-1]))
            columns = [*columns[:-1], list(map(bytes.decode, columns[-1]))]
        for kept, column in zip(self._new if change == "insert" else self._others, columns, strict=True):
            kept.extend(column)

    def take(self) -> tuple[Columns | None, Columns | None]:
        """Remove and return the rows in memory: new rows and others, None if there are none."""
        new, others = self._new, self._others
        self._new, self._others = [[] for _ in self._table.columns], [[] for _ in self._table.columns]
        self.rows = self.bytes = 0
        return new if new[0] else None, others if others[0] else None

    def copy_others(self, connection: psycopg.Connection[Any], texts: Iterable[bytes]) -> None:
        """Store rows that may exist already, given in COPY's format, by a temporary table."""
        if not self._is_created:
            target = POSTGRES.table(self._table.path)
            connection.execute(
                f"CREATE TEMPORARY TABLE {quote(self._name)} AS SELECT {self._names} FROM {target} WITH NO DATA"
            )
            self._is_created = True
        with connection.cursor() as cursor, cursor.copy(self._copy_temporary) as copy:
            for text in texts:
                copy.write(text)
        connection.execute(self._move)
        connection.execute(self._truncate)

    def write(self, cursor: psycopg.Cursor[Any]) -> None:
        """Store and delete everything that is staged."""
        for columns in self.take():
            if columns is not None:
                cursor.executemany(self._insert, list(zip(*columns, strict=True)))
        for keys in self.deleted:
            cursor.execute(self._delete, keys)
        self.deleted.clear()


def _select(table: Table) -> str:
    """Return a statement for the documents of some keys, as bytes of their texts; its parameters are arrays of texts.

    A join would be planned by estimates, and usually reads the whole table. These statements look up each key.
    """
    document = "NULL" if table.document is None else f"stored.{quote(table.document)}"
    text = f"convert_to({document}::text, 'UTF8')"
    stored = f"FROM {POSTGRES.table(table.path)} AS stored"
    if len(table.keys) == 1:
        return f"SELECT {text} {stored} WHERE {_is_any(table)} AND {document} IS NOT NULL"
    desired, matches = _matching(table)
    row = f"SELECT {text} AS text {stored} WHERE {matches} AND {document} IS NOT NULL LIMIT 1"
    return f"SELECT loaded.text FROM {desired} CROSS JOIN LATERAL ({row}) AS loaded"


def _delete(table: Table) -> str:
    """Return a statement that deletes the rows of some keys; its parameters are arrays of texts."""
    target = f"DELETE FROM {POSTGRES.table(table.path)} AS stored"
    if len(table.keys) == 1:
        return f"{target} WHERE {_is_any(table)}"
    desired, matches = _matching(table)
    return f"{target} USING {desired} WHERE {matches}"


def _is_any(table: Table) -> str:
    (key,) = table.keys
    return f"stored.{quote(key.name)} = ANY ($1::{key.type}[])"


def _matching(table: Table) -> tuple[str, str]:
    """Return a table of keys whose parameters are arrays of texts, and the condition that joins rows to it."""
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(table.keys) + 1))
    names = ", ".join(f"key_{number}" for number in range(len(table.keys)))
    conditions = " AND ".join(
        f"stored.{quote(column.name)} = wanted.key_{number}::{column.type}" for number, column in enumerate(table.keys)
    )
    return f"unnest({arrays}) AS wanted ({names})", conditions
