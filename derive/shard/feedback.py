"""Feedback in memory: what derivations of a cycle publish goes to those that read it, inside one transaction.

At the end of a tick its published documents are combined, and those that a transform on the cycle selects go into the
backlog of that transform's derivation, where they meet what is read from storage. What falls behind the end of the
transaction is not kept: the next one reads it from storage, like any other source.

A tick of few documents is taken as lists. One of many, or of which some are on disk, is taken as rows, which Arrow
merges.
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
"""Source documents of one tick, in order: runs, each of another transform, or rows."""

FEW = 10_000
"""So many documents of a tick are processed together; of more, about so many at once."""


class Backlog:
    """What inputs of one priority have yet to read, in ticks: from storage, and what was fed back to them.

    Args:
        plan: the transaction of their derivation.
        inputs: these.
        reading: what the derivation reads of them.
        parts: source rows from storage, in order.
        spill: where goes what outgrows memory.
        few: how many documents of a tick are few.
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
        """The adjusted clock of the next document; None if there is none."""
        stored, fed_back = self._stored.first, self.fed_back.first
        if stored is None or fed_back is None:
            return fed_back if stored is None else stored
        return min(stored, fed_back)

    def take(self, tick: int) -> Iterator[TickPart]:
        """Take the documents of the first tick out, in order; they are to be used up before anything else is done."""
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
    """All rows of a tick, in order.

    Args:
        stored: those from storage, in order.
        fed_back: those in memory, in any order.
        spilled: those on disk, in order.
        piece: about how many there may be at once.
    """
    streams = [(part.rows().batch for part in stored), spilled or iter(())]
    if fed_back:
        rows = rows_of(fed_back)
        streams.append(rows.slice(begin, piece).batch for begin in range(0, len(rows), piece))
    yield from map(ReadRows, merge([Cursor((), stream, ReadRows.ORDER) for stream in streams]))
