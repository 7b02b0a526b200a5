"""A plan: one transaction of a materialization, as data that travels to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from derive.materialize.binding import StoredBinding
from derive.materialize.cutting import MOST_BYTES, MOST_DOCUMENTS, Extent
from derive.materialize.reset_marker import Restart
from derive.protocol.materialization import MaterializationSpec
from derive.shard.attempt import Attempt
from derive.shard.plan import Shape
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One transaction of a materialization, as data.

    Attributes:
        spec: the materialization.
        root: the data folder.
        token: of this transaction alone; it begins with the identifier of the run's capability.
        epoch: of the run; workers of an older one are fenced.
        transaction: counts the transactions that the run has begun for this task.
        shards: how many shards the task has.
        tokens: by shard number, the name of the attempt that has committed last, as far as the data folder knows.
        positions: for each binding (by state key), the adjusted clock below which everything is stored.
        end: adjusted clock at which the transaction ends.
        reads: what to read, one entry for each binding that takes part.
        bindings: in the order of the inputs.
        message: what the connector is told of the materialization, serialized; it may hold secrets.
        version: of that.
        secrets: texts that are to be hidden in messages.
        slices: where several shards share the reading, ascending borders in adjusted time, first and last included.
        is_small: there is too little to read for more than one task to be worth its while.
        restart: the last reset.
        documents: one transaction of the endpoint has about so many at most, …
        bytes: … of about so many bytes, in memory.
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
    restart: Restart = field(default_factory=Restart)
    documents: int = MOST_DOCUMENTS
    bytes: int = MOST_BYTES

    @property
    def shape(self) -> Shape:
        """How it is cut: read by one shard, or shuffled to several."""
        return "single" if self.shards == 1 else "sharded"

    @property
    def parts(self) -> tuple[StorePlan, ...]:
        """Plans of all tasks that take part in it."""
        return (self,)

    @property
    def extent(self) -> Extent:
        """How far it goes."""
        taking_part = frozenset(self.bindings[read.index].state_key for read in self.reads)
        return Extent(taking_part, self.end, self.documents, self.bytes)

    def attempt(self, number: int) -> Attempt:
        """An attempt at a part of this transaction, by the number its executor gives it."""
        return Attempt(self.epoch, self.transaction, number, self.token)
