"""The connection to a database that the shared parts need: five methods for statements, and four for rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

from connectors.materialize_sql.column import ExistingTable, Table
from connectors.materialize_sql.fence import Fence

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

        The call runs beside `commit`, and its result is consumed afterwards; until then it must not touch the data of
        the commit.
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
            FencedError: another session has fenced this one; nothing is stored.
        """

    def close(self) -> None:
        """Discard the staged rows, and close the connection."""
