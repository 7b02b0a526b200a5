"""The catalog of SQL in a data folder: items and replicas, for the servers and commands of SQL.

Items change in the commits of `Tables.append`, together with the tables and rows of the same transaction.
"""

from __future__ import annotations

from typing import Any

from derive.storage.metadata.database import Metadata
from derive.storage.metadata.definitions import StoredItem, read_items, read_version


class SqlCatalog:
    """The catalog of SQL of one data folder.

    Args:
        metadata: metadata database of the data folder.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def version(self) -> int:
        """Return the number of changes of the items so far."""
        with self._metadata.snapshot() as db:
            return read_version(db)

    def read(self) -> tuple[int, list[StoredItem]]:
        """Return the version and its items, the oldest first."""
        with self._metadata.snapshot() as db:
            return read_version(db), read_items(db)

    def replicas(self) -> list[tuple[str, str]]:
        """Return name and address of the created replicas, by name; see `ReplicaPlace`."""
        with self._metadata.snapshot() as db:
            rows: list[Any] = db.execute("SELECT name, address FROM replica ORDER BY name").fetchall()
        return rows

    def add_replica(self, name: str, address: str) -> None:
        """Record a replica, durably."""
        with self._metadata.transaction() as db:
            db.execute("INSERT INTO replica VALUES (?, ?)", (name, address))

    def drop_replica(self, name: str) -> None:
        """Remove a replica, if it exists, durably."""
        with self._metadata.transaction() as db:
            db.execute("DELETE FROM replica WHERE name = ?", (name,))
