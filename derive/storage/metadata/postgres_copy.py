"""Copies of metadata in PostgreSQL: the tables of a schema, and schemas that only one process uses.

Each connection to a schema holds a shared lock, and a copy holds the exclusive lock. So a copy begins only if no other
process is connected, and processes that connect meanwhile wait for its end.

A schema that is being written, or was moved, has the version `NOT_IN_USE`, which every process refuses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg.sql import SQL, Identifier, Literal

from derive.errors import BusyError, UsageError
from derive.failpoint import reach
from derive.storage.metadata.place import Place
from derive.storage.metadata.postgres import (
    connect,
    create_tables,
    has_tables,
    opening,
)
from derive.storage.metadata.postgres_pipeline import Connection
from derive.storage.metadata.postgres_tables import DROP, NAMES, NOT_IN_USE, PROTOCOL
from derive.storage.metadata.postgres_transaction import PostgresTransaction
from derive.storage.metadata.table_copy import CopiedTable, Progress, Row, Tables, copy_tables, raise_epochs

_PATIENCE = 60_000
_TRIES, _PAUSE_SECONDS = 20, 0.1
"""Tries to get the exclusive lock, because the server notices late that a process was killed."""

_WAITING = threading.Event()
_FETCHED = 5_000
"""Number of rows that a cursor fetches at once."""

_USERS = """
SELECT DISTINCT coalesce(application_name, 'a process of another user'), coalesce(host(client_addr), 'a local socket')
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND (classid::bigint << 32) | objid::bigint = hashtextextended('flowctl uses ' || %s, 0)
ORDER BY 1, 2
"""


class PostgresTables:
    """The tables of a schema; see `Tables`.

    Args:
        connection: a connection with an open transaction, whose search path is the schema.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The other database may work for long between two statements.
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")

    def columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns of each table."""
        columns: dict[str, list[str]] = {}
        for table, column in self._connection.execute(
            "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
            " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND attnum > 0"
            " AND NOT attisdropped AND relname = ANY(%s) ORDER BY relname, attnum",
            (NAMES,),
        ):
            columns.setdefault(str(table), []).append(str(column))
        return columns

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows of a table."""
        with self._connection.cursor("rows") as cursor:
            cursor.itersize = _FETCHED
            yield from cursor.execute(SQL("SELECT {} FROM {}").format(_names(columns), Identifier(table)))

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return int(_one(self._connection, SQL("SELECT count(*) FROM {}").format(Identifier(table))))

    def replace(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Replace all rows of a table; new numbers of its rows are above all present ones."""
        name = Identifier(table)
        self._connection.execute(SQL("DELETE FROM {}").format(name))
        statement = SQL("COPY {} ({}) FROM STDIN").format(name, _names(columns))
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
        numbered = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attidentity <> ''"
        for (column,) in self._connection.execute(numbered, (f'"{table}"',)).fetchall():
            last = SQL("SELECT setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 0) + 1, false) FROM {}")
            self._connection.execute(last.format(Literal(f'"{table}"'), Literal(column), Identifier(column), name))


def _names(columns: Sequence[str]) -> Any:
    return SQL(", ").join(map(Identifier, columns))


def _one(connection: Connection, statement: Any) -> Any:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row[0]


@dataclass(frozen=True, slots=True)
class Schema:
    """The metadata in a schema.

    Attributes:
        identifier: identifier of the data folder.
        commits: count of commits.
        protocol: version of the tables.
    """

    identifier: str
    commits: int
    protocol: int


@contextmanager
def used_alone(place: Place) -> Iterator[Connection]:
    """Yield a connection while no other process uses the metadata at a place.

    Raises:
        BusyError: other processes use it.
        StorageError: the place cannot be used.
    """
    with opening(place), connect(place, _PATIENCE) as connection:
        lock = f"SELECT pg_try_advisory_lock(hashtextextended('flowctl uses {place.schema}', 0))"
        if not any(_one(connection, lock.encode()) or _WAITING.wait(_PAUSE_SECONDS) for _ in range(_TRIES)):
            users = [f"{name} ({address})" for name, address in connection.execute(_USERS, (place.schema,))]
            raise BusyError(
                f"the metadata at {place.shown} are in use: {', '.join(users) or 'by a process that has just ended'}",
                hint="stop these processes, and run the command again",
            )
        yield connection


def find_schema(connection: Connection, place: Place) -> Schema | None:
    """Return the metadata at a place; None if it has no tables."""
    if not has_tables(connection, place):
        return None
    row = connection.execute("SELECT id, commits, protocol FROM folder").fetchone()
    assert row is not None
    return Schema(*row)


def require_place(schema: Schema | None, place: Place, identifier: str, *, replaces: bool = False) -> None:
    """Raise an error unless a place is free for the metadata of a data folder.

    Args:
        schema: the metadata at the place; None for none.
        place: the place.
        identifier: identifier of the data folder.
        replaces: whether to replace metadata of this data folder that are in use.

    Raises:
        UsageError: the place has metadata.
    """
    if schema is None:
        return
    if schema.identifier != identifier or not (replaces or schema.protocol == NOT_IN_USE):
        raise UsageError(
            f"{place.shown} has the metadata of the data folder {schema.identifier}",
            hint="name another schema, such as ?schema=shop; or leave the database out",
        )


def fill(
    connection: Connection,
    place: Place,
    source: Tables,
    identity: tuple[str, int],
    progress: Progress = lambda done, total: None,
) -> list[CopiedTable]:
    """Write the tables at a place in one transaction; they are not in use until `activate`.

    Args:
        connection: result of `used_alone`.
        place: the place; its tables are replaced.
        source: the original, which does not change meanwhile.
        identity: identifier of the data folder, and count of commits.
        progress: called with the number of copied rows, and of all rows.

    Raises:
        StorageError: the copy differs from the original.
    """
    with connection.transaction():
        if has_tables(connection, place):
            connection.execute(DROP.encode())
        create_tables(connection, place)
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        copied = copy_tables(source, PostgresTables(connection), progress)
        db = PostgresTransaction(connection)
        raise_epochs(db)
        db.send()
        connection.execute("UPDATE folder SET id = %s, commits = %s, protocol = %s", (*identity, NOT_IN_USE))
        reach("move.filled")
    return copied


def activate(connection: Connection) -> None:
    """Let processes use the tables that `fill` has written."""
    connection.execute("UPDATE folder SET protocol = %s", (PROTOCOL,))


def deactivate(connection: Connection) -> None:
    """Make all processes refuse the tables, in a transaction."""
    connection.execute("UPDATE folder SET protocol = %s", (NOT_IN_USE,))
