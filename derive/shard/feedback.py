"""Feedback in memory: what derivations of a cycle publish goes to those that read it, inside one transaction.

At the end of a tick its published documents are combined, and those that a transform on the cycle selects go into the
backlog of that transform's derivation, where they meet what is read from storage. What falls behind the end of the
transaction is not kept: the next one reads it from storage, like any other source.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from derive.protocol.specs import DerivationSpec, Document, InputSpec
from derive.shard.feedback_queue import Combined, FeedbackQueue, SourceRow, source_rows
from derive.storage.segments.columns import MakeFields
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.spill import Spill

_Columns: TypeAlias = tuple[list[int], list[int], list[bytes], list[Document], list[str]]
"""Clocks, seqs, keys, documents and labels."""

_SORT_KEY = itemgetter(0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many documents are handled at once.

    Attributes:
        few: of one tick, which are processed together.
        piece: of a tick that has more.
        written: of several ticks, which are written together.
    """

    few: int = 10_000
    piece: int = 1_000
    written: int = 20_000


SIZES = Sizes()


class StoredRows:
    """Source rows from storage, of which the next one can be seen.

    Args:
        parts: the rows, in order.

    Attributes:
        first: the adjusted clock of the next row; None if there is none any more.
    """

    def __init__(self, parts: Iterator[ReadRows]) -> None:
        self._parts = parts
        self._rows: list[SourceRow] = []
        self._next = 0
        self.first: int | None = None
        self._look()

    def _look(self) -> None:
        while self._next == len(self._rows):
            part = next(self._parts, None)
            if part is None:
                self.first = None
                return
            self._rows, self._next = source_rows(part), 0
        self.first = self._rows[self._next][0]

    def take(self, end: int) -> Iterator[list[SourceRow]]:
        """Take rows with adjusted clocks below `end` out, in order."""
        while self.first is not None and self.first < end:
            rows, begin = self._rows, self._next
            self._next = behind = bisect_left(rows, (end,), begin)
            self._look()
            yield rows[begin:behind]


class Backlog:
    """What inputs of one priority have yet to read, in ticks: from storage, and what was fed back to them.

    Args:
        spec: their derivation.
        inputs: these.
        parts: source rows from storage, in order.
        end: adjusted clock at which the transaction ends.
        spill: where goes what outgrows memory.
    """

    def __init__(
        self, spec: DerivationSpec, inputs: Sequence[InputSpec], parts: Iterator[ReadRows], end: int, spill: Spill
    ) -> None:
        self._tick = spec.tick
        self._stored = StoredRows(parts)
        self.fed_back = FeedbackQueue(spec, [read for read in inputs if read.feedback], end, spill)

    @property
    def first(self) -> int | None:
        """The adjusted clock of the next document; None if there is none."""
        stored, fed_back = self._stored.first, self.fed_back.first
        if stored is None or fed_back is None:
            return fed_back if stored is None else stored
        return min(stored, fed_back)

    def take(self, tick: int) -> Iterator[list[SourceRow]]:
        """Take the documents of the first tick out, in order; they are to be used up before anything else is done."""
        fed_back, spilled = self.fed_back.take(tick)
        return filter(None, in_pieces(self._stored.take((tick + 1) * self._tick), fed_back, spilled))


def in_pieces(
    stored: Iterator[list[SourceRow]],
    fed_back: list[SourceRow],
    spilled: Iterator[SourceRow] | None,
    sizes: Sizes = SIZES,
) -> Iterator[list[SourceRow]]:
    """All rows of a tick in order: together if they are few.

    Args:
        stored: rows from storage, in order.
        fed_back: rows in any order.
        spilled: rows in order.
        sizes: how many are few.
    """
    rows, more = next(stored, []), next(stored, None)
    if more is None and spilled is None and len(fed_back) <= sizes.few:
        yield sorted(rows + fed_back, key=_SORT_KEY) if fed_back else rows
        return
    from_storage = itertools.chain(rows, more or [], itertools.chain.from_iterable(stored))
    merged = heapq.merge(from_storage, sorted(fed_back, key=_SORT_KEY), spilled or (), key=_SORT_KEY)
    size = max(sizes.piece, len(rows), len(more or []))  # batches from storage are of a size that memory holds
    while piece := list(itertools.islice(merged, size)):
        yield piece


class Gathered:
    """What was published, gathered from several ticks to be written together.

    Args:
        write: takes rows, in order.
        make_fields: makes typed columns of documents.
        most_bytes: about how many bytes to gather.
        sizes: how many documents to gather.
    """

    def __init__(
        self, write: Callable[[WrittenRows], None], make_fields: MakeFields, most_bytes: int, sizes: Sizes = SIZES
    ) -> None:
        self._write = write
        self._make_fields = make_fields
        self._most_bytes = most_bytes
        self._most_rows = sizes.written
        self._weight = 0
        self._columns: _Columns = ([], [], [], [], [])

    def add(self, combined: Combined, weight: int) -> None:
        """Take documents of one tick, which take about `weight` bytes."""
        columns: tuple[list[Any], ...] = self._columns
        for column, part in zip(columns, combined, strict=True):
            column.extend(part)
        self._weight += weight
        if len(self._columns[0]) >= self._most_rows or self._weight > self._most_bytes:
            self.flush()

    def add_rows(self, rows: WrittenRows) -> None:
        """Take rows behind everything that was taken before."""
        self.flush()
        self._write(rows)

    def flush(self) -> None:
        """Write what there is."""
        if self._columns[0]:
            self._write(WrittenRows.sorted_of(*self._columns, self._make_fields(self._columns[3])))
        self._columns = ([], [], [], [], [])
        self._weight = 0
