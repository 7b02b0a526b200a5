"""The installed materialize connectors, found through entry points of any package."""

from __future__ import annotations

from connectors.kit.connector import MaterializeConnector
from derive.errors import TaskError
from derive.protocol.entry_points import entry_points_of, load
from derive.suggest import suggest

ENTRY_POINTS = "derive.materialize"
"""Entry point group: each names a class that implements `MaterializeConnector` and takes no arguments."""


def installed_materialize_connectors() -> dict[str, str]:
    """Return the sorted names of the installed connectors, with their classes (`module:Class`)."""
    return dict(sorted(entry_points_of(ENTRY_POINTS).items()))


def find_materialize_connector(name: str) -> MaterializeConnector:
    """Return the connector with this name.

    Raises:
        TaskError: the connector is not installed, or cannot be loaded.
    """
    entries = installed_materialize_connectors()
    if name not in entries:
        guess = suggest(name, entries)
        hint = f"did you mean '{guess}'?" if guess else f"installed: {', '.join(entries) or 'none'}"
        raise TaskError(f"no materialize connector '{name}' is installed", hint=hint)
    try:
        connector: MaterializeConnector = load(entries[name])()
    except Exception as exc:
        raise TaskError(f"the materialize connector '{name}' ({entries[name]}) cannot be loaded: {exc!r}") from exc
    return connector
