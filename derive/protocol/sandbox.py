"""What lambdas may touch, and how much of the machine they may take."""

from __future__ import annotations

from dataclasses import dataclass

from derive.position import Position


@dataclass(frozen=True, slots=True)
class Permissions:
    """What an author asks to be let out of the sandbox for; nothing by default.

    Attributes:
        net: hosts, each perhaps with a port, that may be connected to.
        read: files and folders that may be read.
        env: names of environment variables that may be read.
        position: where they are written.
        folder: of the file they are written in, if it is on this machine: relative paths begin there.
    """

    net: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    position: Position | None = None
    folder: str | None = None

    def __bool__(self) -> bool:
        return bool(self.net or self.read or self.env)

    def __str__(self) -> str:
        parts = {"net": self.net, "read": self.read, "env": self.env}
        return ", ".join(f"{name} ({', '.join(values)})" for name, values in parts.items() if values)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a person who runs a catalog lets its lambdas take.

    Attributes:
        answer_seconds: how long a module may take for one document.
        heap_megabytes: how large the heap of one process may grow.
        allows_permissions: whether what authors ask for is granted; if not, asking is an error.
        sqlite_seconds: how long SQL may take for one document.
    """

    answer_seconds: float = 60.0
    heap_megabytes: int = 512
    allows_permissions: bool = False
    sqlite_seconds: float = 60.0
