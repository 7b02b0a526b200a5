"""A plan: one transaction of a materialization as data for workers, and its division into transactions of shards.

All documents of one timestamp are in one transaction of the endpoint, so a checkpoint is a timestamp. Documents below
the checkpoint of the endpoint are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from derive.materialize.binding import StoredBinding
from derive.materialize.restarts import ResetMarker
from derive.materialize.stream import ShardStream
from derive.protocol.materialization import MaterializationSpec
from derive.shard.plan import Attempt, Shape
from derive.storage.location import Location
from derive.storage.metadata.descriptions import ShardData
from derive.storage.segments.rows import ReadRows, concat
from derive.time import END_OF_TIME
from derive.time.positions import SourceRead

MOST_DOCUMENTS, MOST_BYTES = 50_000, 24 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a transaction.

    Attributes:
        taking_part: state keys of the read bindings.
        end: adjusted timestamp of the end.
        documents: approximate maximum number of documents in one transaction of the endpoint.
        bytes: approximate maximum size of one transaction of the endpoint, in bytes of memory.
    """

    taking_part: frozenset[str]
    end: int
    documents: int = MOST_DOCUMENTS
    bytes: int = MOST_BYTES


def store_rows(
    stream: ShardStream,
    bindings: Sequence[StoredBinding],
    rows: Iterator[ReadRows],
    extent: Extent,
    token: str,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Store rows by a stream, and wait for their commit.

    Args:
        stream: stream of the shard that owns the rows.
        bindings: bindings of the materialization.
        rows: rows in order, all below the end.
        extent: extent of the transaction.
        token: name of this attempt.
        progress: function called with the number of read rows.

    Returns:
        Number of read documents that will not be read again, and number of stored documents.

    Raises:
        FlowError: storing failed.
    """
    stored = 0
    clearing = dict(stream.clearing)
    passed = [index for index, binding in enumerate(bindings) if binding.state_key in clearing]
    read: list[int] = []

    def count(rows: ReadRows) -> None:
        progress(len(rows))
        read.append(len(rows) - (int(np.isin(rows.transforms, passed).sum()) if passed else 0))

    def positions(end: int) -> dict[str, int]:
        """Return the positions of bindings at a time.

        A cleared binding keeps its position until it is read from its start.
        """
        return {
            key: max(min(end, clearing.get(key, end)), stream.positions[key])
            for key in extent.taking_part
            if key not in clearing or key in stream.clearing
        }

    for end, part in _cut(_new(stream, bindings, rows, count), extent):
        counts = stream.transact(_by_binding(part), positions(end), token)
        stored += sum(count for index, count in counts.items() if index not in passed)
    ended = {key for key in stream.clearing.keys() & extent.taking_part if stream.clearing[key] <= extent.end}
    if ended or stream.is_new:
        stream.transact({}, positions(extent.end), token)
    stream.finish()
    return sum(read), stored


def _new(
    stream: ShardStream, bindings: Sequence[StoredBinding], parts: Iterator[ReadRows], count: Callable[[ReadRows], None]
) -> Iterator[ReadRows]:
    """Yield the rows that the endpoint has not stored yet; for cleared bindings, the rows that it may have stored."""
    keys = [binding.state_key for binding in bindings]
    begins = np.array([stream.positions[key] for key in keys], dtype=np.int64)
    ends = np.array([stream.clearing.get(key, END_OF_TIME) for key in keys], dtype=np.int64)
    for rows in parts:
        count(rows)
        is_new = (rows.adjusted >= begins[rows.transforms]) & (rows.adjusted < ends[rows.transforms])
        left = rows if is_new.all() else rows.filter(is_new)
        if len(left):
            yield left


def _cut(parts: Iterator[ReadRows], extent: Extent) -> Iterator[tuple[int, list[ReadRows]]]:
    """Yield the rows of each transaction of the endpoint, with the adjusted timestamp of its end."""
    gathered: list[ReadRows] = []
    documents = size = 0
    for rows in parts:
        documents, size = documents + len(rows), size + rows.nbytes
        if documents < extent.documents and size < extent.bytes:
            gathered.append(rows)
            continue
        border = int(rows.adjusted[-1])  # more rows of this timestamp may follow
        count = int(np.searchsorted(rows.adjusted, border))
        ended = [*gathered, rows.slice(0, count)] if count else gathered
        if not count and gathered and gathered[-1].adjusted[-1] == border:
            gathered.append(rows)  # all rows may have the same timestamp
            continue
        if ended:
            yield border, ended
        gathered = [rows.slice(count)]
        documents, size = len(gathered[0]), gathered[0].nbytes
    if gathered:
        yield extent.end, gathered


def _by_binding(parts: Sequence[ReadRows]) -> Mapping[int, ReadRows]:
    """Return the rows of several parts, by index of their binding."""
    rows = concat(parts)
    present = np.unique(rows.transforms).tolist()
    if len(present) == 1:
        return {present[0]: rows}
    return {index: rows.filter(rows.transforms == index) for index in present}


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One transaction of a materialization, as data.

    Attributes:
        spec: the materialization.
        root: the data folder.
        location: location of the segments.
        token: token of this transaction; it begins with the identifier of the run's capability.
        epoch: epoch of the run; workers of an older epoch are fenced.
        transaction: number of transactions that the run has begun for this task.
        shards: number of the task's shards.
        tokens: for each shard (by number), the name of the attempt whose commit the data folder recorded last.
        positions: for each binding (by state key), the adjusted timestamp below which all documents are stored.
        end: adjusted timestamp of the transaction's end.
        reads: reads of sources, one for each binding that takes part.
        bindings: bindings in the order of the inputs.
        message: serialized message of the materialization for the connector; it may contain secrets.
        version: version of the message.
        secrets: texts to hide in messages.
        slices: borders of slices in adjusted time, ascending, if several shards share the reading.
        is_small: whether one task should read all documents, because they are few.
        restart: the last reset.
        kept: data that the runtime stores for each shard, by number.
        fenced: for each shard (by number) whose session was fenced, the name of the attempt whose commit it had seen.
        documents: approximate maximum number of documents in one transaction of the endpoint.
        bytes: approximate maximum size of one transaction of the endpoint, in bytes of memory.
    """

    spec: MaterializationSpec
    root: Path
    location: Location
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
    kept: Mapping[int, ShardData] = field(default_factory=dict)
    fenced: Mapping[int, str] = field(default_factory=dict)
    documents: int = MOST_DOCUMENTS
    bytes: int = MOST_BYTES

    @property
    def shape(self) -> Shape:
        """Return the shape of the transaction: read by one shard, or shuffled to several."""
        return "single" if self.shards == 1 else "sharded"

    @property
    def needs_folder(self) -> bool:
        """Return true: workers need the data folder, because it has the locks of shards."""
        return True

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
        """Return an attempt at a part of this transaction, with the number that the executor assigns."""
        return Attempt(self.epoch, self.transaction, number, self.token)
