"""Combining per (tick, key): what a derived collection publishes of several documents of one key in one tick.

There are two ways to the same result. `TickCombiner` takes documents in processing order, where all of a tick come
through one place. `combine_sorted` takes what several shards published, sorted so that documents of one (tick, key)
are adjacent and in processing order. Both fold from the left, so even floating-point sums come out the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from derive.engine.invoke import parse_documents, show_key
from derive.protocol.specs import DerivationSpec, Document
from derive.reduce.combiner import Combiner, NotAssociative
from derive.schema.validator import compile_validator
from derive.storage.label import compile_label
from derive.storage.segment import ROWS

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
source document that caused them, and a running number. Rows with a negative number carry a message to the driver."""

MESSAGE = -1
"""The `number` of a row whose `doc` is a message to the driver."""

_ORDER = [("clock", "ascending"), ("seq", "ascending"), ("key", "ascending")]
_SORT_ROWS = 50_000


def rows_of(
    clocks: Any, seqs: Any, keys: list[bytes], documents: list[Document], label: Callable[[Document], str]
) -> pa.RecordBatch:
    """Rows (`ROWS`) of documents, sorted by (clock, seq, key)."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(clocks, pa.int64()),
            pa.array(seqs, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(list(map(orjson.dumps, documents)), pa.string()),
            pa.array(list(map(label, documents)), pa.string()),
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

    def add(self, folded: list[Document], document: Document) -> None:
        try:
            folded[-1] = self.step(folded[-1], document)
        except NotAssociative:
            folded.append(document)

    def check(self, key: bytes, documents: list[Document]) -> None:
        for document in documents:
            if not self._validator.is_valid(document):
                raise self._validator.violation(document, key=show_key(key))


class TickCombiner:
    """Combines documents that arrive in processing order, tick after tick."""

    def __init__(self, spec: DerivationSpec) -> None:
        self._tick = spec.tick
        self._folder = _Folder(spec)
        self._label = compile_label(spec.collection)
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

    def rows(self, clocks: list[int], seqs: list[int], keys: list[bytes], documents: list[Document]) -> pa.RecordBatch:
        """Rows (`ROWS`) of combined documents, sorted."""
        return rows_of(np.array(clocks, dtype=np.int64), seqs, keys, documents, self._label)

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
        return rows_of(clocks, np.concatenate([part[1] for part in parts]), keys, documents, self._label)


def combine_sorted(spec: DerivationSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine published documents (`LAMBDA_ROWS`) of a whole range of output keys.

    Args:
        spec: the derivation.
        batches: sorted by (tick, key, adjusted, transform, seq, source_key, number).

    Yields:
        Rows (`ROWS`), each batch sorted by (clock, seq, key).
    """
    folder = _Folder(spec)
    label = compile_label(spec.collection)
    done: list[pa.RecordBatch] = []
    held: pa.RecordBatch | None = None
    waiting = 0
    for batch in batches:
        table = batch if held is None else pa.concat_batches([held, batch])
        starts = _group_starts(table, spec.tick)
        last = int(starts[-1])
        held = table.slice(last)
        if last == 0:
            continue
        done += _combined(folder, label, table.slice(0, last), starts[:-1])
        waiting += last
        if waiting >= _SORT_ROWS:
            yield pa.concat_batches(done).sort_by(_ORDER)
            done, waiting = [], 0
    if held is not None:
        done += _combined(folder, label, held, np.zeros(1, dtype=np.int64))
    if done:
        yield pa.concat_batches(done).sort_by(_ORDER)


def _group_starts(table: pa.RecordBatch, tick: int) -> Any:
    """Where each run of equal (tick, key) begins."""
    count = table.num_rows
    ticks = table.column(0).to_numpy() // tick
    keys = table.column(1)
    same = pc.equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | ~same.astype(bool)) + 1])


def _combined(
    folder: _Folder, label: Callable[[Document], str], table: pa.RecordBatch, starts: Any
) -> list[pa.RecordBatch]:
    """Rows of a table that holds whole groups: those alone in theirs go through as they are."""
    sizes = np.diff(np.append(starts, table.num_rows))
    single = starts[sizes == 1]
    rows = []
    if len(single):
        picked = table if len(single) == table.num_rows else table.take(pa.array(single))
        seqs = pa.array(np.zeros(picked.num_rows, dtype=np.int32))
        columns = [picked.column(0), seqs, picked.column(1), picked.column(2), picked.column(3)]
        rows.append(pa.RecordBatch.from_arrays(columns, schema=ROWS))
    clocks: list[int] = []
    numbers: list[int] = []
    keys: list[bytes] = []
    documents: list[Document] = []
    for begin, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        group = parse_documents(table.column(2).slice(begin, size))
        key = table.column(1)[begin].as_py()
        folded = [group[0]]
        for document in group[1:]:
            folder.add(folded, document)
            folder.check(key, folded[-1:])
        for number, document in enumerate(folded):
            clocks.append(table.column(0)[begin + size - 1].as_py())
            numbers.append(number)
            keys.append(key)
            documents.append(document)
    if keys:
        rows.append(rows_of(np.array(clocks, dtype=np.int64), numbers, keys, documents, label))
    return rows
