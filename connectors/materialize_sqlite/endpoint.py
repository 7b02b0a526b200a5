"""SQLite: its names, types and values, the connection to a file, and the transfer of rows.

Tables are STRICT, because SQLite would otherwise convert an integer that does not fit 64 bits to a double. The types of
columns distinguish kinds: INT for booleans, INTEGER for integers that fit, and ANY for JSON values. Numbers in ANY are
SQLite's own numbers if possible, and otherwise texts of digits; other values are JSON text.

Rows are staged in memory until the commit, so that the database is locked as briefly as possible. Rows beyond the
memory limit are written in a transaction that begins with the first of them. So a stopped process seldom keeps a lock
that its successor needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from connectors.kit.requests import Value
from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Naming, Table, quote
from connectors.materialize_sql.dialect import Changes, Dialect, delete, select, upsert
from connectors.materialize_sql.endpoint import (
    Change,
    Columns,
    Fence,
    renew,
    renewal,
    require_folder,
    supersede,
    translating,
)
from connectors.materialize_sql.values import Encoder, encoder, json_text, key_text
from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, FlowError

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _fold(name: str) -> str:
    return name.translate(_LOWER)  # SQLite folds only the case of ASCII


class SqliteDialect(Dialect):
    """SQLite's dialect: to make a change other than another column, a new table replaces the table."""

    def kind_in(self, existing: ExistingColumn, kind: Kind, *, is_key: bool) -> Kind | None:
        """Return the kind of stored values: ANY can be a column of numbers, but not a column of texts of numbers."""
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
    """Return the encoder of a column from packed values to values of SQLite."""
    if column.type == "ANY":
        checked = encoder(column.kind) if column.kind is not Kind.JSON else list
        text = key_text if column.is_key else json_text
        return lambda values: [_any(value, text) for value in checked(values)]
    if column.type == "TEXT":
        # A text of any format, and a number of any size, are stored as written.
        return encoder(Kind.DECIMAL if column.kind is Kind.DECIMAL else Kind.TEXT)
    return encoder(column.kind)


def _any(value: Value, text: Any) -> Any:
    if type(value) is int:
        return value if _LEAST <= value <= _MOST else str(value)
    return value if type(value) is float else text(value)


def explain(path: str, exc: apsw.Error) -> FlowError:
    """Return the translated error of a database."""
    what = f"SQLite database '{path}': {exc}"
    match exc:
        case apsw.BusyError() | apsw.LockedError():
            return BusyError(what, hint="another process holds a lock on the database; flowctl retries")
        case apsw.FullError():
            return DiskFullError(what, hint="free some space on the disk of the database")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return DeniedError(what, hint="let this user write the file, and files beside it")
        case apsw.CantOpenError():
            return EndpointError(what, hint="name a file in a folder that exists and can be written")
        case apsw.NotADBError() | apsw.CorruptError():
            return EndpointError(what, hint="name another file, or restore this one")
        case _:
            return EndpointError(what)


translated = partial(translating, apsw.Error, explain)
"""Return a context that translates errors of a named database."""


_PATIENCE = 20_000
"""Milliseconds to wait for a lock."""

_MOST_BYTES = 64 << 20
"""Maximum size of documents in memory, in bytes."""


def connect(config: Any, *, for_writing: bool) -> SqliteEndpoint:
    """Return a connection to the database of a configuration.

    Args:
        config: configuration with the `path`.
        for_writing: whether to create a missing database; otherwise a missing database counts as empty.
    """
    path = config["path"]
    require_folder("SQLite", path)
    with translated(path):
        name = path if for_writing or Path(path).exists() else ":memory:"
        database = apsw.Connection(name)
        try:
            database.set_busy_timeout(_PATIENCE)
            database.execute("PRAGMA legacy_alter_table = ON")  # permits the replacement of a table that views read
            if for_writing:
                database.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            database.close()
            raise
    return SqliteEndpoint(path, database)


