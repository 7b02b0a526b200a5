"""Prepared statements and results of a session, and rows that a thread computes while the event loop continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from derive.algebra.types import Datum, Row, Type, TypeModifier
from derive.errors import SqlError

_END = object()


async def in_thread(
    batches: Iterator[list[Row]], stop: Callable[[], None], executor: Executor | None = None
) -> AsyncGenerator[Sequence[Row]]:
    """Yield batches of rows, each computed in a thread.

    Args:
        batches: generator, which is closed at the end.
        stop: function that makes the generator end soon, after a cancellation.
        executor: threads that only these rows use, and that end with the rows; None for the shared threads.
    """
    loop = asyncio.get_running_loop()
    with closing(_Closing(batches, executor)) as held:
        while True:
            taking = loop.run_in_executor(executor, next, held.batches, _END)
            try:
                batch = await asyncio.shield(taking)
            except asyncio.CancelledError:
                stop()
                await _ended(taking)
                raise
            if batch is _END:
                return
            yield cast(Sequence[Row], batch)


async def _ended(taking: asyncio.Future[object]) -> None:
    """Wait until an uninterruptible step has ended, even if the task is cancelled; its error is of no interest."""
    task = asyncio.current_task()
    while not taking.done():
        try:
            await asyncio.wait([taking])
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()
    if not taking.cancelled():
        taking.exception()  # otherwise the loop would print the error of the cancelled statement


class _Closing:
    def __init__(self, batches: Iterator[list[Row]], executor: Executor | None) -> None:
        self.batches, self._executor = batches, executor

    def close(self) -> None:
        if hasattr(self.batches, "close"):
            self.batches.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False)


class ReadyRows(AsyncIterator[Sequence[Row]]):
    """Rows that are ready: one batch, which is returned without awaiting."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def take(self) -> Sequence[Row]:
        """Return all remaining rows."""
        rows, self._rows = self._rows, ()
        return rows

    async def __anext__(self) -> Sequence[Row]:
        if rows := self.take():
            return rows
        raise StopAsyncIteration


def of_rows(rows: Sequence[Row]) -> ReadyRows:
    """Return rows as an asynchronous iterator that never waits."""
    return ReadyRows(rows)


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A result column.

    Attributes:
        name: name for clients.
        type: type of the data.
        oid: oid of the type for clients, which may be narrower (such as `name` for text).
        modifier: type modifier.
        table: oid of the relation whose column the result column shows unchanged; 0 for none.
        number: number of this column, from 1 on; 0 for none.
    """

    name: str
    type: Type
    oid: int
    modifier: TypeModifier | None = None
    table: int = 0
    number: int = 0

    @property
    def typmod(self) -> int:
        """Return PostgreSQL's type modifier; -1 if missing."""
        return self.modifier.typmod if self.modifier else -1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared statement.

    Attributes:
        text: text of the statement; may be empty.
        parameters: oids of `$1` and so on.
        columns: result columns; None without a result.
        plan: the session's plan.
        zone: time zone of the session; None for UTC.
    """

    text: str
    parameters: tuple[int, ...]
    columns: tuple[ResultColumn, ...] | None
    plan: object = None
    zone: str | None = None


class ChangedResultError(SqlError):
    """A statement has other result columns, or other parameters, than when it was prepared."""

    def __init__(self) -> None:
        super().__init__("0A000", "cached plan must not change result type", hint="Prepare the statement again.")


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice for clients; a notice is not an error.

    Attributes:
        severity: `NOTICE`, `WARNING`, `INFO` or `LOG`.
        sqlstate: SQLSTATE, five characters.
        message: message.
        hint: hint; None if missing.
    """

    severity: str
    sqlstate: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The encoder of rows for `COPY … TO STDOUT`.

    Attributes:
        lines: encodes each row as a line with its end.
        header: first line; None if missing.
        end: returns the trailer after all rows; None if missing.
        is_binary: whether the format is binary.
    """

    lines: Callable[[Sequence[Row]], Sequence[bytes]]
    header: bytes | None = None
    end: Callable[[], bytes] | None = None
    is_binary: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a statement.

    Attributes:
        tag: returns the command tag for a number of rows.
        columns: result columns; None without rows.
        rows: rows in batches; the reader closes the iterator, also before its end.
        copy_out: encoder for `COPY … TO STDOUT`; None for other statements.
        copy_in: for `COPY … FROM STDIN`, reads the client's data in pieces of any size, and returns the number of rows;
            None for other statements.
        is_binary: whether the client's data are binary.
        is_prompt: whether each batch is sent at once, as for a subscription.
        notices: notices before the rows.
        has_happened: whether the statement was a transaction, which is committed.
    """

    tag: Callable[[int], str]
    columns: tuple[ResultColumn, ...] | None = None
    rows: AsyncIterator[Sequence[Row]] | None = None
    copy_out: CopyOut | None = None
    copy_in: Callable[[AsyncIterator[bytes]], Awaitable[int]] | None = None
    is_binary: bool = False
    is_prompt: bool = False
    notices: Sequence[Notice] = ()
    has_happened: bool = False


class TransactionStatus(Enum):
    """The status of a session's transaction; the values are the codes of the PostgreSQL protocol."""

    IDLE = b"I"
    OPEN = b"T"
    FAILED = b"E"


class Session(Protocol):
    """A client's session. Its methods are called one after the other, except for `cancel`.

    All methods may raise `SqlError`, and may be cancelled.
    """

    @property
    def status(self) -> TransactionStatus:
        """Return the status of the transaction."""

    @property
    def parameters(self) -> dict[str, str]:
        """Return the settings that are reported to clients as `ParameterStatus`, by name."""

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        """Return the idle timeout in seconds, and its error; None if missing."""

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        """Return the statements of a text, without empty statements, and their offsets in characters."""

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Prepare one statement.

        Args:
            text: text of the statement; may be empty.
            oids: parameter types from the client; 0 for an unspecified one.
        """

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Execute a statement.

        Args:
            prepared: the statement.
            arguments: a datum for each parameter.
        """

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        """Execute a point lookup on the fast path, without awaiting, as a transaction of its own.

        The lookup only reads, so it changes no state.

        Args:
            prepared: the statement.
            arguments: a datum for each parameter.

        Returns:
            All rows, under a tag that begins with `SELECT`; None if `execute` must execute the statement, because it
            may wait or fail.
        """

    def inserts_at_once(self, prepared: Prepared) -> bool:
        """Return whether `insert` takes a statement now."""

    def insert(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Execute an INSERT of a row without awaiting, as `execute` does."""

    async def begin_implicit(self) -> None:
        """Begin an implicit transaction up to `end_implicit`, unless a transaction is open."""

    async def end_implicit(self) -> None:
        """Commit the implicit transaction."""

    async def fail(self) -> None:
        """Handle the failure of a statement or of its delivery: roll back, or mark the open transaction as failed."""

    def cancel(self) -> None:
        """Cancel the current statement; from any thread."""

    async def close(self) -> None:
        """Close the session: roll back, and release all resources."""
