"""Installed connectors, each an entry point of a package.

`importlib.metadata` supports every kind of installation, but takes longer than most commands. Nearly all packages are
unpacked folders in Python's path, and one small file of each package is enough. If the path has other entries,
`importlib.metadata` is used.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from typing import Any

from derive.errors import TaskError
from derive.protocol.authoring import DeriveAuthoring
from derive.protocol.derive import DeriveRuntime

_INFO = (".dist-info", ".egg-info")
_SEPARATORS = re.compile(r"[-_.]+")


def entry_points_of(group: str) -> dict[str, str]:
    """Return the entry points of a group by name: `module:attribute`, possibly followed by extras in brackets."""
    folders = _folders()
    if folders is None:
        from importlib.metadata import entry_points

        return {entry.name: entry.value for entry in entry_points(group=group)}
    texts: dict[str, str] = {}
    for folder in folders:
        for package, text in _texts(folder):
            texts.setdefault(package, text)  # Python imports the first package of a name on the path
    return {name: value for text in texts.values() for name, value in _read(text, group).items()}


def load(value: str) -> Any:
    """Return the object of an entry point."""
    module, _, attribute = value.partition("[")[0].strip().partition(":")
    return attrgetter(attribute.strip())(import_module(module.strip()))


def load_all(value: str) -> None:
    """Import the whole package of an entry point, including modules that are otherwise imported on demand."""
    from pkgutil import walk_packages

    package = import_module(value.partition(":")[0].strip())
    for module in walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        import_module(module.name)


def _folders() -> list[str] | None:
    """Return the folders of packages; None if packages may also be in other places, such as an archive."""
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return None
    paths = [path or os.curdir for path in sys.path if os.path.exists(path or os.curdir)]
    is_plain = all(os.path.isdir(path) and not path.endswith(".egg") for path in paths)
    return paths if is_plain else None


def _texts(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the normalized name of each package in a folder, and the text of its entry points."""
    names: list[str] = []
    with suppress(OSError):  # Python cannot import packages from an unreadable folder either
        names = os.listdir(folder)
    for kind in _INFO:
        for name in names:
            if name.endswith(kind):
                text = ""
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    text = Path(folder, name, "entry_points.txt").read_text(encoding="utf-8")
                package, _, _ = name.removesuffix(kind).partition("-")
                yield _SEPARATORS.sub("-", package).lower(), text


def _read(text: str, group: str) -> dict[str, str]:
    """Return the entry points of one group: lines `name = module:attribute` in its section."""
    if group not in text:
        return {}
    entries: dict[str, str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and not line.startswith("#") and section == group:
            name, _, value = line.partition("=")
            entries[name.strip()] = value.strip()
    return entries


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
