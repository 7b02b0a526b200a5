"""Transactions of any task: the input of one attempt, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.engine.checkpoint import Checkpoint
from derive.storage.capability.table import TaskCapability
from derive.time.extent import Limits
from derive.time.source_read import Segment
from derive.time.source_read import SourceRead


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
