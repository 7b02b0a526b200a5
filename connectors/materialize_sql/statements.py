"""Statements that read and write rows of a table."""

from __future__ import annotations

from connectors.materialize_sql.column import Table
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.names import quote


def select(dialect: Dialect, table: Table) -> str:
    """Return a query of one key's document, with the key as parameters; without keys or documents, it has no rows."""
    if table.delta_updates or table.document is None:
        return "SELECT NULL WHERE 1 = 0"
    document = quote(table.document)
    row = f"{_is_key(dialect, table)} AND {document} IS NOT NULL"  # a row inserted by another program has no document
    return f"SELECT {document} FROM {dialect.table(table.path)} WHERE {row}"


def delete(dialect: Dialect, table: Table) -> str:
    """Return a statement that deletes the row of one key; its parameters are the key."""
    return f"DELETE FROM {dialect.table(table.path)} WHERE {_is_key(dialect, table)}"


def upsert(dialect: Dialect, table: Table, source: str | None = None) -> str:
    """Return a statement that stores rows and replaces rows of the same keys; with delta updates, it only inserts.

    Args:
        dialect: dialect of the database.
        table: table of the rows.
        source: a SELECT of the table's columns; None for one row of parameters.
    """
    names = ", ".join(quote(column.name) for column in table.columns)
    rows = source or f"VALUES ({dialect.parameters(len(table.columns))})"
    inserted = f"INSERT INTO {dialect.table(table.path)} ({names}) {rows}"
    if table.delta_updates:
        return inserted
    keys = ", ".join(quote(column.name) for column in table.keys)
    replaced = ", ".join(f"{quote(column.name)} = excluded.{quote(column.name)}" for column in table.values)
    return f"{inserted} ON CONFLICT ({keys}) DO {f'UPDATE SET {replaced}' if replaced else 'NOTHING'}"


def _is_key(dialect: Dialect, table: Table) -> str:
    return " AND ".join(
        f"{quote(column.name)} = {dialect.parameter(number)}" for number, column in enumerate(table.keys, start=1)
    )
