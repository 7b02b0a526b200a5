"""Roles: interfaces of a data folder, one for each kind of user.

`Store` implements all of them. A function that takes a role also accepts another store, or a short fake.
"""

from __future__ import annotations

from collections.abc import Collection as SomeOf
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from derive.errors import StorageError
from derive.protocol.specs import CollectionSpec, SelectorSpec, TransformSpec
from derive.storage.capability.capabilities import Capabilities, TaskCapabilities
from derive.storage.capability.table import Capability, TaskCapability
from derive.storage.changes import Changes
from derive.storage.history import Garbage, History
from derive.storage.location import Location
from derive.storage.metadata.descriptions import (
    Collection,
    CollectionUpdate,
    MaterializationRecord,
    PastPart,
    ResetTask,
    TaskCommit,
    TaskMove,
    TaskNote,
    TaskState,
    Work,
)
from derive.storage.metadata.followed import FileMove
from derive.storage.metadata.ingestions import Load, LoadedFile
from derive.storage.metadata.owner import Door
from derive.storage.metadata.quarantine import Retried
from derive.storage.shadows import Shadows
from derive.storage.tables import Tables
from derive.storage.timeline import Timeline
from derive.time import BEGINNING, END_OF_TIME
from derive.time.extent import Enough
from derive.time.positions import Segment


class Folder(Protocol):
    """A data folder."""

    @property
    def root(self) -> Path:
        """Return the path of the data folder."""

    @property
    def location(self) -> Location:
        """Return the location of the segments: the data folder, or a folder of an object store."""

    @property
    def timeline(self) -> Timeline:
        """Return the source of timestamps."""


class View(Folder, Protocol):
    """The role for inspection of a data folder."""

    def find_conflict(self, spec: CollectionSpec) -> StorageError | None:
        """Return the error with which `create` would refuse a collection that has documents; None if it would not."""

    def collection(self, name: str) -> Collection | None:
        """Return the description of a collection; see `Store`."""

    def read_as(self, spec: CollectionSpec, clock: int | None = None) -> CollectionSpec:
        """Return the definition under which the documents of a collection at a time are read; None for the present."""

    def upper(self, name: str) -> int:
        """Return the `upper` of a collection."""

    def segments(
        self,
        spec: CollectionSpec,
        selector: SelectorSpec | None = None,
        begin: int = BEGINNING,
        relation: int | None = None,
        end: int = END_OF_TIME,
        until: Enough | None = None,
    ) -> Sequence[Segment]:
        """Return segments of a collection; see `Store`."""

    def count_documents(
        self, spec: CollectionSpec, selector: SelectorSpec | None, begin: int, end: int, relation: int | None = None
    ) -> int:
        """Return the number of documents in segments of a collection; see `Store`."""

    def collection_of(self, relation: int) -> Collection | None:
        """Return the description of a relation's collection, also after a rename."""

    def replaces_nothing(self, name: str, relation: int) -> bool:
        """Return true if the former relation of a table's name was never written."""

    def describe_fate(self, name: str, relation: int) -> str:
        """Describe the fate of a relation that once had the name."""

    def span(self, name: str) -> tuple[int, int]:
        """Return the greatest timestamps of the first and the last segment of a collection with segments."""

    def is_missing(self, path: str) -> bool:
        """Return true if the file of a segment is missing."""

    def task(self, name: str) -> TaskState | None:
        """Return the state of a task."""

    @property
    def task_capabilities(self) -> TaskCapabilities:
        """Return the capabilities of tasks."""

    def tasks(self) -> list[TaskState]:
        """Return the states of all tasks that have run since their last reset, by name."""

    def work(self, name: str) -> dict[str, Work]:
        """Return the work of each lambda of a derivation since its last reset, by state key."""

    def past(self, name: str) -> list[PastPart]:
        """Return the recorded parts of a derivation's past."""

    def applied(self, name: str) -> str | None:
        """Return the text of a materialization's definition at its last commit."""

    def materialization(self, name: str) -> MaterializationRecord:
        """Return the facts about a materialization that its endpoint does not store."""

    def internal_collections(self, task: str) -> list[str]:
        """Return the names of a task's quarantine and of its collections of retried documents."""

    def retried(self, task: str, transform: TransformSpec, source: CollectionSpec, begin: int) -> Retried:
        """Return the retried documents that a transform reads besides its source; see `Store`."""

    def decided(self, task: str) -> set[str]:
        """Return the identifiers of the retried and dropped entries of a task's quarantine."""

    def quarantined(self, task: str) -> dict[str, int]:
        """Return the number of open entries of a task's quarantine, by the state key of the input."""


