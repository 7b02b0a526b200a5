"""Combining per (tick, key): what a derived collection publishes of several documents of one key in one tick.

There are two ways to the same result. `TickCombiner` takes documents in processing order, where all of a tick come
through one place. `combine_ticks` takes what several shards published, tick by tick, and finds documents of one
(tick, key) by sorting. Both fold from the left, so even floating-point sums come out the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.key import show_key
from derive.protocol.specs import DerivationSpec, Document
from derive.reduce.combiner import Combiner, NotAssociative
from derive.schema.validator import compile_validator
from derive.storage.label import MakeLabels, compile_labels
from derive.storage.segment import ROWS
from derive.storage.texts import parse_texts, write_texts

LAMBDA_ROWS = pa.schema(
    [
        pa.field("clock", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("doc", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("adjusted", pa.int64(), nullable=False),
        pa.field("transform", pa.int16(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("source_key", pa.binary(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
    ]
)
"""Published documents between shuffles. The last five columns are their place in the order of processing: those of the
source document that caused them, and a running number."""

_ORDER = [("clock", "ascending"), ("seq", "ascending"), ("key", "ascending")]
_GROUPS = [("tick", "ascending"), ("key", "ascending")]
_PROCESSED = [(name, "ascending") for name in ("adjusted", "transform", "seq", "source_key", "number")]


def rows_of(clocks: Any, seqs: Any, keys: list[bytes], documents: list[Document], labels: MakeLabels) -> pa.RecordBatch:
    """Rows (`ROWS`) of documents, sorted by (clock, seq, key)."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(clocks, pa.int64()),
            pa.array(seqs, pa.int32()),
            pa.array(keys, pa.binary()),
            write_texts(documents),
            labels,
        ],
        schema=ROWS,
    )
    return batch if bool(np.all(np.diff(clocks) > 0)) else batch.sort_by(_ORDER)


class _Folder:
    """Folds documents of one key from the left."""

    def __init__(self, spec: DerivationSpec) -> None:
        collection = spec.collection
        self.step = Combiner(collection.write_schema, name=spec.name).partial_step
        self._validator = compile_validator(collection.write_schema, name=spec.name)
        self._positions = collection.write_positions

    def add(self, folded: list[Document], document: Document) -> None:
        try:
            folded[-1] = self.step(folded[-1], document)
        except NotAssociative:
            folded.append(document)

    def check(self, key: bytes, documents: list[Document]) -> None:
        for document in documents:
            if not self._validator.is_valid(document):
                raise self._validator.violation(document, key=show_key(key), positions=self._positions)


class TickCombiner:
    """Combines documents that arrive in processing order, tick after tick."""

    def __init__(self, spec: DerivationSpec) -> None:
        self._tick = spec.tick
        self._folder = _Folder(spec)
        self._labels = compile_labels(spec.collection)
        self._open: dict[bytes, tuple[int, list[Document]]] = {}
        self.open_tick: int | None = None

    def add(self, clocks: Any, keys: list[bytes], documents: list[Document]) -> pa.RecordBatch | None:
        """Take documents with ascending clocks (int64 array); returns the rows of ticks that are over, if any."""
        if not keys:
            return None
        ticks = clocks // self._tick
        borders = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), len(keys)]
        ready: list[tuple[Any, Any, list[bytes], list[Document]]] = []
        for begin, end in itertools.pairwise(borders):
            tick = int(ticks[begin])
            if self.open_tick is not None and tick != self.open_tick:
                ready.append(self._take())
            last = end == len(keys)
            if not last and not self._open and len(set(keys[begin:end])) == end - begin:
                ready.append((clocks[begin:end], np.zeros(end - begin), keys[begin:end], documents[begin:end]))
                continue
            self.open_tick = tick
            self._collect(clocks[begin:end].tolist(), keys[begin:end], documents[begin:end])
            if not last:
                ready.append(self._take())
        return self._rows(ready)

    def close(self) -> pa.RecordBatch | None:
        """The rows of the tick that is still open."""
        return self._rows([self._take()]) if self._open else None

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
        return clocks, seqs, keys, documents

    def collect(self, tick: int, clocks: list[int], keys: list[bytes], documents: list[Document]) -> None:
        """Take documents of one tick, which is or becomes the open one."""
        self.open_tick = tick
        self._collect(clocks, keys, documents)

    def _collect(self, clocks: list[int], keys: list[bytes], documents: list[Document]) -> None:
        opened = self._open
        for clock, key, document in zip(clocks, keys, documents, strict=True):
            entry = opened.get(key)
            if entry is None:
                opened[key] = (clock, [document])
            else:
                folded = entry[1]
                self._folder.add(folded, document)
                self._folder.check(key, folded[-1:])
                opened[key] = (clock, folded)

    def _take(self) -> tuple[Any, Any, list[bytes], list[Document]]:
        clocks, seqs, keys, documents = self.take()
        return np.array(clocks, dtype=np.int64), np.array(seqs), keys, documents

    def _rows(self, parts: list[tuple[Any, Any, list[bytes], list[Document]]]) -> pa.RecordBatch | None:
        if not parts:
            return None
        keys = [key for part in parts for key in part[2]]
        documents = [document for part in parts for document in part[3]]
        clocks = np.concatenate([part[0] for part in parts])
        return rows_of(clocks, np.concatenate([part[1] for part in parts]), keys, documents, self._labels(documents))