class SqliteEndpoint:
    """An `Endpoint` of SQLite.

    Args:
        path: file of the database, for messages.
        database: connection to it.
    """

    def __init__(self, path: str, database: apsw.Connection) -> None:
        self._path = path
        self._database = database

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with translated(self._path):
            return list(self._database.execute(sql, tuple(parameters)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute the block in one transaction."""
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk has ended the transaction
                self._database.execute("ROLLBACK")
            raise

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """Return the current definition of a table."""
        name = path[-1]
        # A generated column cannot be written, and is not listed.
        rows = self.query('SELECT "name", "type", "notnull", "dflt_value", "pk" FROM pragma_table_info(?)', [name])
        if not rows:
            return None
        columns = {
            column: ExistingColumn(column, declared.upper(), bool(not_null), has_default=default is not None)
            for column, declared, not_null, default, _ in rows
        }
        belongings = self.query(
            'SELECT "sql" FROM sqlite_master WHERE "tbl_name" = ? COLLATE NOCASE AND "type" IN (\'index\', \'trigger\')'
            ' AND "sql" IS NOT NULL',
            [name],
        )
        key = frozenset(column for column, _, _, _, number in rows if number)
        return ExistingTable(columns, key, tuple(sql for (sql,) in belongings))

    def transfer(self, tables: Sequence[Table], fence: Fence) -> SqliteTransfer:
        """Return a transfer of rows."""
        return SqliteTransfer(self._path, self._database, tables, fence)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


class SqliteTransfer:
    """A `Transfer` into SQLite.

    Args:
        path: file of the database, for messages.
        database: connection to it.
        tables: tables of the rows.
        fence: the fence of their commits.
    """

    def __init__(self, path: str, database: apsw.Connection, tables: Sequence[Table], fence: Fence) -> None:
        self._path = path
        self._database = database
        self._fence = fence
        self._selects = [select(SQLITE, table) for table in tables]
        self._stores = [upsert(SQLITE, table) for table in tables]
        self._deletes = [delete(SQLITE, table) for table in tables]
        self._renew = renew(SQLITE, fence)
        self._documents = [table.document is not None for table in tables]
        self._staged: list[tuple[str, Columns]] = []
        self._bytes = 0

    def load(self, index: int, keys: Columns) -> Iterator[bytes]:
        """Yield the documents of some keys."""
        statement, execute = self._selects[index], self._database.execute
        with translated(self._path):
            for key in zip(*keys, strict=True):
                for (document,) in execute(statement, key):
                    yield document.encode()

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Stage rows to store, or keys to delete."""
        if change == "delete":
            self._staged.append((self._deletes[index], columns))
            return
        if self._documents[index]:
            *others, documents = columns
            columns = [*others, list(map(bytes.decode, documents))]
            self._bytes += sum(map(len, documents))
        self._staged.append((self._stores[index], columns))
        if self._bytes > _MOST_BYTES:
            self._write()

    def commit(self, checkpoint: bytes) -> None:
        """Store the staged rows and the checkpoint in one transaction."""
        try:
            self._write()
            with translated(self._path):
                self._database.execute(self._renew, renewal(self._fence, checkpoint))
                if self._database.changes() != 1:
                    raise self._fence.lost()
                if self._fence.narrower:
                    self._database.execute(supersede(SQLITE, self._fence), self._fence.span)
                self._database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def close(self) -> None:
        """Discard the staged rows."""
        self._staged.clear()
        self._roll_back()
        self._database.close()

    def _write(self) -> None:
        """Write the staged rows, in the transaction of the next commit."""
        with translated(self._path):
            if not self._database.in_transaction:
                self._database.execute("BEGIN IMMEDIATE")
            for statement, columns in self._staged:
                self._database.executemany(statement, zip(*columns, strict=True))
        self._staged.clear()
        self._bytes = 0

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
