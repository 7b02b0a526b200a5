"""Dialects: how one database calls what all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Table
from connectors.materialize_sql.kind import Kind
from connectors.materialize_sql.names import Naming, literal, quote

_HOLDS: Mapping[Kind, frozenset[Kind]] = {
    Kind.INTEGER: frozenset({Kind.BIGINT}),
    Kind.NUMBER: frozenset({Kind.BIGINT, Kind.INTEGER}),
    Kind.DECIMAL: frozenset({Kind.BIGINT, Kind.INTEGER, Kind.NUMBER}),
}
"""Kinds whose values are all of another kind as well."""

_WRITTEN = frozenset({Kind.DATE, Kind.TIMESTAMP})
"""Kinds of texts that can as well be kept as they are written."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a table that is there lacks.

    Attributes:
        added: columns to add; rows that are there have NULL in them.
        loosened: names of columns that must take NULL from now on.
        widened: columns whose values need a wider type, which holds all that are there.
        described: columns with another comment.
    """

    added: tuple[Column, ...] = ()
    loosened: tuple[str, ...] = ()
    widened: tuple[Column, ...] = ()
    described: tuple[Column, ...] = ()


NO_CHANGES = Changes()


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database calls what all of them have.

    Attributes:
        title: the database, for people.
        naming: which names it takes.
        types: by kind, the type of a column, as the database itself spells it.
        json_key: the type of a key's column that has JSON text; no other kind has it, as nothing else would tell that
            a column of texts has these.
        bytes_type: of columns of bytes.
        mark: what comes before the number of a parameter.
        widenings: types, and the wider ones that the database can change them to without loss.
        widens_keys: whether that goes for columns of the key.
        has_comments: whether it keeps comments of tables and columns.
        most_columns: how many a table is given.
        most_commented: columns of a table that has more than so many are given no comments.
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

    def type_of(self, kind: Kind, *, is_key: bool) -> str:
        """The type of a column."""
        return self.json_key if is_key and kind is Kind.JSON else self.types[kind]

    def kind_in(self, existing: ExistingColumn, kind: Kind, *, is_key: bool) -> Kind | None:
        """The kind as which values are stored in a column that is there; None if it cannot hold all of them.

        Args:
            existing: the column.
            kind: of the values.
            is_key: whether it is a column of the key.
        """
        if existing.type == self.type_of(kind, is_key=is_key):
            return kind
        if existing.type == self.types[Kind.TEXT]:
            return Kind.TEXT if kind in _WRITTEN and not is_key else None
        wider = (holder for holder, held in _HOLDS.items() if kind in held and self.types[holder] == existing.type)
        as_json = Kind.JSON if existing.type == self.types[Kind.JSON] and not is_key else None
        return next(wider, as_json)

    def table(self, path: Sequence[str]) -> str:
        """A table's name in SQL."""
        return ".".join(map(quote, path))

    def parameter(self, number: int) -> str:
        """A parameter in SQL, numbered from 1."""
        return f"{self.mark}{number}"

    def parameters(self, count: int, first: int = 1) -> str:
        """Parameters of successive numbers, separated by commas."""
        return ", ".join(map(self.parameter, range(first, first + count)))

    def create(self, table: Table) -> list[str]:
        """Statements that create a table."""
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
        """Whether columns of a table are given comments."""
        return self.has_comments and len(table.columns) <= self.most_commented

    def options(self) -> str:
        """What comes after the columns of a table that is created."""
        return ""

    def definition(self, column: Column) -> str:
        """A column of a table that is created."""
        return f"{quote(column.name)} {column.type}{' NOT NULL' if column.not_null else ''}"

    def alter(self, table: Table, existing: ExistingTable, changes: Changes) -> list[str]:
        """Statements that make a table what it should be.

        Args:
            table: what it should be.
            existing: what it is.
            changes: what that takes.
        """
        altered = f"ALTER TABLE {self.table(table.path)}"
        statements = [f"{altered} ADD COLUMN {quote(column.name)} {column.type}" for column in changes.added]
        statements += [f"{altered} ALTER COLUMN {quote(name)} DROP NOT NULL" for name in changes.loosened]
        statements += [f"{altered} ALTER COLUMN {quote(column.name)} TYPE {column.type}" for column in changes.widened]
        if self.comments_on_columns(table):
            statements += [self.comment_on_column(table, column) for column in (*changes.added, *changes.described)]
        return statements

    def comment_on_table(self, table: Table) -> str:
        """A statement that says what a table is."""
        return f"COMMENT ON TABLE {self.table(table.path)} IS {literal(table.comment)}"

    def comment_on_column(self, table: Table, column: Column) -> str:
        """A statement that says what a column is."""
        name = f"{self.table(table.path)}.{quote(column.name)}"
        return f"COMMENT ON COLUMN {name} IS {literal(column.comment)}"
