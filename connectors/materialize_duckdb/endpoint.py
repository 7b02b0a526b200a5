"""DuckDB: its names, types and values, the connection to a file, and the transfer of rows.

Integers are HUGEINT, of 128 bits, unless a schema bounds them to 64. Numbers are DOUBLE, the only type for fractions of
any size; an integer without an equal double is refused.

Only one process can have a file of DuckDB open. So the file is open only while it is read or written, and other
processes, such as other shards or readers of the rows, can open it at other times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import duckdb

from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Naming, Table, quote
from connectors.materialize_sql.dialect import Dialect, upsert
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
from connectors.materialize_sql.values import Encoder, encoder, key_text, unfit
from derive.document.exact import is_double
from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, FlowError

if TYPE_CHECKING:
    import pyarrow as pa

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_MOST = (1 << 127) - 1
_EXACT = 1 << 53
"""Up to this bound each integer has an equal double."""


def _fold(name: str) -> str:
    return name.translate(_LOWER)  # DuckDB folds only the case of ASCII


DUCKDB = Dialect(
    title="DuckDB",
    naming=Naming(taken=frozenset({"rowid"}), fold=_fold),
    types={
        Kind.BOOLEAN: "BOOLEAN",
        Kind.BIGINT: "BIGINT",
        Kind.INTEGER: "HUGEINT",
        Kind.NUMBER: "DOUBLE",
        Kind.DECIMAL: "VARCHAR",
        Kind.TEXT: "VARCHAR",
        Kind.DATE: "DATE",
        Kind.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
        Kind.JSON: "JSON",
    },
    json_key="JSON",
    bytes_type="BLOB",
    mark="$",
    widenings=frozenset({("BIGINT", "HUGEINT")}),
    widens_keys=False,
    most_columns=1000,  # DuckDB has no limit; with twice as many columns, a transaction takes three times as long
    most_commented=200,  # the time for a comment grows with the number of columns of the table
)


def encoder_of(column: Column) -> Encoder:
    """Return the encoder of a column from packed values to DuckDB's: booleans, integers, doubles, texts and None."""
    if column.kind is Kind.JSON and column.is_key:
        return lambda values: list(map(key_text, values))
    checked = encoder(column.kind)
    if column.kind is Kind.INTEGER:
        return lambda values: _hugeints(checked(values))
    if column.kind is Kind.NUMBER:
        return lambda values: _doubles(checked(values))
    if column.kind is Kind.TIMESTAMP:  # DuckDB does not accept a lowercase t or z
        return lambda values: [None if value is None else value.upper() for value in checked(values)]
    return checked


def _hugeints(values: Sequence[Any]) -> Sequence[Any]:
    present = [value for value in values if value is not None]
    if present and not -_MOST <= min(present) <= max(present) <= _MOST:
        raise unfit(values, lambda value: -_MOST <= value <= _MOST, "does not fit 128 bits")
    return values


