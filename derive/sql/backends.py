"""The sessions of a server, as a session sees them: PostgreSQL calls what serves one a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Backend:
    """What is known of a session from outside.

    Attributes:
        process: its number.
        user: who has connected.
        database: with which name.
        application: as the client calls itself.
        address: from where, and from which port; None if it is not known.
        begun: when it has connected.
        state: `active`, `idle`, `idle in transaction` or `idle in transaction (aborted)`.
        query: the latest statement.
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
    """All sessions of a server, for one of them."""

    @property
    def process(self) -> int:
        """The number of its own."""

    def all(self) -> Sequence[Backend]:
        """All there are now."""

    def cancel(self, process: int) -> bool:
        """Have the statement of a session end; whether there is such a session.

        Raises:
            SqlError: it is somebody else's.
        """

    def terminate(self, process: int) -> bool:
        """End a session; whether there is such a session.

        Raises:
            SqlError: it is somebody else's.
        """


class Alone:
    """Of a session that no server serves."""

    process = 0

    def all(self) -> Sequence[Backend]:
        """None."""
        return ()

    def cancel(self, process: int) -> bool:
        """There is none."""
        return False

    terminate = cancel
