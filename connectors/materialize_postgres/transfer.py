"""Rows on their way into PostgreSQL, and documents out of it.

Few rows wait in memory, and the commit is sent as one: what ends it is on its way before what begins it is answered.
So they take one journey to the server and back, and a process that is stopped meanwhile keeps no lock.

Many rows are sent as they come, in a transaction that is begun for them, by COPY: new ones into their table, others
into a temporary one, from where one statement takes them. A thread does that, so that the next rows are made while the
server stores these. A process that is stopped meanwhile does keep locks; who takes over ends its connection.

Many documents are loaded by a second connection while the commit before has the first one: of keys that are being
committed, none is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from connectors.materialize_postgres.copy_text import array_text, copy_text
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

_KEYS_AT_ONCE = 4_000
_MOST_AHEAD_BYTES = 16 << 20
"""How much is loaded before it is asked for."""

_MOST_SENT = 2
"""How many parts of what is stored are on their way at most."""

_CANCEL_SECONDS = 5.0


class PostgresTransfer:
    """Fulfils `Transfer`.

    Args:
        where: the database, for messages.
        connection: a connection to it.
        another: opens one more.
        tables: whose rows are moved.
        fence: the right to commit them.
    """

    def __init__(
        self,
        where: str,
        connection: psycopg.Connection[Any],
        another: Callable[[], psycopg.Connection[Any]],
        tables: Sequence[Table],
        fence: Fence,
    ) -> None:
        self._where = where
        self._connection = connection
        self._another = another
        self._reading: psycopg.Connection[Any] | None = None
        self._fence = fence
        self._renew = f"WITH renewed AS ({renew(POSTGRES, fence)} RETURNING 1) SELECT 1 / count(*) FROM renewed"
        self._hold = f"SELECT 1 / count(*) FROM ({hold(POSTGRES, fence)} FOR UPDATE) AS held"
        self._staging = [Staging(index, table) for index, table in enumerate(tables)]
        self._copying = _Copying(connection)
        self._sender = ThreadPoolExecutor(1, "send")
        self._sent: deque[Future[None]] = deque()

    def load(self, index: int, keys: Columns) -> Iterable[bytes]:
        """The documents of some keys: of many, the first ones are loaded at once, and the others as they are taken."""
        many = bool(keys) and len(keys[0]) > _FEW_ROWS
        if many and self._reading is None:
            with suppress(psycopg.OperationalError):  # where the server has no connection to spare, it takes turns
                self._reading = self._another()
        if not many or self._reading is None:
            return self._load(index, keys, self._connection)
        documents = self._load(index, keys, self._reading)
        ahead, size = [], 0
        for document in documents:
            ahead.append(document)
            size += len(document)
            if size > _MOST_AHEAD_BYTES:
                break
        return chain(ahead, documents)

    def _load(self, index: int, keys: Columns, by: psycopg.Connection[Any]) -> Iterator[bytes]:
        statement, count = self._staging[index].select, len(keys[0]) if keys else 0
        with translated(self._where):
            for begin in range(0, count, _KEYS_AT_ONCE):
                some = [array_text(column[begin : begin + _KEYS_AT_ONCE]) for column in keys]
                for (document,) in by.execute(statement, some, binary=True):
                    yield document

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Take rows to store, or keys to delete."""
        staging = self._staging[index]
        if change == "delete":
            staging.deleted.append([*map(array_text, columns)])
            return
        staging.add(columns, change)
        if staging.rows > _FEW_ROWS or staging.bytes > _FEW_BYTES:
            self._await_sent(_MOST_SENT - 1)
            new, others = (None if some is None else copy_text(some) for some in staging.take())
            self._sent.append(self._sender.submit(self._send, staging, new, others))

    def commit(self, checkpoint: bytes) -> None:
        """Store what was staged and the checkpoint in one transaction."""
        self._await_sent(0)
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
        """Forget what is staged, and end the connections."""
        if any(not sent.done() for sent in self._sent):
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self._sender.shutdown(cancel_futures=True)
        self._connection.close()
        if self._reading is not None:
            self._reading.close()

    @property
    def _has_begun(self) -> bool:
        return self._connection.info.transaction_status == TransactionStatus.INTRANS

    def _await_sent(self, most: int) -> None:
        """Wait until no more than so many parts are on their way."""
        while len(self._sent) > most:
            try:
                self._sent.popleft().result()
            except psycopg.Error as exc:
                self._sent.clear()
                raise self._failure(exc) from exc

    def _send(self, staging: Staging, new: bytes | None, others: bytes | None) -> None:
        """Send many rows, in the transaction of the commit to come."""
        if not (self._copying or self._has_begun):
            self._connection.execute("BEGIN")
            # The checkpoint's row is locked from here on, so that who takes over waits, or ends this.
            self._connection.execute(self._hold, renewal(self._fence, b"")[1:])
        if new:
            self._copying.write(staging, new)
        if others:
            self._copying.finish()
            staging.copy_others(self._connection, [others])

    def _failure(self, exc: psycopg.Error) -> Exception:
        self._sender.submit(self._copying.abandon).result()
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
            staging.copy_others(self._connection, sent)

    def abandon(self) -> None:
        """Forget what was sent; its transaction is rolled back."""
        self._staging, self._copy, self._sent, self._bytes = None, None, [], 0
        with suppress(psycopg.Error):
            self._stack.close()
