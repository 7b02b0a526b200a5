"""Permissions: what a module may touch outside its sandbox."""

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
