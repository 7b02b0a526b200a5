"""Combine documents per tick and key at one place, in processing order.

Most documents are unique by key and tick, and are never inspected. Publications of an open tick are held unchanged
until the tick ends, or memory must be freed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from derive.document.key_columns import KeyColumns
from derive.protocol.specs import DerivationSpec, Document
from derive.shard.ended_ticks import combine_ended
from derive.shard.key_fold import KeyFold
from derive.shard.large_tick import LargeTick
from derive.shard.published import Combined, Content, Documents, Published, RowMaker, weigh
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import NumberedRows, WrittenRows
from derive.storage.segments.spill import Spill

_PIECE = 5_000


class TickCombiner:
    """Combines documents that arrive in processing order, tick by tick.

    Args:
        spec: the derivation.
        spill: files for a tick that exceeds the memory limit.

    Attributes:
        open_tick: number of the open tick; None for none.
        weight: approximate memory of its documents, bytes.
    """

    def __init__(self, spec: DerivationSpec, spill: Spill) -> None:
        self._tick = spec.tick
        self._fold = KeyFold(spec)
        self._make = RowMaker(spec.collection)
        self._collection = spec.collection
        self._spill = spill
        self._held: list[Published] = []
        self._open: dict[bytes, tuple[int, list[Document]]] = {}  # earlier documents of the tick, folded
        self._large: LargeTick[NumberedRows] | None = None
        self._number = 0
        self.open_tick: int | None = None
        self.weight = 0

    @property
    def is_large(self) -> bool:
        """Return true if the open tick has exceeded the memory limit, so that only `close` can end it."""
        return self._large is not None

    def add(self, published: Published) -> Iterator[WrittenRows]:
        """Add documents with ascending timestamps; yield the rows of ended ticks."""
        clocks = published.clocks
        first, last = int(clocks[0]) // self._tick, int(clocks[-1]) // self._tick
        if first == last and self.open_tick in (None, first):
            self._hold(first, published)
            return
        over = int(np.searchsorted(clocks, last * self._tick))
        begin = 0
        if self._open or self._large is not None:
            assert self.open_tick is not None
            begin = int(np.searchsorted(clocks, (self.open_tick + 1) * self._tick))
            if begin:
                self._hold(self.open_tick, published.slice(0, begin))
            yield from self.close()
        if begin < over:
            self._held.append(published.slice(begin, over))
        yield from self._combined()
        self._hold(last, published.slice(over, len(published)))

    def close(self) -> Iterator[WrittenRows]:
        """End the open tick; yield its rows, in order."""
        large, self._large = self._large, None
        if large is not None:
            self.take()
            yield from large.close()
        elif self._open:
            tick = self.take()
            texts, fields = self._make.texts(tick.content), self._make.fields(tick.content)
            rows = WrittenRows.of(np.array(tick.clocks, dtype=np.int64), tick.seqs, tick.key_list, texts, tick.labels)
            yield rows.with_fields(fields).in_order()
        else:
            yield from self._combined()

    def take(self) -> Combined:
        """End the open tick; return its documents, in no particular order."""
        if len(self._held) == 1 and not self._open:
            (held,) = self._held
            keys = held.keys if isinstance(held.keys, KeyColumns) else held.key_list
            if isinstance(keys, KeyColumns) or len(set(keys)) == len(keys):  # the usual case
                self._end()
                return self._combined_of(held.clocks.tolist(), [0] * len(held), keys, held.content)
        self._fold_held()
        clocks: list[int] = []
        seqs: list[int] = []
        keys = []
        documents: list[Document] = []
        for key, (clock, folded) in self._open.items():
            for seq, document in enumerate(folded):
                clocks.append(clock)
                seqs.append(seq)
                keys.append(key)
                documents.append(document)
        self._end()
        return self._combined_of(clocks, seqs, keys, Documents(documents))

    def _combined_of(
        self, clocks: list[int], seqs: list[int], keys: list[bytes] | KeyColumns, content: Content
    ) -> Combined:
        return Combined(clocks, seqs, keys, content, self._make.listed_labels(content))

    def _end(self) -> None:
        self._held, self._open = [], {}
        self.open_tick = None
        self.weight = 0

    def _hold(self, tick: int, published: Published) -> None:
        """Add documents of one tick, which is or becomes the open tick."""
        self.open_tick = tick
        self.weight += published.weight
        if self._large is not None:
            numbers = np.arange(self._number, self._number + len(published))
            self._number += len(published)
            columns = (self._make.texts(published.content), self._make.labels(published.content), numbers)
            self._large.add(NumberedRows.from_columns(published.clocks, published.key_array, *columns))
            return
        self._held.append(published)
        if self.weight > self._spill.memory:
            self._fold_held()
            self._lighten()

    def _fold_held(self) -> None:
        opened = self._open
        for held in self._held:
            for clock, key, document in zip(held.clocks.tolist(), held.key_list, held.content.documents(), strict=True):
                entry = opened.get(key)
                if entry is None:
                    opened[key] = (clock, [document])
                else:
                    folded = entry[1]
                    self._fold.add(key, folded, document)
                    opened[key] = (clock, folded)
        self._held = []

    def _lighten(self) -> None:
        """Spill the folded documents to disk, unless folding has freed enough memory."""
        folded = [document for _, documents in self._open.values() for document in documents]
        self.weight = sum(weigh(folded[begin : begin + _PIECE], 1) for begin in range(0, len(folded), _PIECE))
        if self.weight <= self._spill.memory // 2:
            return
        del folded
        self._large = LargeTick(NumberedRows, self._fold, compile_labels(self._collection), self._spill)
        self._number = 0
        while self._open:
            rows: list[tuple[int, bytes, Document, int]] = []
            while self._open and len(rows) < _PIECE:
                key, (clock, documents) = self._open.popitem()
                rows += [(clock, key, document, number) for number, document in enumerate(documents, -len(documents))]
            clocks, keys, taken, numbers = zip(*rows, strict=True)
            content = Documents(taken)
            columns = (self._make.texts(content), self._make.labels(content), numbers)
            self._large.add(NumberedRows.from_columns(clocks, keys, *columns))

    def _combined(self) -> Iterator[WrittenRows]:
        """End all ticks with held documents."""
        parts = self._held
        self._end()
        if parts:
            yield combine_ended(parts, self._tick, self._fold, self._make)