class Readable(View, Protocol):
    """The role for reading documents."""

    @property
    def tables(self) -> Tables:
        """Return the tables."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities to read and to write."""

    @property
    def changes(self) -> Changes:
        """Return the notifications of commits."""


class Writable(Folder, Protocol):
    """The role for ingestion."""

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions."""

    def require_open(self, name: str, door: Door) -> None:
        """Raise an error if a kind of writer may not write a collection."""

    def acquire_write(self, name: str, *, history: bool = False, door: Door = Door.INGEST) -> Capability:
        """Acquire the capability to ingest into a collection."""

    def update_and_downgrade(
        self,
        capability: Capability,
        segments: Sequence[Segment],
        frontier: int,
        *,
        ascending: bool = False,
        is_last: bool = False,
        file: LoadedFile | None = None,
        moves: Sequence[FileMove] = (),
    ) -> Capability:
        """Add segments and move the capability's frontier up."""

    def load(self, name: str, load_id: str | None) -> Load | None:
        """Return the present load of a collection with an identifier."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities to read and to write."""

    @property
    def garbage(self) -> Garbage:
        """Return the garbage collector of files."""


class Decidable(Readable, Writable, Protocol):
    """The role for decisions about quarantined documents."""

    def retry(
        self, task: str, capability: Capability, segments: Sequence[Segment], frontier: int, entries: Mapping[str, str]
    ) -> bool:
        """Add retried documents, and record that their entries are retried; see `Store`."""

    def drop_quarantined(self, task: str, entries: Mapping[str, str]) -> bool:
        """Record that entries are dropped."""


class Runnable(Readable, Protocol):
    """The role for running tasks."""

    @property
    def cache(self) -> Path | None:
        """Return the folder of caches of states on each machine; None for states that stay in the data folder."""

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions."""

    def adopt_materialization(self, name: str) -> MaterializationRecord:
        """Return the facts about a materialization; see `Store`."""

    def acquire_task(
        self,
        name: str,
        shards: int,
        outputs: Sequence[str] = (),
        *,
        purpose: str | None = None,
        if_free: bool = False,
        shadow: str | None = None,
    ) -> tuple[TaskCapability, TaskState]:
        """Acquire the exclusive capability to run a task and to write its collections."""

    def commit_task(
        self, capability: TaskCapability, commit: TaskCommit | None, updates: Sequence[CollectionUpdate] = ()
    ) -> TaskCapability:
        """Advance a task and the collections that it writes."""

    def commit_tasks(self, moves: Sequence[TaskMove]) -> list[TaskCapability]:
        """Advance several tasks and the collections that they write, in one commit."""

    def note_task(self, capability: TaskCapability, note: TaskNote) -> None:
        """Record a note about a task, such as an error, without progress."""

    def release_task(self, capability: TaskCapability) -> None:
        """Release the capability to run a task."""

    @property
    def shadows(self) -> Shadows:
        """Return the shadows: derivations that run beside the live derivations until a swap."""

    @property
    def garbage(self) -> Garbage:
        """Return the garbage collector of files."""


class Sealable(Folder, Protocol):
    """The role for advancing time."""

    def create(self, *specs: CollectionSpec) -> None:
        """Bind names of collections to their keys and partitions."""

    def seal_now(self, names: Sequence[str]) -> int:
        """Read the present, and advance collections to it."""

    def write_frontier(self, name: str) -> int | None:
        """Return the timestamp that bounds the `upper` of a collection."""

    def renew_tasks(self) -> None:
        """Renew the run capabilities of this process."""

    @property
    def changes(self) -> Changes:
        """Return the notifications of commits."""


class Maintainable(Readable, Protocol):
    """The role for maintenance: compaction, resets and removal of files."""

    @property
    def history(self) -> History:
        """Return the history, which compaction rewrites."""

    @property
    def shadows(self) -> Shadows:
        """Return the shadows: derivations that run beside the live derivations until a swap."""

    @property
    def garbage(self) -> Garbage:
        """Return the garbage collector of files."""

    def require_open(self, name: str, door: Door) -> None:
        """Raise an error if a kind of writer may not write a collection."""

    def adopt_materialization(self, name: str) -> MaterializationRecord:
        """Return the facts about a materialization; see `Store`."""

    def reset(
        self,
        names: Sequence[str],
        parts: Mapping[str, SomeOf[str]] | None = None,
        undone: tuple[str, str] | None = None,
        epochs: Mapping[str, int] | None = None,
        restarts: Mapping[str, str] | None = None,
    ) -> dict[str, ResetTask]:
        """Delete the derived data and the progress of tasks, and the progress of some inputs of other tasks.

        Undo a load.
        """


class Operable(Runnable, Sealable, Maintainable, Protocol):
    """The role for a whole run: run tasks, advance time, and do maintenance."""