def _doubles(values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if type(value) is int and not -_EXACT <= value <= _EXACT and not is_double(value):
            raise unfit(values, is_double, "is an integer that no double is equal to")
    return [None if value is None else float(value) for value in values]


_BY_TEXT: tuple[tuple[str, type[FlowError], str], ...] = (
    ("Could not set lock", BusyError, "another process has the file open, and DuckDB admits one process at a time"),
    ("Conflicting lock", BusyError, "another process has the file open, and DuckDB admits one process at a time"),
    ("onflict on", BusyError, "another transaction changed the same rows; flowctl retries"),
    ("No space left", DiskFullError, "free some space on the disk of the database"),
    ("Permission denied", DeniedError, "let this user write the file, and files beside it"),
    ("ead-only", DeniedError, "let this user write the file, and files beside it"),
    ("not a valid DuckDB database", EndpointError, "name another file, or restore this one"),
)
"""Parts of DuckDB's messages; the messages are more specific than the classes of errors."""


def explain(path: str, exc: duckdb.Error) -> FlowError:
    """Return the translated error of a database."""
    reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    rules = ((kind, hint) for text, kind, hint in _BY_TEXT if text in str(exc))
    kind, hint = next(rules, (EndpointError, None))
    return kind(f"DuckDB database '{path}': {reason}", hint=hint)


translated = partial(translating, duckdb.Error, explain)
"""Return a context that translates errors of a named database."""


_PATIENCE = 20.0
"""Seconds to wait for other processes."""

_PAUSE = 0.01
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": "false"}
"""No downloads of extensions: the connector needs none, and a server may have no network."""


@cache
def _lock_of(path: str) -> Lock:
    """Return the lock that admits one thread of this process at a time."""
    return Lock()


class DatabaseFile:
    """A database file.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        require_folder("DuckDB", path)
        self.path = path
        self._lock = _lock_of(os.path.realpath(path))

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection that no other session uses meanwhile.

        Raises:
            BusyError: other processes, or threads of this process, have used the file for too long.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            raise BusyError(f"DuckDB database '{self.path}' is in use by other sessions", hint="flowctl retries")
        try:
            connection = self._connect()
            try:
                yield connection
            finally:
                with translated(self.path):
                    connection.close()
        finally:
            self._lock.release()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return duckdb.connect(self.path, config=_CONFIG)
            except duckdb.Error as exc:
                error = explain(self.path, exc)
                if not isinstance(error, BusyError) or time.monotonic() > deadline:
                    raise error from exc
                time.sleep(_PAUSE)


_MOST_BYTES = 256 << 20
"""Maximum size of documents in memory, in bytes."""

_COLUMNS = """
SELECT column_name, data_type, NOT is_nullable, coalesce(comment, ''), column_default IS NOT NULL
FROM duckdb_columns()
WHERE lower(table_name) = lower($1) AND schema_name = 'main' AND database_name = current_database()
"""
_KEY = """
SELECT unnest(constraint_column_names) FROM duckdb_constraints()
WHERE lower(table_name) = lower($1) AND schema_name = 'main' AND database_name = current_database()
  AND constraint_type = 'PRIMARY KEY'
"""


def connect(config: Any, *, for_writing: bool) -> DuckdbEndpoint:
    """Return a connection to the database of a configuration.

    Args:
        config: configuration with the `path`.
        for_writing: whether to create a missing database; otherwise a missing database counts as empty.
    """
    file = DatabaseFile(config["path"])
    return DuckdbEndpoint(file, is_there=for_writing or Path(file.path).exists())


class DuckdbEndpoint:
    """An `Endpoint` of DuckDB.

    Args:
        file: the database.
        is_there: whether the file exists; otherwise the database is empty and in memory.
    """

    def __init__(self, file: DatabaseFile, *, is_there: bool) -> None:
        self._file = file
        self._stack = ExitStack()
        opened: AbstractContextManager[duckdb.DuckDBPyConnection] = file.opened() if is_there else duckdb.connect()
        self._connection = self._stack.enter_context(opened)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with translated(self._file.path):
            return self._connection.execute(sql, list(parameters)).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute the block in one transaction."""
        self.query("BEGIN")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            # Closing the connection rolls back a transaction that is not committed.
            self.close()
            raise

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """Return the current definition of a table."""
        name = path[-1]
        columns = {row[0]: ExistingColumn(*row) for row in self.query(_COLUMNS, [name])}
        return ExistingTable(columns, frozenset(column for (column,) in self.query(_KEY, [name]))) if columns else None

    def transfer(self, tables: Sequence[Table], fence: Fence) -> DuckdbTransfer:
        """Return a transfer, which opens the file only when needed."""
        self.close()
        return DuckdbTransfer(self._file, tables, fence)

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()


class DuckdbTransfer:
    """A `Transfer` into DuckDB.

    Args:
        file: the database.
        tables: tables of the rows.
        fence: the fence of their commits.
    """

    def __init__(self, file: DatabaseFile, tables: Sequence[Table], fence: Fence) -> None:
        self._file = file
        self._tables = tables
        self._fence = fence
        self._renew = renew(DUCKDB, fence)
        self._staged: list[tuple[str, pa.Table]] = []
        self._bytes = 0
        self._stack = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def load(self, index: int, keys: Columns) -> Iterator[bytes]:
        """Yield the documents of some keys."""
        table = self._tables[index]
        if not keys or table.document is None:
            return
        desired = _arrow(table.keys, keys)
        statement = (
            f"SELECT stored.{quote(table.document)} FROM {DUCKDB.table(table.path)} AS stored"
            f" JOIN ({_cast(table.keys)}) AS wanted ON {_matches(table)}"
            f" WHERE stored.{quote(table.document)} IS NOT NULL"
        )
        # Other processes may open the file while the documents are sent.
        with translated(self._file.path), self._file.opened() as connection:
            connection.register("staged", desired)
            rows = connection.execute(statement).fetchall()
        for (document,) in rows:
            yield document.encode()

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Stage rows to store, or keys to delete."""
        table = self._tables[index]
        name = DUCKDB.table(table.path)
        if change == "delete":
            statement = f"DELETE FROM {name} AS stored USING ({_cast(table.keys)}) AS wanted WHERE {_matches(table)}"
            self._staged.append((statement, _arrow(table.keys, columns)))
            return
        if table.document is not None:
            columns = [*columns[:-1], list(map(bytes.decode, columns[-1]))]
        rows = _arrow(table.columns, columns)
        self._staged.append((upsert(DUCKDB, table, _cast(table.columns)), rows))
        self._bytes += rows.nbytes
        if self._bytes > _MOST_BYTES:
            self._write()

    def commit(self, checkpoint: bytes) -> None:
        """Store the staged rows and the checkpoint in one transaction."""
        try:
            connection = self._write()
            with translated(self._file.path):
                renewed = connection.execute(self._renew, renewal(self._fence, checkpoint)).fetchall()
                if renewed != [(1,)]:
                    raise self._fence.lost()
                if self._fence.narrower:
                    connection.execute(supersede(DUCKDB, self._fence), self._fence.span)
                connection.execute("COMMIT")
        finally:
            self._end()

    def close(self) -> None:
        """Discard the staged rows."""
        self._staged.clear()
        self._end()

    def _write(self) -> duckdb.DuckDBPyConnection:
        """Write the staged rows, in the transaction of the next commit."""
        with translated(self._file.path):
            if self._connection is None:
                self._connection = self._stack.enter_context(self._file.opened())
                self._connection.execute("BEGIN")
            for statement, rows in _together(self._staged):
                self._connection.register("staged", rows)
                self._connection.execute(statement)
                self._connection.unregister("staged")
        self._staged.clear()
        self._bytes = 0
        return self._connection

    def _end(self) -> None:
        self._connection = None
        self._stack.close()


_ARROW = {"BOOLEAN": "bool", "BIGINT": "int64", "DOUBLE": "float64", "HUGEINT": "int64"}


def _arrow(columns: Sequence[Column], values: Columns) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for column, some in zip(columns, values, strict=True):
        try:
            arrays.append(pa.array(some, _ARROW.get(column.type, "string")))
        except (OverflowError, pa.ArrowInvalid):  # an integer beyond 64 bits is read from its digits
            arrays.append(pa.array([None if value is None else str(value) for value in some], "string"))
    return pa.table(arrays, names=[f"c{number}" for number in range(len(columns))])


def _together(staged: Sequence[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Yield each distinct statement once, with the rows of all its occurrences, because this is faster."""
    import pyarrow as pa

    tables: dict[tuple[str, str], list[pa.Table]] = {}
    for statement, rows in staged:
        tables.setdefault((statement, str(rows.schema)), []).append(rows)
    for (statement, _), some in tables.items():
        yield statement, pa.concat_tables(some)


def _cast(columns: Sequence[Column]) -> str:
    """Return a SELECT of the staged rows, cast to the types of their columns."""
    casts = ", ".join(f"c{number}::{column.type} AS c{number}" for number, column in enumerate(columns))
    return f"SELECT {casts} FROM staged"


def _matches(table: Table) -> str:
    pairs = (f"stored.{quote(column.name)} = wanted.c{number}" for number, column in enumerate(table.keys))
    return " AND ".join(pairs)
