"""What the core asks of a connection to a database: five verbs to look and change, and four to move rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

from connectors.materialize_sql.column import ExistingTable, Table
from connectors.materialize_sql.fence import Fence

Change: TypeAlias = Literal["insert", "update", "delete"]
"""What happens to rows."""

Columns: TypeAlias = Sequence[Sequence[Any]]
"""Values by column and row, encoded."""


class Endpoint(Protocol):
    """A connection. Errors of the database come as `FlowError`s."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement, of which there are none if it has no result."""

    def transaction(self) -> AbstractContextManager[None]:
        """What is done within is done at once, with nothing of others between, or not at all."""

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """A table as it is now; None if there is no such table."""

    def transfer(self, tables: Sequence[Table], fence: Fence) -> Transfer:
        """A way to move rows of some tables, which has this connection from now on."""

    def close(self) -> None:
        """End the connection."""


class Transfer(Protocol):
    """Moves rows of one session. Tables are named by their index."""

    def load(self, index: int, keys: Columns) -> Iterable[bytes]:
        """The documents of some keys, as JSON text, in any order.

        It is called beside `commit`, and what it returns is taken afterwards; until then whatever it does must not
        touch what the commit has.
        """

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Take rows to store, or keys to delete; neither is seen by anyone before `commit`.

        Args:
            index: of the table.
            columns: of the rows, documents as bytes; of the keys, for a deletion.
            change: what to do. A row of an insertion may be there nevertheless, and one of an update may not.
        """

    def commit(self, checkpoint: bytes) -> None:
        """Store what was staged and the checkpoint in one transaction.

        Raises:
            FencedError: the fence is not ours any more; nothing is stored.
        """

    def close(self) -> None:
        """Forget what is staged, and end the connection."""
