"""Places of replicas, in the catalog of SQL and in the server's options."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOCAL = "local"
"""Name of the instance in the server's process."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """The place of a replica.

    Attributes:
        name: name, unique in the controller.
        address: `host:port`; empty for a process that the server starts.
    """

    name: str
    address: str = ""


def is_replica_name(name: str) -> bool:
    """Return whether a name is valid for a replica; the folder of a replica's process has this name."""
    return name != LOCAL and _NAME.fullmatch(name) is not None
