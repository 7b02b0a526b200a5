"""What the metadata database knows of collections and tasks, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from derive.errors import ViewError
from derive.storage.metadata.capability import TaskCapability
from derive.time.positions import Place
from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class Collection:
    """What the metadata knows of a collection.

    Attributes:
        name: its name.
        since: contents are exact from here on.
        upper: everything below is final.
        documents: updates in all its segments.
        segments: how many files.
        bytes: their size.
        failure: of a materialized view that has an error in the place of rows at the last time that is known, from when
            on, and the error.
        relation: identifies its history, for all time; 0 if that is not known.
    """

    name: str
    since: int
    upper: int
    documents: int
    segments: int
    bytes: int
    failure: tuple[int, ViewError] | None = None
    relation: int = 0

    @property
    def sound(self) -> int:
        """Below this time it is final, and has no error that may yet be corrected."""
        return self.upper if self.failure is None else min(self.upper, self.failure[0])


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a derivation under documents that it had published already.

    Attributes:
        part: what was edited: a transform (by state key), or the module.
        message: what has changed, and what that means.
        hint: the way out.
        at: clock; the `upper` of the output from which on the change is in force, or None if it has not been run yet.
    """

    part: str
    message: str
    hint: str
    at: int | None = None


@dataclass(frozen=True, slots=True)
class TaskState:
    """What the metadata knows of a task.

    Attributes:
        name: its name.
        shards: how many shards it has.
        positions: for each transform (by state key), the adjusted clock below which it is processed.
        tokens: by shard number, the name of the attempt that committed its part of a transaction last.
        error: JSON of the error that stopped it, or None.
        documents_in: documents processed so far.
        documents_out: documents published so far.
        transactions: how many transactions that had documents.
        places: for each transform (by state key), what its position is a position in.
        fingerprints: for each part of the derivation, a text that was another one before the part was edited.
        edits: of parts, since the task's output began.
    """

    name: str
    shards: int
    positions: Mapping[str, int]
    tokens: Mapping[int, str]
    error: str | None = None
    documents_in: int = 0
    documents_out: int = 0
    transactions: int = 0
    places: Mapping[str, Place] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """A task's side of a transaction: what commits together with its documents (law L2).

    Attributes:
        positions: new positions of its transforms.
        places: what they are positions in, as in `TaskState`.
        shards: by number of each shard that took part, the name of the attempt that prepared its state.
        documents_in: documents processed in this transaction.
        documents_out: documents published in it.
        needs: for each transform (by state key), the clock from which on it still needs its source.
        may_step_back: positions may be before those that are kept, because the task's endpoint has a checkpoint of its
            own, and says that it is there.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: Mapping[int, str]
    documents_in: int
    documents_out: int
    needs: Mapping[str, int] = field(default_factory=dict)
    may_step_back: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """A task stopped; its next commit takes that back.

    Attributes:
        error: why, as JSON of a `FlowError`.
    """

    error: str


@dataclass(frozen=True, slots=True)
class Edited:
    """What a task consists of as it begins to run, and what was edited under its output; both as in `TaskState`."""

    fingerprints: Mapping[str, str]
    edits: Sequence[Edit]


@dataclass(frozen=True, slots=True)
class Divided:
    """A task has another number of shards.

    Attributes:
        shards: how many.
        tokens: by number, the token that each shard's state is at; those without state have none.
    """

    shards: int
    tokens: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Renamed:
    """Inputs of a task have other names.

    Attributes:
        keys: for each state key that was, the one that is.
    """

    keys: Mapping[str, str]


TaskNote: TypeAlias = Stopped | Edited | Divided | Renamed
"""What is recorded about a task beside its progress."""


@dataclass(frozen=True, slots=True)
class CollectionUpdate:
    """What a transaction of a task writes to one collection.

    Attributes:
        collection: its name.
        segments: durable files.
        frontier: the task writes nothing below it any more; above every clock in `segments`.
    """

    collection: str
    segments: Sequence[Segment]
    frontier: int


@dataclass(frozen=True, slots=True)
class TaskMove:
    """A task that moves on, and what it writes.

    Attributes:
        capability: the right to run the task, and to write those collections.
        commit: how far the task is; None if it is where it was.
        updates: at most one of each collection; none has a clock below the capability's frontier for it.
    """

    capability: TaskCapability
    commit: TaskCommit | None
    updates: Sequence[CollectionUpdate] = ()

    @property
    def is_more(self) -> bool:
        """Whether there is more to it than time that passes."""
        return self.commit is None or bool(self.commit.shards) or any(update.segments for update in self.updates)

    def moved(self) -> TaskCapability:
        """The capability after that, at its new frontiers."""
        frontiers = {update.collection: update.frontier for update in self.updates}
        return replace(self.capability, frontiers={**self.capability.frontiers, **frontiers})


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds a frontier of a collection back.

    Attributes:
        frontier: clock from which on they read it, or write it.
        task: name of the task; None for a reader or writer with a lease.
        holder: the process, `host:pid`.
        purpose: what it is for; None if that was not told.
    """

    frontier: int
    task: str | None
    holder: str
    purpose: str | None = None


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Between which times a collection is exact and final.

    Attributes:
        since: its contents are exact from here on.
        upper: everything below is final.
        holds: who holds `since` back, the least first.
        writers: who holds `upper` back, the least first.
    """

    since: int
    upper: int
    holds: tuple[Hold, ...]
    writers: tuple[Hold, ...] = ()

    @property
    def bound(self) -> int:
        """How far `since` may move now."""
        return max(self.since, min([self.upper, *(hold.frontier for hold in self.holds)]))
