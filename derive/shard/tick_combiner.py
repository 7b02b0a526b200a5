"""Combining per tick and key where all documents of each tick come through one place, in processing order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from derive.document.exact import dump_exact
from derive.protocol.specs import DerivationSpec, Document
from derive.shard.invoke import Published
from derive.shard.key_fold import KeyFold
from derive.shard.large_tick import LargeTick
from derive.storage.segments.columns import compile_fields
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import NumberedRows, WrittenRows
from derive.storage.segments.spill import Spill
from derive.storage.segments.texts import write_texts

_Part: TypeAlias = tuple[Any, Any, list[bytes], list[Document]]
"""Clocks, seqs, keys and documents."""

_PIECE = 5_000
_SAMPLE = 17
"""Of how many documents one is measured."""

_OBJECT_BYTES, _TEXT_BYTES = 400, 4
"""About how many bytes a document takes in memory, and for each byte of its JSON text."""


class TickCombiner:
    """Combines documents that arrive in processing order, tick after tick.

    Args:
        spec: the derivation.
        spill: where a tick goes that outgrows memory.

    Attributes:
        open_tick: the tick whose documents are being taken; None if there is none.
        weight: about how many bytes its documents take.
    """

    def __init__(self, spec: DerivationSpec, spill: Spill) -> None:
        self._tick = spec.tick
        self._fold = KeyFold(spec)
        self._labels = compile_labels(spec.collection)
        self._fields = compile_fields(spec.collection)
        self._spill = spill
        self._open: dict[bytes, tuple[int, list[Document]]] = {}
        self._large: LargeTick[NumberedRows] | None = None
        self._number = 0
        self.open_tick: int | None = None
        self.weight = 0

    @property
    def is_large(self) -> bool:
        """Whether the open tick has outgrown memory, so that only `close` can end it."""
        return self._large is not None

    def add(self, published: Published) -> Iterator[WrittenRows]:
        """Take documents with ascending clocks; yields the rows of ticks that are over."""
        clocks, keys, documents = published.clocks, published.keys, published.documents
        first, last_tick = int(clocks[0]) // self._tick, int(clocks[-1]) // self._tick
        if first == last_tick and self.open_tick in (None, first):
            self._collect(first, clocks.tolist(), keys, documents)
            return
        ticks = clocks // self._tick
        borders = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(keys)]
        ready: list[_Part] = []
        for begin, end in itertools.pairwise(borders):
            tick = int(ticks[begin])
            if self.open_tick is not None and tick != self.open_tick:
                yield from self._end_tick(ready)
            last = end == len(keys)
            if not last and self.open_tick is None and len(set(keys[begin:end])) == end - begin:
                ready.append((clocks[begin:end], np.zeros(end - begin), keys[begin:end], documents[begin:end]))
                continue
            self._collect(tick, clocks[begin:end].tolist(), keys[begin:end], documents[begin:end])
        yield from self._rows(ready)

    def close(self) -> Iterator[WrittenRows]:
        """End the open tick; yields its rows, in order."""
        ready: list[_Part] = []
        if self.open_tick is not None:
            yield from self._end_tick(ready)
        yield from self._rows(ready)

    def take(self) -> tuple[list[int], list[int], list[bytes], list[Document]]:
        """End the open tick; its documents as lists of clocks, seqs, keys and documents, in no special order."""
        clocks: list[int] = []
        seqs: list[int] = []
        keys: list[bytes] = []
        documents: list[Document] = []
        for key, (clock, folded) in self._open.items():
            for seq, document in enumerate(folded):
                clocks.append(clock)
                seqs.append(seq)
                keys.append(key)
                documents.append(document)
        self._open = {}
        self.open_tick = None
        self.weight = 0
        return clocks, seqs, keys, documents

    def _collect(self, tick: int, clocks: list[int], keys: list[bytes], documents: list[Document]) -> None:
        """Take documents of one tick, which is or becomes the open one."""
        self.open_tick = tick
        self.weight += weigh(documents)
        if self._large is not None:
            numbers = range(self._number, self._number + len(keys))
            self._number += len(keys)
            self._add_held(self._large, clocks, keys, documents, numbers)
            return
        opened = self._open
        for clock, key, document in zip(clocks, keys, documents, strict=True):
            entry = opened.get(key)
            if entry is None:
                opened[key] = (clock, [document])
            else:
                folded = entry[1]
                self._fold.add(key, folded, document)
                opened[key] = (clock, folded)
        if self.weight > self._spill.memory:
            self._lighten()

    def _lighten(self) -> None:
        """Put what is held on disk, unless combining has made it little."""
        held = [document for _, folded in self._open.values() for document in folded]
        self.weight = sum(weigh(held[begin : begin + _PIECE], 1) for begin in range(0, len(held), _PIECE))
        if self.weight <= self._spill.memory // 2:
            return
        del held
        self._large = LargeTick(NumberedRows, self._fold, self._labels, self._spill)
        self._number = 0
        while self._open:
            rows: list[tuple[int, bytes, Document, int]] = []
            while self._open and len(rows) < _PIECE:
                key, (clock, folded) = self._open.popitem()
                rows += [(clock, key, document, number) for number, document in enumerate(folded, -len(folded))]
            clocks, keys, documents, numbers = zip(*rows, strict=True)
            self._add_held(self._large, clocks, keys, documents, numbers)

    def _add_held(
        self,
        large: LargeTick[NumberedRows],
        clocks: Sequence[int],
        keys: Sequence[bytes],
        documents: Sequence[Document],
        numbers: Sequence[int],
    ) -> None:
        large.add(NumberedRows.from_columns(clocks, keys, write_texts(documents), self._labels(documents), numbers))

    def _end_tick(self, ready: list[_Part]) -> Iterator[WrittenRows]:
        """End the open tick: it becomes ready, too, or if it is large, it and what was ready are yielded."""
        large, self._large = self._large, None
        if large is None:
            clocks, seqs, keys, documents = self.take()
            ready.append((np.array(clocks, dtype=np.int64), np.array(seqs), keys, documents))
            return
        self.take()
        yield from self._rows(ready)
        ready.clear()
        yield from large.close()

    def _rows(self, ready: list[_Part]) -> Iterator[WrittenRows]:
        if ready:
            keys = [key for part in ready for key in part[2]]
            documents = [document for part in ready for document in part[3]]
            clocks = np.concatenate([part[0] for part in ready])
            seqs = np.concatenate([part[1] for part in ready])
            labels, fields = self._labels(documents), self._fields(documents)
            yield WrittenRows.sorted_of(clocks, seqs, keys, documents, labels, fields)


def weigh(documents: Sequence[Document], step: int = _SAMPLE) -> int:
    """About how many bytes documents take in memory, of which one in `step` is measured."""
    sample = documents[::step]
    text = len(dump_exact(sample)) if sample else 0
    return len(documents) * _OBJECT_BYTES + _TEXT_BYTES * text * len(documents) // max(len(sample), 1)
