"""Roles: what a data folder is to each kind of user, with the verbs that one needs and no others.

`Store` plays all of them. Whoever takes a role instead can be handed another store, or a short fake.
"""

from __future__ import annotations

from collections.abc import Collection as SomeOf
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.capabilities import Capabilities
from derive.storage.changes import Changes
from derive.storage.garbage import Garbage
from derive.storage.history import History
from derive.storage.leases import Leases
from derive.storage.metadata.capability import TaskCapability, WriteCapability
from derive.storage.metadata.descriptions import (
    Collection,
    CollectionUpdate,
    TaskCommit,
    TaskMove,
    TaskNote,
    TaskState,
)
from derive.storage.metadata.owner import Door
from derive.storage.rights import Rights
from derive.storage.tables import Tables
from derive.storage.timeline import Timeline
from derive.time.frontier import BEGINNING
from derive.time.segment import Segment


class Folder(Protocol):
    """A data folder."""

    @property
    def root(self) -> Path:
        """Where it is."""

    @property
    def timeline(self) -> Timeline:
        """Assigns clocks."""


class View(Folder, Protocol):
    """To whoever looks at what there is."""

    def collection(self, name: str) -> Collection | None:
        """What is known of a collection."""

    def upper(self, name: str) -> int:
        """The `upper` of a collection."""

    def segments(
        self,
        spec: CollectionSpec,
        selector: SelectorSpec | None = None,
        begin: int = BEGINNING,
        relation: int | None = None,
    ) -> list[Segment]:
        """Segments of a collection."""

    def collection_of(self, relation: int) -> Collection | None:
        """Return the description of a relation's collection, whatever its name is."""

    def replaces_nothing(self, name: str, relation: int) -> bool:
        """Return whether a table has its name from a relation that nobody had filled."""

    def tell_fate(self, name: str, relation: int) -> str:
        """Say what became of a relation for which a name stood."""

    def missing(self, names: Iterable[str]) -> list[str]:
        """Paths of the segments of collections whose files are not there."""

    def task(self, name: str) -> TaskState | None:
        """What is known of a task."""


class Readable(View, Protocol):
    """To whoever reads documents."""

    @property
    def leases(self) -> Leases:
        """Rights to read."""

    @property
    def tables(self) -> Tables:
        """Multisets of rows."""

    @property
    def capabilities(self) -> Capabilities:
        """Rights by their identifiers."""

    @property
    def changes(self) -> Changes:
        """Tells that something was committed."""


class Writable(Folder, Protocol):
    """To whoever ingests documents."""

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions."""

    def require_open(self, name: str, door: Door) -> None:
        """Require that a collection may be written through a door."""

    def acquire_write(self, name: str, *, history: bool = False, door: Door = Door.INGEST) -> WriteCapability:
        """A leased right to ingest into a collection."""

    def renewed(self, capability: WriteCapability, every: float) -> AbstractContextManager[None]:
        """Renew a lease to ingest for as long as the block takes."""

    def update_and_downgrade(
        self,
        capability: WriteCapability,
        segments: Sequence[Segment],
        frontier: int,
        *,
        ascending: bool = False,
        is_last: bool = False,
    ) -> WriteCapability:
        """Add segments and move the capability's frontier up."""

    def drop(self, capability: WriteCapability) -> None:
        """Give a capability back."""

    @property
    def garbage(self) -> Garbage:
        """Files that are part of no collection."""


class Runnable(Readable, Protocol):
    """To whoever runs a task."""

    def acquire_task(
        self, name: str, shards: int, outputs: Sequence[str] = (), *, purpose: str | None = None, if_free: bool = False
    ) -> tuple[TaskCapability, TaskState]:
        """The right to run a task, and to write collections for it alone."""

    def commit_task(
        self, capability: TaskCapability, commit: TaskCommit | None, updates: Sequence[CollectionUpdate] = ()
    ) -> TaskCapability:
        """Move a task on, and with it the collections that it writes."""

    def commit_tasks(self, moves: Sequence[TaskMove]) -> list[TaskCapability]:
        """Move several tasks on, and with them the collections that they write; all in one commit."""

    def note_task(self, capability: TaskCapability, note: TaskNote) -> None:
        """Record something about a task that is no progress of it."""

    def release_task(self, capability: TaskCapability) -> None:
        """Give up the right to run a task."""

    @property
    def rights(self) -> Rights:
        """Rights of tasks to read."""

    @property
    def garbage(self) -> Garbage:
        """Files that are part of no collection."""


class Sealable(Folder, Protocol):
    """To whoever lets time pass."""

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions."""

    def seal_now(self, names: Sequence[str]) -> int:
        """Read the present, and advance collections to it."""

    def held(self, name: str) -> int | None:
        """The clock that the `upper` of a collection does not pass."""

    def renew_tasks(self) -> None:
        """Extend the leases of all tasks that this process runs."""

    @property
    def changes(self) -> Changes:
        """Tells that something was committed."""


class Kept(Readable, Protocol):
    """To whoever keeps house: what nobody needs is compacted, started over, or removed."""

    @property
    def history(self) -> History:
        """What compaction changes."""

    @property
    def garbage(self) -> Garbage:
        """Files that are part of no collection."""

    @property
    def rights(self) -> Rights:
        """Rights of tasks to read."""

    def require_open(self, name: str, door: Door) -> None:
        """Require that a collection may be written through a door."""

    def reset(self, names: Sequence[str], parts: Mapping[str, SomeOf[str]] | None = None) -> None:
        """Forget all that tasks have derived and how far they were; of others, how far some inputs were."""


class Operable(Runnable, Sealable, Kept, Protocol):
    """To a whole run, which runs tasks, lets time pass, and keeps house meanwhile."""
