"""The connection to a database, and fences: the rows that refuse former sessions.

The table of checkpoints is in the same database as the rows, so that one transaction changes both. A session that opens
a range raises the fences of all overlapping ranges. A commit checks its own fence; if the fence was raised, the commit
stores nothing.

- A new range within a range with a checkpoint belongs to a split shard. It continues from this checkpoint, because a
  new start would reduce documents twice.
- A new range around other ranges means that the number of shards has decreased. Its first commit deletes the rows of
  the other ranges, whose checkpoints are then outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from connectors.kit.connector import BEGIN_FROM_NOTHING
from connectors.materialize_sql.column import ExistingTable, Kind, Table, quote
from connectors.materialize_sql.dialect import Dialect
from derive.errors import EndpointError, FencedError, FlowError

E = TypeVar("E", bound=Exception)

CHECKPOINTS = "flow_checkpoints"
"""Name of the table of checkpoints."""

_COLUMNS = ("materialization", "key_begin", "key_end", "fence", "checkpoint")


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to commit to a range of keys, valid until another session raises the fence.

    Attributes:
        table: path of the table of checkpoints.
        materialization: name of the materialization.
        key_begin: least hash of the range.
        key_end: greatest hash of the range, included.
        number: number of times the range was opened.
        narrower: checkpoints of the ranges strictly within this range, which belong to former shards.
    """

    table: tuple[str, ...]
    materialization: str
    key_begin: int
    key_end: int
    number: int = 1
    narrower: tuple[bytes, ...] = ()

    @property
    def span(self) -> list[Any]:
        """Return the materialization and the range, as parameters of a statement."""
        return [self.materialization, self.key_begin, self.key_end]

    def lost(self) -> FencedError:
        """Return the error of a commit after another session has raised the fence."""
        what = f"materialization '{self.materialization}', keys {self.key_begin:08x} to {self.key_end:08x}"
        return FencedError(
            f"{what}: a newer session is open, so this one (fence {self.number}) stores nothing more",
            hint="another run stores this materialization now; nothing of this transaction was stored",
        )


def create_checkpoints(dialect: Dialect, path: Sequence[str]) -> str:
    """Return the statement that creates the table of checkpoints."""
    types = [dialect.types[Kind.TEXT], "BIGINT", "BIGINT", "BIGINT", dialect.bytes_type]
    columns = [f"{quote(name)} {of} NOT NULL" for name, of in zip(_COLUMNS, types, strict=True)]
    key = ", ".join(map(quote, _COLUMNS[:3]))
    return f"CREATE TABLE {dialect.table(path)} (\n  " + ",\n  ".join([*columns, f"PRIMARY KEY ({key})"]) + "\n)"


def raise_fence(
    query: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], dialect: Dialect, fence: Fence
) -> tuple[Fence, bytes]:
    """Acquire the right to commit to a range, and read its checkpoint, within a transaction.

    Args:
        query: function that executes a statement with parameters.
        dialect: dialect of the database.
        fence: the range; its number is ignored.

    Returns:
        The fence, and the checkpoint.
    """
    table = dialect.table(fence.table)
    name, begin, end = (dialect.parameter(number) for number in (1, 2, 3))
    span = fence.span
    overlap = f'"materialization" = {name} AND "key_end" >= {begin} AND "key_begin" <= {end}'
    query(f'UPDATE {table} SET "fence" = "fence" + 1 WHERE {overlap}', span)
    # The range itself comes first, then the narrowest range that contains it: after several splits, the last one.
    around = f'"materialization" = {name} AND "key_begin" <= {begin} AND "key_end" >= {end}'
    narrower = query(f'SELECT "checkpoint" FROM {table} WHERE {_is_within(dialect)}', span)
    fence = replace(fence, narrower=tuple(bytes(checkpoint) for (checkpoint,) in narrower))
    rows = query(
        f'SELECT "key_begin", "key_end", "fence", "checkpoint" FROM {table} WHERE {around}'
        ' ORDER BY "key_end" - "key_begin" LIMIT 1',
        span,
    )
    if rows and (rows[0][0], rows[0][1]) == (fence.key_begin, fence.key_end):
        return replace(fence, number=rows[0][2]), bytes(rows[0][3])
    checkpoint = bytes(rows[0][3]) if rows else BEGIN_FROM_NOTHING
    query(f"INSERT INTO {table} VALUES ({dialect.parameters(5)})", [*span, 1, checkpoint])
    return replace(fence, number=1), checkpoint


