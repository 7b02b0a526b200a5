"""Where replicas are, as the catalog of SQL and the server's options name them."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOCAL = "local"
"""The name of the instance in the server's process."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a replica is.

    Attributes:
        name: among those of the controller.
        address: `host:port`; empty for a process that the server starts.
    """

    name: str
    address: str = ""


def is_replica_name(name: str) -> bool:
    """Whether a replica can be given a name: one with a process has a folder that is called like it."""
    return name != LOCAL and _NAME.fullmatch(name) is not None
