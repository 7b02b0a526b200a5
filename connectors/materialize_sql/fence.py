"""Fences: who may commit to a range of keys, and from where to go on.

A table of checkpoints is in the database that the rows are in, so that both are of one transaction. Who opens a range
raises the fence of all that overlap; who commits finds the fence it has raised, or nothing is committed. A range that
is new, and lies in one with a checkpoint, is of a shard that was split: it goes on from there, as beginning again would
add up twice what was reduced already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from connectors.kit.connector import BEGIN_FROM_NOTHING
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.kind import Kind
from connectors.materialize_sql.names import quote
from derive.errors import FencedError

CHECKPOINTS = "flow_checkpoints"
"""The table of checkpoints."""

_COLUMNS = ("materialization", "key_begin", "key_end", "fence", "checkpoint")


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to commit to a range of keys, as long as nobody has raised the fence.

    Attributes:
        table: the path of the table of checkpoints.
        materialization: whose right it is.
        key_begin: the least hash of the range.
        key_end: the greatest; it is in the range.
        number: how often the range was opened.
    """

    table: tuple[str, ...]
    materialization: str
    key_begin: int
    key_end: int
    number: int = 1

    def lost(self) -> FencedError:
        """The error of who commits without the right."""
        what = f"materialization '{self.materialization}', keys {self.key_begin:08x} to {self.key_end:08x}"
        return FencedError(
            f"{what}: this session (fence {self.number}) was fenced off by another one that has opened",
            hint="another runtime has taken over; nothing of this transaction was stored",
        )


def create_checkpoints(dialect: Dialect, path: Sequence[str]) -> str:
    """The statement that creates the table of checkpoints."""
    types = [dialect.types[Kind.TEXT], "BIGINT", "BIGINT", "BIGINT", dialect.bytes_type]
    columns = [f"{quote(name)} {of} NOT NULL" for name, of in zip(_COLUMNS, types, strict=True)]
    key = ", ".join(map(quote, _COLUMNS[:3]))
    return f"CREATE TABLE {dialect.table(path)} (\n  " + ",\n  ".join([*columns, f"PRIMARY KEY ({key})"]) + "\n)"


def raise_fence(
    query: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], dialect: Dialect, fence: Fence
) -> tuple[Fence, bytes]:
    """Take the right to commit to a range, and say from where to go on. Call it within a transaction.

    Args:
        query: executes a statement with parameters.
        dialect: the database's.
        fence: the range; its number does not matter.

    Returns:
        The fence, and the checkpoint.
    """
    table = dialect.table(fence.table)
    name, begin, end = (dialect.parameter(number) for number in (1, 2, 3))
    span = [fence.materialization, fence.key_begin, fence.key_end]
    overlap = f'"materialization" = {name} AND "key_end" >= {begin} AND "key_begin" <= {end}'
    query(f'UPDATE {table} SET "fence" = "fence" + 1 WHERE {overlap}', span)
    # The range itself comes first, then the narrowest that it lies in: of splits of splits, the last.
    around = f'"materialization" = {name} AND "key_begin" <= {begin} AND "key_end" >= {end}'
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
    """Whether there is a checkpoint of a materialization that is not to begin from nothing.

    Args:
        query: executes a statement with parameters.
        dialect: the database's.
        path: of the table of checkpoints.
        name: of the materialization.
    """
    rows = query(
        f'SELECT "checkpoint" FROM {dialect.table(path)} WHERE "materialization" = {dialect.parameter(1)}'
        ' AND "key_begin" >= 0',
        [name],
    )
    return any(bytes(checkpoint) != BEGIN_FROM_NOTHING for (checkpoint,) in rows)


def fence_all(dialect: Dialect, path: Sequence[str]) -> str:
    """Return the statement that fences off all sessions of a materialization, whose name is its parameter."""
    where = f'"materialization" = {dialect.parameter(1)} AND "key_begin" >= 0'
    return f'UPDATE {dialect.table(path)} SET "fence" = "fence" + 1 WHERE {where}'


def hold(dialect: Dialect, fence: Fence) -> str:
    """A query that has one row, or the right is lost. Its parameters are those of `renewal` without the checkpoint."""
    return f"SELECT 1 FROM {dialect.table(fence.table)} WHERE {_is_ours(dialect, first=1)}"


def renew(dialect: Dialect, fence: Fence) -> str:
    """The statement of a commit: it changes one row, or the right is lost. Its parameters are `renewal`."""
    checkpoint = f'"checkpoint" = {dialect.parameter(1)}'
    return f"UPDATE {dialect.table(fence.table)} SET {checkpoint} WHERE {_is_ours(dialect, first=2)}"


def renewal(fence: Fence, checkpoint: bytes) -> list[Any]:
    """The parameters of `renew`."""
    return [checkpoint, fence.materialization, fence.key_begin, fence.key_end, fence.number]


def _is_ours(dialect: Dialect, first: int) -> str:
    numbered = enumerate(_COLUMNS[:4], start=first)
    return " AND ".join(f"{quote(column)} = {dialect.parameter(number)}" for number, column in numbered)
