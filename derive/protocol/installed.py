"""The connectors that are installed, each an entry point of whatever package it comes in."""

from __future__ import annotations

from functools import cache
from typing import Any

from derive.errors import TaskError
from derive.protocol.authoring import DeriveAuthoring
from derive.protocol.derive import DeriveRuntime
from derive.protocol.entry_points import entry_points_of, load

ENTRY_POINTS = "derive.connectors"
"""Entry point group: each names a class that fulfils `DeriveAuthoring` and `DeriveRuntime`."""


def installed_connectors() -> list[str]:
    """Names of the connectors that are installed, sorted."""
    return sorted(_entries())


def find_authoring(name: str) -> DeriveAuthoring:
    """What the connector of this name does for authors.

    Raises:
        TaskError: none is installed, or it cannot be loaded.
    """
    connector: DeriveAuthoring = _connector(name)
    return connector


def find_runtime(name: str) -> DeriveRuntime:
    """What the connector of this name does for running tasks.

    Raises:
        TaskError: none is installed, or it cannot be loaded.
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
