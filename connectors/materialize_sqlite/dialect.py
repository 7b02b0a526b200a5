"""SQLite's names and types.

Tables are STRICT; otherwise SQLite would convert an integer that does not fit 64 bits to a double. Types tell kinds
apart: INT for booleans, INTEGER for integers that fit, and ANY for JSON values. Numbers in ANY are SQLite's own if
possible, and texts of digits otherwise; other values are JSON text.
"""

from __future__ import annotations

from typing import Any

from connectors.kit.requests import Value
from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Table
from connectors.materialize_sql.dialect import Changes, Dialect
from connectors.materialize_sql.names import Naming, quote
from connectors.materialize_sql.values import Encoder, encoder, json_text, key_text

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _fold(name: str) -> str:
    return name.translate(_LOWER)  # SQLite folds only the case of ASCII


class SqliteDialect(Dialect):
    """SQLite's dialect: changes other than one more column replace the table by a new one."""

    def kind_in(self, existing: ExistingColumn, kind: Kind, *, is_key: bool) -> Kind | None:
        """Return the kind of stored values: a column of numbers may be ANY, but ANY does not hold texts of numbers."""
        if existing.type == "ANY" and self.types[kind] not in ("ANY", "INTEGER"):
            return None
        return Dialect.kind_in(self, existing, kind, is_key=is_key)

    def options(self) -> str:
        """Return the option of strict tables."""
        return " STRICT"

    def alter(self, table: Table, existing: ExistingTable, changes: Changes) -> list[str]:
        """Return the statements that change a table to its needed definition."""
        added = super().alter(table, existing, Changes(changes.added))
        if not changes.loosened and not changes.widened:
            return added
        types = {column.name: column.type for column in changes.widened}
        kept = [
            ExistingColumn(
                column.name,
                types.get(column.name, column.type),
                not_null=column.not_null and column.name not in changes.loosened,
            )
            for column in existing.columns.values()
        ]
        definitions = [f"{quote(column.name)} {column.type}{' NOT NULL' * column.not_null}" for column in kept]
        if existing.key:
            definitions.append(f"PRIMARY KEY ({', '.join(quote(column.name) for column in table.keys)})")
        name, new = table.path[-1], f"{table.path[-1]} (new)"
        names = ", ".join(quote(column.name) for column in kept)
        body = ",\n  ".join(definitions)
        return [
            f"CREATE TABLE {quote(new)} (\n  {body}\n){self.options()}",
            f"INSERT INTO {quote(new)} ({names}) SELECT {names} FROM {quote(name)}",
            f"DROP TABLE {quote(name)}",
            f"ALTER TABLE {quote(new)} RENAME TO {quote(name)}",
            *existing.belongings,
            *added,
        ]


SQLITE = SqliteDialect(
    title="SQLite",
    naming=Naming(fold=_fold),
    types={
        Kind.BOOLEAN: "INT",
        Kind.BIGINT: "INTEGER",
        Kind.INTEGER: "ANY",
        Kind.NUMBER: "ANY",
        Kind.DECIMAL: "TEXT",
        Kind.TEXT: "TEXT",
        Kind.DATE: "TEXT",
        Kind.TIMESTAMP: "TEXT",
        Kind.JSON: "ANY",
    },
    json_key="ANY",
    bytes_type="BLOB",
    mark="?",
    widenings=frozenset({("INTEGER", "ANY")}),
    has_comments=False,
    most_columns=2000,
)


def encoder_of(column: Column) -> Encoder:
    """Return the encoder of a column from packed values to SQLite's."""
    if column.type == "ANY":
        checked = encoder(column.kind) if column.kind is not Kind.JSON else list
        text = key_text if column.is_key else json_text
        return lambda values: [_any(value, text) for value in checked(values)]
    if column.type == "TEXT":
        # A text is stored as written in any format, and so is a number of any size.
        return encoder(Kind.DECIMAL if column.kind is Kind.DECIMAL else Kind.TEXT)
    return encoder(column.kind)


def _any(value: Value, text: Any) -> Any:
    if type(value) is int:
        return value if _LEAST <= value <= _MOST else str(value)
    return value if type(value) is float else text(value)
