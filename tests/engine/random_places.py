"""Where the data of a disturbed life are, and how they move in the middle of the life.

Segments are in the data folder or at a location of an object store. Metadata move between SQLite and PostgreSQL. States
are in the data folder, or travel between the caches of machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from conftest import World

from derive.protocol.specs import CatalogSpec
from derive.storage.location import ObjectFolder, connected
from derive.storage.metadata.opening import this_host
from derive.storage.metadata.place import place_of, read_place
from derive.storage.metadata.relocation import move_to_folder, move_to_postgres

MACHINES = (None, "north", "south")
"""Machines with caches of states; None if states are in the data folder."""


@dataclass
class Places:
    """The places of the data of one life.

    Attributes:
        root: the data folder.
        has_objects: whether segments are in an object store, and not in the data folder.
        database: address of PostgreSQL for the metadata; empty for none.
        environment: variables with which a process reaches the object store.
        machine: the machine where runs are.
    """

    root: Path
    has_objects: bool = False
    database: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    machine: str | None = None
    _folders: int = 0

    @property
    def cache(self) -> Path | None:
        return None if self.machine is None else self.root.with_name(self.machine)

    @property
    def schema(self) -> str:
        """Return the address of the schema for the metadata: each data folder has its own."""
        name = sha256(f"{self.root}".encode()).hexdigest()[:20]
        return f"{self.database}&schema=s{name}_{self._folders}"

    def begin(self) -> ObjectFolder | None:
        """Begin another data folder; return the location of its segments, and None for the data folder itself."""
        self._folders += 1
        connected.cache_clear()
        return ObjectFolder(f"s3://flow{self.root}/{self._folders}") if self.has_objects else None

    def open(self, catalog: CatalogSpec, wall: int) -> World:
        return World(self.root, catalog, wall, self.cache)

    def move_metadata(self) -> None:
        """Move the metadata to the other database; no process may use them."""
        move_metadata(self.root, self.schema)


def move_metadata(root: Path, database: str) -> None:
    """Move the metadata of a data folder to a database, or back into the folder."""
    if read_place(root) is None:
        move_to_postgres(root, place_of(database), this_host())
    else:
        move_to_folder(root)
