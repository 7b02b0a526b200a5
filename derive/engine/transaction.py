"""Transactions of any task: what one attempt reads, and what has come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.engine.checkpoint import Checkpoint
from derive.storage.metadata.capability import TaskCapability
from derive.time.limits import Limits
from derive.time.segment import Segment
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class Transaction:
    """One attempt at a transaction.

    Attributes:
        number: counts the attempts that this run has begun for the task.
        token: of this attempt alone; it begins with the identifier of the capability.
        capability: the right to run the task, and to write for it.
        checkpoint: what it builds on.
        reads: what to read, one entry per input that takes part.
        end: adjusted clock at which it ends, a tick boundary.
        limits: how its work is cut.
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
    """What an attempt has prepared, which is nobody's before the commit names it.

    Attributes:
        documents_in: source documents it processed.
        segments: files it wrote.
        tokens: by number of each shard whose state is prepared, the name of the attempt that prepared it.
        stored: documents that were stored elsewhere.
        cleared: state keys of inputs that go on from their beginning: an endpoint has nothing of them any more.
        stepped_back: instead of all that, where inputs (by state key) have to go on from, which is before what was
            known to be done: an endpoint has lost it.
    """

    documents_in: int = 0
    segments: tuple[Segment, ...] = ()
    tokens: Mapping[int, str] = field(default_factory=dict)
    stored: int = 0
    cleared: tuple[str, ...] = ()
    stepped_back: Mapping[str, int] = field(default_factory=dict)

    @property
    def documents_out(self) -> int:
        """Documents it wrote."""
        return sum(segment.documents for segment in self.segments) + self.stored


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that is over.

    Attributes:
        documents_in: source documents it processed.
        documents_out: documents it published.
        seconds: how long it took.
    """

    documents_in: int
    documents_out: int
    seconds: float
