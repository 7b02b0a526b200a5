"""Opening a data folder for SQL."""

from __future__ import annotations

from pathlib import Path

from derive.protocol.specs import CatalogSpec
from derive.sql.coordinator import Coordinator


def open_coordinator(catalog: CatalogSpec | None, data: Path, *, is_serving: bool = False) -> Coordinator:
    """A coordinator over a data folder, in the event loop at work; closed by whoever opens it.

    Args:
        catalog: of `flow.yaml`; None if there is none.
        data: the data folder.
        is_serving: be the process that writes, and keep views up to date, from now on.

    Raises:
        StorageError: the data folder cannot be used.
        SqlError: another process is the one that writes.
    """
    coordinator = Coordinator(data, catalog)
    if is_serving:
        coordinator.own()
    return coordinator
