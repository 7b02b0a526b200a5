"""Division of a task's transaction into consecutive transactions of the endpoint, for each shard.

Each transaction of the endpoint ends where no document of the same timestamp follows, so that a checkpoint is a
timestamp. Documents below the endpoint's checkpoint are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from derive.materialize.binding import StoredBinding
from derive.materialize.stream import ShardStream
from derive.storage.segments.rows import ReadRows, concat
from derive.time.frontier import END_OF_TIME

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
        Number of documents read that will not be read again, and number of documents stored.

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
        """Return the positions of bindings at a time; a cleared binding waits until it is read from its beginning."""
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
    """Yield rows that the endpoint has not stored yet; for bindings that are cleared, rows that it may have."""
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
            gathered.append(rows)  # all rows may have that timestamp
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
