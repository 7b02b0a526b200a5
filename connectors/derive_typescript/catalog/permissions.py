"""Permissions: the resources that a module may access outside its sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from derive.position import Position


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permissions that an author asks for; none by default.

    Attributes:
        net: hosts, each with an optional port, that the module may connect to.
        read: files and folders that it may read.
        env: names of environment variables that it may read.
        position: position of the permissions in the catalog.
        folder: folder of the catalog file, if it is local; relative paths begin there.
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
