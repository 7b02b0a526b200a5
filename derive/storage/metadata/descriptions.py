"""Descriptions of collections and tasks in the metadata database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import orjson

from derive.errors import ViewError
from derive.protocol.definition_text import Definition
from derive.storage.capability.table import Capability, TaskCapability
from derive.storage.metadata.chain import Chain, ChainMove
from derive.time.positions import Place, Segment


@dataclass(frozen=True, slots=True)
class Collection:
    """Description of a collection.

    Attributes:
        name: name of the collection.
        since: timestamp from which the contents are exact.
        upper: timestamp below which the contents are final.
        documents: number of updates in all segments.
        segments: number of segments.
        bytes: size of the segments.
        failure: for a materialized view with an error at the last known time, the first timestamp and the error.
        relation: permanent identifier of the relation, which is its history; 0 if unknown.
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
        """Return the timestamp below which the collection is final and has no error that may be corrected."""
        return self.upper if self.failure is None else min(self.upper, self.failure[0])


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a derivation after it had published documents.

    Attributes:
        part: the edited part: state key of a transform, or the module.
        message: the change and its consequences.
        hint: the remedy.
        at: `upper` of the output at which the change took effect; None before the first run.
    """

    part: str
    message: str
    hint: str
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one transform's lambda.

    Attributes:
        documents: number of processed documents.
        published: number of documents that the lambda has published, before they are reduced.
        micros: time of all shards in the lambda, in microseconds.
    """

    documents: int = 0
    published: int = 0
    micros: int = 0

    def __add__(self, other: Work) -> Work:
        """Return the sum of both."""
        return Work(self.documents + other.documents, self.published + other.published, self.micros + other.micros)


@dataclass(frozen=True, slots=True)
class ResetTask:
    """A task that was reset.

    Attributes:
        epoch: its epoch since the reset.
        folder: the task in whose folder its former state is.
    """

    epoch: int
    folder: str


@dataclass(frozen=True, slots=True)
class TaskState:
    """Description of a task.

    Attributes:
        name: name of the task.
        shards: number of shards.
        positions: for each transform (by state key), the adjusted timestamp below which its source is processed.
        tokens: for each shard (by number), the attempt that last committed its part of a transaction.
        error: JSON of the error that stopped the task; None for none.
        documents_in: number of processed documents.
        documents_out: number of published documents.
        transactions: number of transactions with documents.
        places: for each transform (by state key), the source and the offset of its position.
        fingerprints: fingerprint of each part of the derivation, which changes with an edit.
        edits: edits of parts after the output of the task began.
        home: the task in whose folder the state is, after a swap; empty for the task's own folder.
        chains: chain of the state of each shard (by number) whose state travels.
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
    home: str = ""
    chains: Mapping[int, Chain] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Return the name of the task in whose folder the state is."""
        return self.home or self.name


@dataclass(frozen=True, slots=True)
class ShardData:
    """Data of a materialization's shard that the runtime stores, beside the data in the endpoint.

    Attributes:
        flow: checkpoint of an endpoint that stores no checkpoints; empty if missing.
        driver: state that the connector receives when its stream is opened; empty if missing.
    """

    flow: bytes = b""
    driver: bytes = b""


