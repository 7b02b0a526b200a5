"""Installed connectors, each an entry point of a package."""

from __future__ import annotations

from functools import cache
from typing import Any

from derive.errors import TaskError
from derive.protocol.authoring import DeriveAuthoring
from derive.protocol.derive import DeriveRuntime
from derive.protocol.entry_points import entry_points_of, load

ENTRY_POINTS = "derive.connectors"
"""Group of entry points that name a class with `DeriveAuthoring` and `DeriveRuntime`."""


def installed_connectors() -> list[str]:
    """Return the names of the installed connectors, sorted."""
    return sorted(_entries())


def find_authoring(name: str) -> DeriveAuthoring:
    """Return the authoring side of a connector.

    Raises:
        TaskError: the connector is not installed, or cannot be loaded.
    """
    connector: DeriveAuthoring = _connector(name)
    return connector


def find_runtime(name: str) -> DeriveRuntime:
    """Return the runtime side of a connector.

    Raises:
        TaskError: the connector is not installed, or cannot be loaded.
    """
    connector: DeriveRuntime = _connector(name)
    return connector


@cache
def _entries() -> dict[str, str]:
    return entry_points_of(ENTRY_POINTS)


@cache
def _connector(name: str) -> Any:
    entry = _entries().get(name)
    if entry is None:
        known = ", ".join(installed_connectors()) or "none"
        raise TaskError(f"no derive connector '{name}' is installed", hint=f"installed: {known}")
    try:
        return load(entry)()
    except Exception as exc:
        raise TaskError(f"the derive connector '{name}' ({entry}) cannot be loaded: {exc!r}") from exc
