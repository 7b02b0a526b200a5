"""The sessions of a server from the view of one session; PostgreSQL calls a session a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Backend:
    """A session, as other sessions see it.

    Attributes:
        process: number of the session.
        user: name of the user.
        database: name of the database.
        application: application name of the client.
        address: client's address and port; None if unknown.
        begun: time of the connection.
        state: `active`, `idle`, `idle in transaction` or `idle in transaction (aborted)`.
        query: text of the latest statement.
    """

    process: int
    user: str
    database: str
    application: str
    address: tuple[str, int] | None
    begun: datetime
    state: str
    query: str


class Backends(Protocol):
    """All sessions of a server, as one session sees them."""

    @property
    def process(self) -> int:
        """Return the number of this session."""

    def all(self) -> Sequence[Backend]:
        """Return all sessions."""

    def cancel(self, process: int) -> bool:
        """Cancel the statement of a session; return whether there is such a session.

        Raises:
            SqlError: the session belongs to another user.
        """

    def terminate(self, process: int) -> bool:
        """Close a session; return whether there is such a session.

        Raises:
            SqlError: the session belongs to another user.
        """


class SingleBackend:
    """The backends of a session without a server."""

    process = 0

    def all(self) -> Sequence[Backend]:
        """Return no sessions."""
        return ()

    def cancel(self, process: int) -> bool:
        """Return False."""
        return False

    terminate = cancel