@dataclass(frozen=True, slots=True)
class MaterializationRecord:
    """The facts about a materialization that its endpoint does not store.

    Attributes:
        restart: JSON of the last reset; empty if there was none.
        refills: for each binding (by state key) that is being refilled, the adjusted timestamp up to which it must be
            stored.
        kept: data of each shard that has some, by number.
        is_stored: whether the metadata database has a record; a release before format 13 has written files instead.
    """

    restart: str = ""
    refills: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[int, ShardData] = field(default_factory=dict)
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """The facts, besides its sources, on which the documents of a derivation's transaction depend.

    A transaction on a cycle may have several steps, whose facts differ.

    Attributes:
        definition: the definition in force.
        is_regular: true if the documents do not depend on the extent of the transaction (law L1), because all inputs
            have one priority, and no document was read from below the output's `upper`.
        clamp: the output's `upper` before the transaction, below which the transaction published no documents.
        begins: adjusted timestamp from which each input was read, by state key.
    """

    definition: Definition
    is_regular: bool
    clamp: int
    begins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PastPart:
    """A part of a derivation's past: consecutive regular transactions, or one other transaction or step of a cycle.

    Attributes:
        number: number of the part, ascending with time.
        definition: text of the definition in force.
        is_regular: as in `Derived`.
        clamp: the output's `upper` before the part.
        upper: the output's `upper` after the part.
        begins: adjusted timestamp from which each input was read, by state key.
        ends: adjusted timestamp up to which each input was read, by state key.
    """

    number: int
    definition: str
    is_regular: bool
    clamp: int
    upper: int
    begins: Mapping[str, int]
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """A task's part of a transaction, committed together with its documents (law L2).

    Attributes:
        positions: new positions of the transforms.
        places: sources and offsets of the positions, as in `TaskState`.
        shards: attempt that prepared the state of each participating shard, by shard number.
        documents_in: number of documents processed in this transaction.
        documents_out: number of documents published in this transaction.
        needs: first timestamp that each transform still needs of its source, by state key.
        may_step_back: whether positions may move back, because the task's endpoint has its own checkpoint.
        derived: facts about a derivation's transaction, or about its steps in order; empty for other tasks.
        applied: the definition of a materialization; None for other tasks.
        work: work of each transform, by state key.
        chains: changes of the chains of shards whose state travels, or has travelled.
        kept: changed data of the shards of a materialization, by number.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: Mapping[int, str]
    documents_in: int
    documents_out: int
    needs: Mapping[str, int] = field(default_factory=dict)
    may_step_back: bool = False
    derived: tuple[Derived, ...] = ()
    applied: Definition | None = None
    work: Mapping[str, Work] = field(default_factory=dict)
    chains: tuple[ChainMove, ...] = ()
    kept: Mapping[int, ShardData] = field(default_factory=dict)

    @property
    def progress(self) -> tuple[str, str]:
        """Return the positions and the places, as JSON that is stored."""
        places = {key: place.to_json() for key, place in self.places.items()}
        return orjson.dumps(dict(self.positions)).decode(), orjson.dumps(places).decode()


@dataclass(frozen=True, slots=True)
class Stopped:
    """The note that a task has stopped; the next commit of the task removes the note.

    Attributes:
        error: the cause, as JSON of a `FlowError`.
    """

    error: str


@dataclass(frozen=True, slots=True)
class Edited:
    """The note of the definition that a run uses from now on, recorded at its start and after each edit.

    Attributes:
        fingerprints: fingerprints of the definition, as in `TaskState`.
        edits: edits of the definition, as in `TaskState`.
    """

    fingerprints: Mapping[str, str]
    edits: Sequence[Edit]


@dataclass(frozen=True, slots=True)
class Divided:
    """The note of a new number of shards.

    Attributes:
        shards: number of shards.
        tokens: for each shard (by number) with state, the attempt that prepared the state.
        chains: chain of the state of each shard (by number) whose state travels.
        kept: data of the shards of a materialization, by number.
    """

    shards: int
    tokens: Mapping[int, str]
    chains: Mapping[int, Chain] = field(default_factory=dict)
    kept: Mapping[int, ShardData] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renamed:
    """The note of renamed inputs of a task.

    Attributes:
        keys: new state keys, by old state key.
    """

    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refilling:
    """The note of the refills in progress, as in `MaterializationRecord`."""

    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """The note of changed data of shards of a materialization, by number, after a transaction that failed in part."""

    data: Mapping[int, ShardData]


TaskNote: TypeAlias = Stopped | Edited | Divided | Renamed | Refilling | Kept
"""A record about a task other than its progress."""


@dataclass(frozen=True, slots=True)
class CollectionUpdate:
    """The updates of a task's transaction to one collection.

    Attributes:
        collection: name of the collection.
        segments: durable files.
        frontier: lower bound of all later updates, above every timestamp in `segments`.
    """

    collection: str
    segments: Sequence[Segment]
    frontier: int


@dataclass(frozen=True, slots=True)
class TaskMove:
    """Progress of a task with its updates.

    Attributes:
        capability: capability to run the task, and to write the collections of `updates`.
        commit: progress of the task; None for none.
        updates: at most one update of each collection, with timestamps at or above the capability's frontier for it.
    """

    capability: TaskCapability
    commit: TaskCommit | None
    updates: Sequence[CollectionUpdate] = ()

    @property
    def is_more(self) -> bool:
        """Return true if the move has more effects than the progress of time."""
        has_states = self.commit is None or bool(self.commit.shards or self.commit.kept)
        return has_states or any(update.segments for update in self.updates)

    def moved(self) -> TaskCapability:
        """Return the capability after the move, at its new frontiers."""
        frontiers = {update.collection: update.frontier for update in self.updates}
        return replace(
            self.capability,
            frontiers={**self.capability.frontiers, **frontiers},
            progress=self.commit.progress if self.commit else self.capability.progress,
        )


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Frontiers of a collection, with the capabilities that bound them.

    Attributes:
        since: timestamp from which the contents are exact.
        upper: timestamp below which the contents are final.
        readers: read capabilities, the least frontier first.
        writers: write capabilities, the least frontier first.
    """

    since: int
    upper: int
    readers: tuple[Capability, ...] = ()
    writers: tuple[Capability, ...] = ()

    @property
    def bound(self) -> int:
        """Return the greatest `since` that the read capabilities allow now."""
        return max(self.since, min([self.upper, *(reader.frontier for reader in self.readers)]))
