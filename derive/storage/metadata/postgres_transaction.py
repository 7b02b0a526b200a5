"""Transactions of PostgreSQL, whose statements travel together.

A statement waits until its rows are used, or until the commit, and then travels with all waiting statements in one
round trip (pipeline mode). So a transaction takes one round trip for each result that decides the next statement.

A repeatable transaction also assumes results: that an expected row exists, and that a recalled result is the previous
one. The server checks each assumption in the place of its query, and a wrong assumption ends the transaction there. So
a repeatable transaction takes one round trip in all if its assumptions are right, and commits nothing otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import psycopg
from psycopg import errors

from derive.recently_used import RecentlyUsed
from derive.storage.metadata.postgres_pipeline import Connection, Statement, Take
from derive.storage.metadata.postgres_tables import POSTGRES

_MOST_WAITING = 4_096
"""Number of statements that wait at most."""

_FIRST_PORTION, _PORTION = 512, 8_192
"""Numbers of rows that a stream reads at once: at first, and later."""

_MOST_RECALLED = 1_024
"""Number of recalled results."""


class AssumptionError(Exception):
    """A repeatable transaction has assumed a wrong result; nothing was committed."""


class LostRowsError(Exception):
    """A transaction was committed, but rows were lost with the connection, and cannot be read again."""


class ServerClock:
    """The clock of the server, by the last reading and the clock of this machine."""

    def __init__(self) -> None:
        self._ahead = 0

    def set(self, now: int) -> None:
        """Set the present time of the server, microseconds since the Unix epoch."""
        self._ahead = now - time.monotonic_ns() // 1000

    def now(self) -> int:
        """Return the present time of the server, microseconds since the Unix epoch."""
        return self._ahead + time.monotonic_ns() // 1000


@dataclass(frozen=True, slots=True)
class Recalled:
    """The last result of a query.

    Attributes:
        rows: the rows.
        text: the rows as the server writes them, by which it compares them.
        is_steady: whether the result has not changed since the previous look.
    """

    rows: Sequence[tuple[Any, ...]]
    text: str
    is_steady: bool


class Memory:
    """Results of queries that rarely change."""

    def __init__(self) -> None:
        self._results: RecentlyUsed[tuple[str, tuple[Any, ...]], Recalled] = RecentlyUsed(_MOST_RECALLED)

    def steady(self, statement: str, values: Sequence[Any]) -> Recalled | None:
        """Return the last result of a query; None if it is unknown, or has changed lately."""
        known = self._results.get((statement, tuple(values)))
        return known if known is not None and known.is_steady else None

    def put(self, statement: str, values: Sequence[Any], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """Record and return the result of a query, whose rows end with their texts."""
        key, text = (statement, tuple(values)), "\n".join(row[-1] for row in rows)
        before = self._results.get(key)
        result = Recalled([row[:-1] for row in rows], text, before is None or before.text == text)
        return self._results.put(key, result).rows


class PostgresRows:
    """The rows of a statement; see `Rows`. The first use sends the statement.

    Args:
        send: sends the waiting statements.
        again: returns the rows if they were lost.
    """

    __slots__ = ("_again", "_rows", "_send")

    def __init__(self, send: Callable[[], None], again: Callable[[], Iterable[Any]]) -> None:
        self._send, self._again = send, again
        self._rows: Iterator[Any] | None = None

    def fill(self, rows: Iterable[Any]) -> None:
        """Set the rows."""
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Any]:
        if self._rows is None:
            self._send()
        if self._rows is None:
            self._rows = iter(self._again())
        return self._rows

    @property
    def get(self) -> Any:
        """Return the value of a single row with a single column; None without rows."""
        row = self.fetchone()
        return None if row is None else row[0]

    def fetchone(self) -> Any:
        """Return the next row; None after the last row."""
        return next(iter(self), None)

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        return list(self)


@cache
def _checked(statement: str) -> str:
    """Return a statement that divides by zero if a query has no row."""
    return f"SELECT 1 / (EXISTS ({statement}))::int"


@cache
def _compared(statement: str) -> str:
    """Return a statement that divides by zero if a query has another result than the text of its first parameter."""
    return f"SELECT 1 / (coalesce(string_agg(t::text, chr(10)), '') = ?)::int FROM ({statement}) AS t"


@cache
def _with_texts(statement: str) -> str:
    return f"SELECT t.*, t::text FROM ({statement}) AS t"


class PostgresTransaction:
    """A transaction of PostgreSQL; see `Transaction`.

    Args:
        connection: the connection.
        clock: clock of the server; None if the time is not used.
        memory: results of earlier transactions; None for none.
        reconnect: returns another connection after the first one broke while it was idle; None to raise an error.
        assumes: whether the transaction assumes results, because it can be repeated.

    Attributes:
        clock: clock of the server.
        assumes: the argument `assumes`.
    """

    dialect = POSTGRES

    def __init__(
        self,
        connection: Connection,
        clock: ServerClock | None = None,
        memory: Memory | None = None,
        reconnect: Callable[[], Connection] | None = None,
        *,
        assumes: bool = False,
    ) -> None:
        self.clock, self.assumes = clock or ServerClock(), assumes
        self._connection, self._memory, self._reconnect = connection, memory or Memory(), reconnect
        self._waiting: list[Statement] = []
        self._streams = 0
        self._is_begun = False

    def now(self) -> int:
        """Return the time of the server, microseconds since the Unix epoch."""
        return self.clock.now()

    def add(self, statement: str, values: Sequence[Any] = (), take: Take | None = None) -> None:
        """Let a statement wait; its rows are passed to `take`."""
        if len(self._waiting) >= _MOST_WAITING:
            self.send()
        self._waiting.append((statement, values, take))

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> PostgresRows:
        """Execute a statement when its rows are used, or with a later statement."""
        rows = PostgresRows(self.send, partial(self._execute_again, statement, values))
        self.add(statement, values, rows.fill)
        return rows

    def _execute_again(self, statement: str, values: Sequence[Any]) -> Iterable[Any]:
        """Return the rows of a query that was lost with the connection, after the commit."""
        if not statement.startswith("SELECT"):
            raise LostRowsError
        rows: list[Any] = []
        try:
            self._connection.execute_together([(statement, values, rows.extend)])
        except psycopg.OperationalError as exc:  # which must not say that nothing was committed
            raise LostRowsError from exc
        return rows

    def end_elsewhere(self, connection: Connection) -> None:
        """Continue with another connection, because the first one broke during the commit."""
        self._connection = connection

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute a statement without a result for each sequence of values, like `execute`."""
        for row in rows:
            self.add(statement, row)

    def expect(self, statement: str, values: Sequence[Any] = (), /) -> bool:
        """Return true if a query has a row; see `Transaction`."""
        if not self.assumes:
            return self.execute(statement, values).fetchone() is not None
        self.add(_checked(statement), values)
        return True

    def recall(self, statement: str, values: Sequence[Any] = (), /) -> PostgresRows:
        """Execute a query whose result rarely changes; see `Transaction`."""
        rows = PostgresRows(self.send, partial(self._execute_again, statement, values))
        known = self._memory.steady(statement, values) if self.assumes else None
        if known is None:
            self.add(_with_texts(statement), values, lambda new: rows.fill(self._memory.put(statement, values, [*new])))
        else:
            self.add(_compared(statement), (known.text, *values))
            rows.fill(known.rows)
        return rows

    def stream(self, statement: str, values: Sequence[Any] = (), /) -> PostgresRows:
        """Execute a query with many rows, which are read in portions."""
        self._streams += 1
        name = f"stream_{self._streams}"
        self.add(f"DECLARE {name} NO SCROLL CURSOR FOR {statement}", values)
        rows = PostgresRows(self.send, tuple)
        first = self.execute(f"FETCH {_FIRST_PORTION} FROM {name}")
        rows.fill(self._portions(name, first))
        return rows

    def _portions(self, name: str, first: PostgresRows) -> Iterator[Any]:
        portion, most = first.fetchall(), _FIRST_PORTION
        while portion:
            yield from portion
            if len(portion) < most:
                return
            most = _PORTION
            portion = self.execute(f"FETCH {most} FROM {name}").fetchall()

    def defer_references(self) -> None:
        """Check references to names of collections at the commit, so that a collection can be renamed."""
        self.add("SET CONSTRAINTS ALL DEFERRED")

    def send(self, *, commits: bool = False) -> None:
        """Send the waiting statements, and perhaps the commit, in one round trip.

        Raises:
            AssumptionError: an assumption is wrong.
        """
        waiting, self._waiting = self._waiting, []
        if commits:
            waiting.append(("COMMIT", (), None))
        if not waiting:
            return
        can_repeat = not self._is_begun and not commits
        self._is_begun = True
        self._send(waiting, can_repeat=can_repeat)

    def _send(self, statements: Sequence[Statement], *, can_repeat: bool) -> None:
        """Send statements; `can_repeat` if they are the first ones, and do not commit."""
        try:
            self._connection.execute_together(statements)
        except errors.DivisionByZero as exc:
            raise AssumptionError from exc
        except psycopg.OperationalError:
            if self._reconnect is None or not can_repeat or not self._connection.closed:
                raise
            self._connection = self._reconnect()
            self._send(statements, can_repeat=False)