def has_checkpoint(
    query: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], dialect: Dialect, path: Sequence[str], name: str
) -> bool:
    """Return whether a materialization has a checkpoint that does not start from nothing.

    Args:
        query: function that executes a statement with parameters.
        dialect: dialect of the database.
        path: path of the table of checkpoints.
        name: name of the materialization.
    """
    rows = query(
        f'SELECT "checkpoint" FROM {dialect.table(path)} WHERE "materialization" = {dialect.parameter(1)}'
        ' AND "key_begin" >= 0',
        [name],
    )
    return any(bytes(checkpoint) != BEGIN_FROM_NOTHING for (checkpoint,) in rows)


def fence_all(dialect: Dialect, path: Sequence[str]) -> str:
    """Return the statement that fences all sessions of a materialization; its parameter is the name."""
    where = f'"materialization" = {dialect.parameter(1)} AND "key_begin" >= 0'
    return f'UPDATE {dialect.table(path)} SET "fence" = "fence" + 1 WHERE {where}'


def hold(dialect: Dialect, fence: Fence) -> str:
    """Return a query with one row if the session may still commit.

    Its parameters are `renewal` without the checkpoint.
    """
    return f"SELECT 1 FROM {dialect.table(fence.table)} WHERE {_is_ours(dialect, first=1)}"


def renew(dialect: Dialect, fence: Fence) -> str:
    """Return the statement of a commit, which changes one row if the session may still commit."""
    checkpoint = f'"checkpoint" = {dialect.parameter(1)}'
    return f"UPDATE {dialect.table(fence.table)} SET {checkpoint} WHERE {_is_ours(dialect, first=2)}"


def supersede(dialect: Dialect, fence: Fence) -> str:
    """Return the statement of a commit that deletes narrower ranges; its parameters are `Fence.span`.

    After the commit their checkpoints are outdated, and a shard that is split later must not continue from them.
    """
    return f"DELETE FROM {dialect.table(fence.table)} WHERE {_is_within(dialect)}"


def renewal(fence: Fence, checkpoint: bytes) -> list[Any]:
    """Return the parameters of `renew`."""
    return [checkpoint, fence.materialization, fence.key_begin, fence.key_end, fence.number]


def _is_ours(dialect: Dialect, first: int) -> str:
    numbered = enumerate(_COLUMNS[:4], start=first)
    return " AND ".join(f"{quote(column)} = {dialect.parameter(number)}" for number, column in numbered)


def _is_within(dialect: Dialect) -> str:
    """Return the condition that a row's range is strictly within a range; its parameters are `Fence.span`."""
    name, begin, end = (dialect.parameter(number) for number in (1, 2, 3))
    within = f'"materialization" = {name} AND "key_begin" >= {begin} AND "key_end" <= {end}'
    return f'{within} AND NOT ("key_begin" = {begin} AND "key_end" = {end})'


@contextmanager
def translating(errors: type[E], explain: Callable[[str, E], FlowError], name: str) -> Iterator[None]:
    """Translate errors of a class in the block, with a function of the database's name and the error."""
    try:
        yield
    except errors as exc:
        raise explain(name, exc) from exc


def require_folder(title: str, path: str) -> None:
    """Raise an `EndpointError` if the folder of a database file does not exist."""
    if not (folder := Path(path).parent).is_dir():
        hint = "create it, or name another"
        raise EndpointError(f"{title} database '{path}': there is no folder '{folder}'", hint=hint)


Change: TypeAlias = Literal["insert", "update", "delete"]
"""Kinds of changes of rows."""

Columns: TypeAlias = Sequence[Sequence[Any]]
"""Encoded values by column, then row."""


class Endpoint(Protocol):
    """A connection. Errors of the database are raised as `FlowError`s."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none if the statement has no result."""

    def transaction(self) -> AbstractContextManager[None]:
        """Execute the block in one transaction, isolated from others."""

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """Return the current definition of a table; None if it does not exist."""

    def transfer(self, tables: Sequence[Table], fence: Fence) -> Transfer:
        """Return a transfer for rows of some tables, which owns this connection from now on."""

    def close(self) -> None:
        """Close the connection."""


class Transfer(Protocol):
    """The transfer of one session's rows. Tables are identified by their index."""

    def load(self, index: int, keys: Columns) -> Iterable[bytes]:
        """Return the documents of some keys, as JSON text, in any order.

        The call runs beside `commit`, and must not change the data of the commit; the result is read after the commit.
        """

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Stage rows to store, or keys to delete; neither is visible before `commit`.

        Args:
            index: index of the table.
            columns: columns of the rows, documents as bytes; for a deletion, columns of the keys.
            change: the change. An inserted row may exist already, and an updated row may be missing.
        """

    def commit(self, checkpoint: bytes) -> None:
        """Store the staged rows and the checkpoint in one transaction.

        Raises:
            FencedError: another session has fenced this session; nothing is stored.
        """

    def close(self) -> None:
        """Discard the staged rows, and close the connection."""
