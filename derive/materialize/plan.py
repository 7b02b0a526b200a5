"""A plan: one transaction of a materialization, as data that is sent to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from derive.materialize.binding import StoredBinding
from derive.materialize.cutting import MOST_BYTES, MOST_DOCUMENTS, Extent
from derive.materialize.restarts import ResetMarker
from derive.protocol.materialization import MaterializationSpec
from derive.shard.plan import Attempt, Shape
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One transaction of a materialization, as data.

    Attributes:
        spec: the materialization.
        root: the data folder.
        token: token of this transaction alone; it begins with the identifier of the run's capability.
        epoch: epoch of the run; workers of an older epoch are fenced.
        transaction: number of transactions that the run has begun for this task.
        shards: number of the task's shards.
        tokens: name of the attempt that committed last, as recorded in the data folder, by shard number.
        positions: for each binding (by state key), the adjusted timestamp below which everything is stored.
        end: adjusted timestamp of the transaction's end.
        reads: reads of sources, one for each binding that takes part.
        bindings: bindings in the order of the inputs.
        message: serialized message of the materialization for the connector; it may contain secrets.
        version: version of the message.
        secrets: texts to hide in messages.
        slices: borders of slices in adjusted time, ascending, if several shards share the reading.
        is_small: whether there is too little to read for more than one task.
        restart: the last reset.
        documents: approximate maximum number of documents in one transaction of the endpoint.
        bytes: approximate maximum size of one transaction of the endpoint, in bytes of memory.
    """

    spec: MaterializationSpec
    root: Path
    token: str
    epoch: int
    transaction: int
    shards: int
    tokens: Mapping[int, str]
    positions: Mapping[str, int]
    end: int
    reads: tuple[SourceRead, ...]
    bindings: tuple[StoredBinding, ...]
    message: bytes = field(repr=False)
    version: str
    secrets: frozenset[str] = field(repr=False)
    slices: tuple[int, ...] = ()
    is_small: bool = False
    restart: ResetMarker = field(default_factory=ResetMarker)
    documents: int = MOST_DOCUMENTS
    bytes: int = MOST_BYTES

    @property
    def shape(self) -> Shape:
        """Return the shape of the transaction: read by one shard, or shuffled to several."""
        return "single" if self.shards == 1 else "sharded"

    @property
    def parts(self) -> tuple[StorePlan, ...]:
        """Return the plans of all tasks that take part in the transaction."""
        return (self,)

    @property
    def refilling(self) -> frozenset[str]:
        """Return the state keys of bindings that are being refilled."""
        return frozenset(binding.state_key for binding in self.bindings if binding.is_refilling)

    @property
    def extent(self) -> Extent:
        """Return the bindings that are read, the end of the reads, and their documents and bytes."""
        taking_part = frozenset(self.bindings[read.index].state_key for read in self.reads)
        return Extent(taking_part, self.end, self.documents, self.bytes)

    def attempt(self, number: int) -> Attempt:
        """Return an attempt at a part of this transaction, by the number that its executor assigns."""
        return Attempt(self.epoch, self.transaction, number, self.token)