def combine_ticks(spec: DerivationSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine published documents (`LAMBDA_ROWS`) of a range of output keys.

    Args:
        spec: the derivation.
        batches: of whole ticks, in any order inside.

    Yields:
        Rows (`ROWS`), each batch sorted by (clock, seq, key).
    """
    folder = _Folder(spec)
    labels = compile_labels(spec.collection)
    for batch in batches:
        ticks = pc.divide(batch.column(0), spec.tick)
        places = pa.table({"tick": ticks, "key": batch.column(1)})
        order = pc.sort_indices(places, sort_keys=_GROUPS)
        sizes = _group_sizes(places.take(order))
        alone = np.repeat(sizes, sizes) == 1
        rows = []
        if alone.any():
            rows.append(_as_they_are(batch, np.sort(order.to_numpy()[alone])))
        if not alone.all():
            several = batch.append_column("tick", ticks).take(order.filter(pa.array(~alone)))
            rows.append(_folded(folder, labels, several.sort_by(_GROUPS + _PROCESSED), sizes[sizes > 1].tolist()))
        yield pa.concat_batches(rows).sort_by(_ORDER)


def _group_sizes(places: pa.Table) -> Any:
    """Lengths of the runs of equal rows."""
    count = places.num_rows
    ticks, keys = places.column("tick").to_numpy(), places.column("key")
    differ = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy()
    starts = np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | differ) + 1])
    return np.diff(np.append(starts, count))


def _as_they_are(batch: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    """Rows (`ROWS`) of documents that are alone in their group."""
    picked = batch if len(places) == batch.num_rows else batch.take(pa.array(places))
    seqs = pa.array(np.zeros(picked.num_rows, dtype=np.int32))
    columns = [picked.column(0), seqs, picked.column(1), picked.column(2), picked.column(3)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _folded(folder: _Folder, labels: MakeLabels, batch: pa.RecordBatch, sizes: list[int]) -> pa.RecordBatch:
    """Rows (`ROWS`) of groups of several documents, which follow one another in processing order."""
    clocks: list[int] = []
    seqs: list[int] = []
    keys: list[bytes] = []
    documents: list[Document] = []
    parsed = iter(parse_texts(batch.column(2)))
    end = 0
    for size in sizes:
        end += size
        key = batch.column(1)[end - 1].as_py()
        folded = [next(parsed)]
        for document in itertools.islice(parsed, size - 1):
            folder.add(folded, document)
            folder.check(key, folded[-1:])
        clocks += [batch.column(0)[end - 1].as_py()] * len(folded)
        seqs += range(len(folded))
        keys += [key] * len(folded)
        documents += folded
    return rows_of(np.array(clocks, dtype=np.int64), seqs, keys, documents, labels(documents))
