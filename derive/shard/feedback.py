"""Feedback in memory: pass publications of a cycle's derivations to their readers within one transaction.

At the end of a tick its combined documents that a transform of the cycle selects go to the backlog of that transform's
derivation, which merges them with stored documents. Documents beyond the end of the transaction are dropped: the next
transaction reads them from storage.

A tick with few documents is taken as lists. A tick with many documents, or with spilled ones, is taken as rows that
Arrow merges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from derive.protocol.specs import InputSpec
from derive.shard.feedback_queue import FeedbackQueue
from derive.shard.fields import Reading
from derive.shard.plan import Plan
from derive.shard.source_run import SourceRun, rows_of
from derive.shard.stored_runs import StoredRuns, StoredSlice
from derive.storage.segments.merge import Cursor, merge
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.spill import Spill

TickPart: TypeAlias = list[SourceRun] | ReadRows
"""Source documents of one tick, in order: runs of distinct transforms, or rows."""

FEW = 10_000
"""Number of documents of a tick that are processed at once; also the approximate size of the pieces of larger ticks."""


class Backlog:
    """The unprocessed documents of inputs of one priority, by tick: stored ones and fed-back ones.

    Args:
        plan: the transaction of their derivation.
        inputs: the inputs.
        reading: columns that the derivation reads.
        parts: stored source rows, in order.
        spill: files for rows that exceed the memory limit.
        few: largest number of documents that are taken as lists.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[InputSpec],
        reading: Reading,
        parts: Iterator[ReadRows],
        spill: Spill,
        few: int = FEW,
    ) -> None:
        self._tick = plan.spec.tick
        self._few = few
        self._stored = StoredRuns(plan, reading, parts)
        self.fed_back = FeedbackQueue(plan.spec, [read for read in inputs if read.feedback], reading, plan.end, spill)

    @property
    def first(self) -> int | None:
        """Return the adjusted timestamp of the next document; None for none."""
        stored, fed_back = self._stored.first, self.fed_back.first
        if stored is None or fed_back is None:
            return fed_back if stored is None else stored
        return min(stored, fed_back)

    def take(self, tick: int) -> Iterator[TickPart]:
        """Yield and remove the documents of the first tick, in order.

        The caller consumes them before any other call.
        """
        fed_back, spilled = self.fed_back.take(tick)
        stored = self._stored.take((tick + 1) * self._tick)
        first, more = next(stored, None), next(stored, None)
        if more is None and spilled is None and sum(map(len, fed_back)) <= self._few:
            runs = [*(first.runs() if first else ()), *fed_back]
            if len({run.transform for run in runs}) < len(runs):
                yield rows_of(runs)
            elif runs:
                yield runs
            return
        read = chain([part for part in (first, more) if part], stored)
        yield from merged(read, fed_back, spilled, self._few)


def merged(
    stored: Iterator[StoredSlice], fed_back: Sequence[SourceRun], spilled: Iterator[pa.RecordBatch] | None, piece: int
) -> Iterator[ReadRows]:
    """Yield all rows of a tick, in order.

    Args:
        stored: stored rows, in order.
        fed_back: fed-back rows in memory, in any order.
        spilled: fed-back rows on disk, in order; None for none.
        piece: approximate limit for the size of a piece.
    """
    streams = [(part.rows().batch for part in stored), spilled or iter(())]
    if fed_back:
        rows = rows_of(fed_back)
        streams.append(rows.slice(begin, piece).batch for begin in range(0, len(rows), piece))
    yield from map(ReadRows, merge([Cursor((), stream, ReadRows.ORDER) for stream in streams]))
