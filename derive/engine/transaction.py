"""Transactions of any task: the input of one attempt, its result, and the checkpoint that commits with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from derive.protocol.specs import InputSpec
from derive.storage.capability.table import TaskCapability
from derive.time.extent import Limits
from derive.time.frontier import BEGINNING
from derive.time.positions import Place
from derive.time.source_read import Segment, SourceRead


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a task, as of its last commit.

    Attributes:
        positions: for each input (by `state_key`), the adjusted timestamp before which all documents are processed.
        places: for each input (by `state_key`), the relation that its position refers to.
        shards: number of shards with the task's state.
        tokens: name of the attempt whose state the shard must have, by shard number.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: int
    tokens: Mapping[int, str]

    def position(self, spec: InputSpec) -> int:
        """Return the adjusted timestamp before which an input has processed all documents."""
        return self.positions.get(spec.state_key, BEGINNING)

    def after(self, taking_part: Sequence[InputSpec], end: int, tokens: Mapping[int, str]) -> Checkpoint:
        """Return the checkpoint after a transaction.

        Args:
            taking_part: inputs that the transaction has read.
            end: adjusted timestamp at which it ended.
            tokens: tokens of the shards whose state it has prepared.
        """
        return self.moved({spec.state_key: end for spec in taking_part}, tokens)

    def moved(self, positions: Mapping[str, int], tokens: Mapping[int, str]) -> Checkpoint:
        """Return the checkpoint after inputs have moved.

        Args:
            positions: new positions of the inputs.
            tokens: tokens of the shards whose state was prepared.
        """
        return replace(self, positions={**self.positions, **positions}, tokens={**self.tokens, **tokens})


@dataclass(frozen=True, slots=True)
class Transaction:
    """One attempt at a transaction.

    Attributes:
        number: number of the attempt in this run of the task, from 1.
        token: unique name of the attempt; it begins with the identifier of the capability.
        capability: the capability to run the task, and to write for it.
        checkpoint: the checkpoint before the transaction.
        reads: reads of its inputs, one entry per input.
        end: adjusted timestamp at which it ends, a tick boundary.
        limits: limits for cutting its work.
    """

    number: int
    token: str
    capability: TaskCapability
    checkpoint: Checkpoint
    reads: tuple[SourceRead, ...]
    end: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Prepared:
    """The work that an attempt has prepared, which takes effect with the commit.

    Attributes:
        documents_in: number of processed source documents.
        segments: written files.
        tokens: name of the attempt that prepared a shard's state, by number of each such shard.
        stored: number of documents stored elsewhere.
        cleared: state keys of inputs that start again, because an endpoint has none of their rows any more.
        stepped_back: positions of inputs (by state key) to rewind to, because an endpoint has lost rows; without other
            work.
    """

    documents_in: int = 0
    segments: tuple[Segment, ...] = ()
    tokens: Mapping[int, str] = field(default_factory=dict)
    stored: int = 0
    cleared: tuple[str, ...] = ()
    stepped_back: Mapping[str, int] = field(default_factory=dict)

    @property
    def documents_out(self) -> int:
        """Return the number of written documents."""
        return sum(segment.documents for segment in self.segments) + self.stored


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction.

    Attributes:
        documents_in: number of processed source documents.
        documents_out: number of published documents.
        seconds: duration.
    """

    documents_in: int
    documents_out: int
    seconds: float
