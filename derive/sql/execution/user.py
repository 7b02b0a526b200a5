"""The user of a session, and what the user may do beyond SQL."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    """The user who has logged in.

    Attributes:
        name: as the client has given it.
        reads_files: whether the user may create sources from files of the server.
        changes_replicas: whether the user may have the server start and reach compute instances.
    """

    name: str = "flow"
    reads_files: bool = True
    changes_replicas: bool = True


LOCAL_USER = User()
"""The user of a command, and of a server without passwords that says nothing of users."""
