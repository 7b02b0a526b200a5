"""What a session gives for a statement: what is known before it runs, and its outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from derive.algebra.form import Form
from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result.

    Attributes:
        name: as clients see it.
        type: in whose form the data are.
        oid: of the type that clients are told, which may be narrower (such as `name` for text).
        form: what is known of it beyond its type.
    """

    name: str
    type: Type
    oid: int
    form: Form | None = None

    @property
    def modifier(self) -> int:
        """Of the type, as PostgreSQL has it; -1 for none."""
        return self.form.modifier if self.form else -1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that was understood.

    Attributes:
        text: of the statement; empty for none.
        parameters: oids of `$1` and so on.
        columns: of its result; None if it has none.
        plan: what the session knows of it.
    """

    text: str
    parameters: tuple[int, ...]
    columns: tuple[ResultColumn, ...] | None
    plan: object = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that clients are told, and that is no error.

    Attributes:
        severity: `NOTICE`, `WARNING`, `INFO` or `LOG`.
        sqlstate: five characters, as PostgreSQL has them.
        message: what happened.
        hint: what to do about it.
    """

    severity: str
    sqlstate: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class CopyOut:
    """How the rows of `COPY … TO STDOUT` are written.

    Attributes:
        lines: makes a line of each row, with its end.
        header: a line before all; None if there is none.
        end: gives what is behind all rows; None if nothing is.
        is_binary: whether values are in binary form.
    """

    lines: Callable[[Sequence[Row]], Sequence[bytes]]
    header: bytes | None = None
    end: Callable[[], bytes] | None = None
    is_binary: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a statement.

    Attributes:
        tag: the command tag, for how many rows were sent.
        columns: of the rows; None if there are none.
        rows: in batches; closed by whoever reads them, also before their end.
        copy_out: for `COPY … TO STDOUT`, how rows are written; None for other statements.
        copy_in: for `COPY … FROM STDIN`, takes what the client sends, in pieces of any size, and returns how many rows
            they were; None for other statements.
        is_binary: whether that is to be in binary form.
        is_prompt: whether each batch is sent at once, as those of a subscription.
        notices: what clients are told before its rows.
        has_happened: whether the statement was a transaction by itself that is committed, for good.
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
    """What a session says of its transaction; the values are those of the PostgreSQL protocol."""

    IDLE = b"I"
    OPEN = b"T"
    FAILED = b"E"


class Session(Protocol):
    """One client's conversation in SQL. Its methods are called one after the other, but for `cancel`.

    All may raise `SqlError`, and be cancelled.
    """

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""

    @property
    def parameters(self) -> dict[str, str]:
        """What clients are told of settings, by name, as PostgreSQL's `ParameterStatus`."""

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        """How many seconds a client may leave the session as it is, and what it is told then; None for any time."""

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        """The statements of a text, each behind where it begins, in characters; without the empty ones."""

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Understand one statement.

        Args:
            text: of the statement; empty for none.
            oids: types of its parameters that the client has named; 0 for one that it leaves open.
        """

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Begin to carry out a statement.

        Args:
            prepared: the statement.
            arguments: a datum for each of its parameters.
        """

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        """Carry out a statement that is a transaction by itself, where there is nothing to wait for.

        Nothing has changed after it, as statements that this carries out only read.

        Args:
            prepared: the statement.
            arguments: a datum for each of its parameters.

        Returns:
            All its rows, under a tag that begins with `SELECT`; None if `execute` is to carry it out, as it may have to
            wait or may fail.
        """

    async def begin_implicit(self) -> None:
        """What follows, up to `end_implicit`, is one transaction unless one is open."""

    async def end_implicit(self) -> None:
        """Commit what is not part of an explicit transaction."""

    async def fail(self) -> None:
        """A statement, or the sending of its result, has failed: roll back, or mark the open transaction as failed."""

    def cancel(self) -> None:
        """Have the statement at work end with an error; from any thread."""

    async def close(self) -> None:
        """The client is gone: roll back, and give back all that is held."""
