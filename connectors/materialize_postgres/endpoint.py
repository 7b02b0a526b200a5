"""A connection to a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from connectors.materialize_postgres.failure import translated
from connectors.materialize_postgres.transfer import PostgresTransfer
from connectors.materialize_sql.column import ExistingColumn, ExistingTable, Table
from connectors.materialize_sql.endpoint import Fence
from derive.errors import EndpointError

_PATIENCE = 10
"""Seconds to wait for a server that does not answer."""

_LONG = "60s"
"""Maximum wait for a lock."""

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, coalesce(col_description(c.oid, a.attnum), ''),
  a.atthasdef OR a.attidentity <> '', coalesce(a.attnum = ANY (i.indkey), false), c.relkind::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = $1 AND c.relname = $2
ORDER BY a.attnum
"""


def connect(config: Any, *, for_writing: bool) -> PostgresEndpoint:
    """Return a connection to the database of a configuration.

    Args:
        config: configuration that satisfies the connector's schema.
        for_writing: not used.
    """
    host, port = _address(config["address"])
    database = config.get("database", config["user"])
    where = f"database '{database}' at {config['address']}"

    def connection() -> psycopg.Connection[Any]:
        opened = psycopg.connect(
            host=host,
            port=port,
            user=config["user"],
            password=config["password"],
            dbname=database,
            sslmode=config.get("sslmode", "prefer"),
            connect_timeout=_PATIENCE,
            keepalives_idle=30,
            application_name="materialize-postgres",
            client_encoding="UTF8",
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
        )
        opened.execute(f"SET lock_timeout = '{_LONG}'")
        return opened

    with translated(where):
        return PostgresEndpoint(where, connection)


def _address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if address.startswith("/") or not colon or address.endswith("]"):
        return address.strip("[]"), 5432
    if not port.isdecimal():
        raise EndpointError(f"the address '{address}' has no port after its colon", hint="write host:port")
    return host.strip("[]"), int(port)


class PostgresEndpoint:
    """An `Endpoint` of PostgreSQL.

    Args:
        where: name of the database in messages.
        connect: function that opens a connection in autocommit mode.
    """

    def __init__(self, where: str, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._where = where
        self._connect = connect
        self._connection = connect()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with translated(self._where):
            cursor = self._connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute the block in one transaction."""
        with translated(self._where), self._connection.transaction():
            yield

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """Return the current definition of a table."""
        rows = self.query(_COLUMNS, path)
        if not rows:
            return None
        if rows[0][-1] not in ("r", "p"):
            raise EndpointError(f"'{'.'.join(path)}' in {self._where} is no table", hint="name another one")
        columns = {
            name: ExistingColumn(name, of, not_null, comment, has_default)
            for name, of, not_null, comment, has_default, _, _ in rows
            if name is not None
        }
        return ExistingTable(columns, frozenset(row[0] for row in rows if row[5]))

    def transfer(self, tables: Sequence[Table], fence: Fence) -> PostgresTransfer:
        """Return a transfer of rows."""
        return PostgresTransfer(self._where, self._connection, self._connect, tables, fence)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
