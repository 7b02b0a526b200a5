"""Dialects: names and types of one database for concepts of all databases, and statements on rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Naming, Table, literal, quote

_HOLDS: Mapping[Kind, frozenset[Kind]] = {
    Kind.INTEGER: frozenset({Kind.BIGINT}),
    Kind.NUMBER: frozenset({Kind.BIGINT, Kind.INTEGER}),
    Kind.DECIMAL: frozenset({Kind.BIGINT, Kind.INTEGER, Kind.NUMBER}),
}
"""For each kind, the other kinds whose values a column of that kind can hold."""

_WRITTEN = frozenset({Kind.DATE, Kind.TIMESTAMP})
"""Kinds of texts that can also be stored as text."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between an existing table and the needed table.

    Attributes:
        added: columns to add; existing rows have NULL in them.
        loosened: names of columns that must accept NULL.
        widened: columns that need a wider type, which holds all existing values.
        described: columns with another comment.
    """

    added: tuple[Column, ...] = ()
    loosened: tuple[str, ...] = ()
    widened: tuple[Column, ...] = ()
    described: tuple[Column, ...] = ()


NO_CHANGES = Changes()


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names and types of one database for concepts that all databases have.

    Attributes:
        title: name of the database in messages.
        naming: rules of its names.
        types: type of a column as the database writes it, by kind.
        json_key: type of a key's column of JSON text; no other kind has this type, because only the type distinguishes
            the column from a column of texts.
        bytes_type: type of columns of bytes.
        mark: text before the number of a parameter.
        widenings: pairs of a type and a wider type to which the database can change it without loss.
        widens_keys: whether columns of the key can be widened.
        has_comments: whether the database stores comments of tables and columns.
        most_columns: maximum number of a table's columns.
        most_commented: maximum number of columns of a table whose columns get comments.
        no_equality: types whose values the database can compare only as text.
    """

    title: str
    naming: Naming
    types: Mapping[Kind, str]
    json_key: str
    bytes_type: str
    mark: str
    widenings: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    widens_keys: bool = True
    has_comments: bool = True
    most_columns: int = 1000
    most_commented: int = 1_000_000
    no_equality: frozenset[str] = frozenset()

    def type_of(self, kind: Kind, *, is_key: bool) -> str:
        """Return the type of a column."""
        return self.json_key if is_key and kind is Kind.JSON else self.types[kind]

    def kind_in(self, existing: ExistingColumn, kind: Kind, *, is_key: bool) -> Kind | None:
        """Return the kind of the values in an existing column; None if the column cannot hold all values.

        Args:
            existing: the column.
            kind: kind of the values.
            is_key: whether the column belongs to the key.
        """
        if existing.type == self.type_of(kind, is_key=is_key):
            return kind
        if existing.type == self.types[Kind.TEXT]:
            return Kind.TEXT if kind in _WRITTEN and not is_key else None
        wider = (holder for holder, held in _HOLDS.items() if kind in held and self.types[holder] == existing.type)
        as_json = Kind.JSON if existing.type == self.types[Kind.JSON] and not is_key else None
        return next(wider, as_json)

    def table(self, path: Sequence[str]) -> str:
        """Return the name of a table in SQL."""
        return ".".join(map(quote, path))

    def parameter(self, number: int) -> str:
        """Return a parameter in SQL, numbered from 1."""
        return f"{self.mark}{number}"

    def parameters(self, count: int) -> str:
        """Return parameters with consecutive numbers from 1, separated by commas."""
        return ", ".join(map(self.parameter, range(1, count + 1)))

    def is_same(self, column: Column, one: str, other: str) -> str:
        """Return the condition that two tables, by their aliases, have equal values of a column, or both NULL."""
        values = [f"{alias}.{quote(column.name)}" for alias in (one, other)]
        if column.type in self.no_equality:
            values = [f"CAST({value} AS {self.types[Kind.TEXT]})" for value in values]
        return " IS NOT DISTINCT FROM ".join(values)

    def create(self, table: Table) -> list[str]:
        """Return the statements that create a table."""
        columns = [self.definition(column) for column in table.columns]
        if not table.delta_updates:
            columns.append(f"PRIMARY KEY ({', '.join(quote(column.name) for column in table.keys)})")
        body = ",\n  ".join(columns)
        created = f"CREATE TABLE {self.table(table.path)} (\n  {body}\n){self.options()}"
        described = [self.comment_on_column(table, column) for column in table.columns if column.comment]
        if not self.comments_on_columns(table):
            described = []
        return [created, *([self.comment_on_table(table), *described] if self.has_comments else [])]

    def comments_on_columns(self, table: Table) -> bool:
        """Return whether the columns of a table get comments."""
        return self.has_comments and len(table.columns) <= self.most_commented

    def options(self) -> str:
        """Return the SQL after the columns of a new table."""
        return ""

    def definition(self, column: Column) -> str:
        """Return the definition of a column in a new table."""
        return f"{quote(column.name)} {column.type}{' NOT NULL' if column.not_null else ''}"

    def alter(self, table: Table, existing: ExistingTable, changes: Changes) -> list[str]:
        """Return the statements that change a table to its needed definition.

        Args:
            table: needed table.
            existing: existing table.
            changes: the differences.
        """
        altered = f"ALTER TABLE {self.table(table.path)}"
        statements = [f"{altered} ADD COLUMN {quote(column.name)} {column.type}" for column in changes.added]
        statements += [f"{altered} ALTER COLUMN {quote(name)} DROP NOT NULL" for name in changes.loosened]
        statements += [f"{altered} ALTER COLUMN {quote(column.name)} TYPE {column.type}" for column in changes.widened]
        if self.comments_on_columns(table):
            statements += [self.comment_on_column(table, column) for column in (*changes.added, *changes.described)]
        return statements

    def comment_on_table(self, table: Table) -> str:
        """Return the statement that sets the comment of a table."""
        return f"COMMENT ON TABLE {self.table(table.path)} IS {literal(table.comment)}"

    def comment_on_column(self, table: Table, column: Column) -> str:
        """Return the statement that sets the comment of a column."""
        name = f"{self.table(table.path)}.{quote(column.name)}"
        return f"COMMENT ON COLUMN {name} IS {literal(column.comment)}"


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
