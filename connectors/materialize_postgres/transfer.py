"""Rows on their way into PostgreSQL, and documents out of it.

Few rows wait in memory, and the commit is sent as one: what ends it is on its way before what begins it is answered.
So they take one journey to the server and back, and a process that is stopped meanwhile keeps no lock.

Many rows are sent as they come, in a transaction that is begun for them, by COPY: new ones into their table, others
into a temporary one, of which the commit makes one statement. A process that is stopped meanwhile does keep locks; who
takes over ends its connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from connectors.materialize_postgres.copy_text import copy_text
from connectors.materialize_postgres.dialect import POSTGRES
from connectors.materialize_postgres.failure import explain, translated
from connectors.materialize_postgres.staging import Staging
from connectors.materialize_sql.column import Table
from connectors.materialize_sql.endpoint import Change, Columns
from connectors.materialize_sql.fence import Fence, hold, renew, renewal

_FEW_ROWS = 200
_FEW_BYTES = 64 << 10
_MOST_BYTES = 64 << 20
"""How much is kept that could not be sent again."""

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
        self._hold = f"SELECT 1 / count(*) FROM ({hold(POSTGRES, fence)} FOR UPDATE) AS held"
        self._staging = [Staging(index, table) for index, table in enumerate(tables)]
        self._copying = _Copying(connection)

    def load(self, index: int, keys: Columns) -> Iterator[bytes]:
        """The documents of some keys."""
        statement, count = self._staging[index].select, len(keys[0]) if keys else 0
        with translated(self._where):
            for begin in range(0, count, _KEYS_AT_ONCE):
                some = [list(column[begin : begin + _KEYS_AT_ONCE]) for column in keys]
                for (document,) in self._connection.execute(statement, some):
                    yield document

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Take rows to store, or keys to delete."""
        staging = self._staging[index]
        if change == "delete":
            staging.deleted.append([list(column) for column in columns])
            return
        staging.add(columns, change)
        if staging.rows > _FEW_ROWS or staging.bytes > _FEW_BYTES:
            try:
                self._send(staging)
            except psycopg.Error as exc:
                raise self._failure(exc) from exc

    def commit(self, checkpoint: bytes) -> None:
        """Store what was staged and the checkpoint in one transaction."""
        try:
            self._copying.finish()
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                if not self._has_begun:
                    cursor.execute("BEGIN")
                cursor.execute(self._renew, renewal(self._fence, checkpoint))
                for staging in self._staging:
                    staging.write(cursor)
                cursor.execute("COMMIT")
        except psycopg.Error as exc:
            raise self._failure(exc) from exc

    def close(self) -> None:
        """Forget what is staged, and end the connection."""
        self._connection.close()

    @property
    def _has_begun(self) -> bool:
        return self._connection.info.transaction_status == TransactionStatus.INTRANS

    def _send(self, staging: Staging) -> None:
        """Send many rows, in the transaction of the commit to come."""
        if not (self._copying or self._has_begun):
            self._connection.execute("BEGIN")
            # The checkpoint's row is locked from here on, so that who takes over waits, or ends this.
            self._connection.execute(self._hold, renewal(self._fence, b"")[1:])
        new, others = staging.take()
        if new:
            self._copying.write(staging, copy_text(new))
        if others:
            self._copying.finish()
            staging.create(self._connection)
            with self._connection.cursor() as cursor, cursor.copy(staging.copy_temporary) as copy:
                copy.write(copy_text(others))

    def _failure(self, exc: psycopg.Error) -> Exception:
        self._copying.abandon()
        if not self._connection.closed:
            self._connection.rollback()
        return self._fence.lost() if isinstance(exc, psycopg.errors.DivisionByZero) else explain(self._where, exc)


class _Copying:
    """COPY of new rows into one table at a time, which goes on while more of them come.

    Rows of a key that is there after all would be refused; so what was sent is kept until that is known, and is sent
    again, as rows that replace others.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._staging: Staging | None = None
        self._copy: psycopg.Copy | None = None
        self._stack = ExitStack()
        self._sent: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return self._copy is not None

    def write(self, staging: Staging, text: bytes) -> None:
        """Send rows of a table."""
        if self._staging is not staging or self._bytes > _MOST_BYTES:
            self.finish()
        if self._copy is None:
            self._connection.execute("SAVEPOINT new_rows")
            self._staging = staging
            cursor = self._stack.enter_context(self._connection.cursor())
            self._copy = self._stack.enter_context(cursor.copy(staging.copy))
        self._sent.append(text)
        self._bytes += len(text)
        self._copy.write(text)

    def finish(self) -> None:
        """Wait until all rows that were sent are stored."""
        staging, sent = self._staging, self._sent
        if staging is None:
            return
        self._staging, self._copy, self._sent, self._bytes = None, None, [], 0
        try:
            self._stack.close()
            self._connection.execute("RELEASE new_rows")
        except psycopg.errors.UniqueViolation:
            self._connection.execute("ROLLBACK TO new_rows")
            staging.create(self._connection)
            with self._connection.cursor() as cursor, cursor.copy(staging.copy_temporary) as copy:
                for text in sent:
                    copy.write(text)

    def abandon(self) -> None:
        """Forget what was sent; its transaction is rolled back."""
        self._staging, self._copy, self._sent, self._bytes = None, None, [], 0
        with suppress(psycopg.Error):
            self._stack.close()
