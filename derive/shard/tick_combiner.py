"""Combines documents per tick and key: in memory, on disk for a large tick, and by sorting for several shards.

Most documents are unique by key and tick, and are not inspected. Publications of an open tick are held unchanged until
the tick ends, or until memory must be freed.

- In memory, documents get group numbers. The sorted numbers show which documents are unique; these stay unchanged.
- A tick that exceeds the memory limit is sorted on disk, by key and processing order, and folded from the left as it is
  read. A second sort restores the order of a segment.
- Usually no two shards publish documents of one key in one tick. Then each shard combines its own documents, and only
  keys are compared. In other cases, the documents of all shards are sorted.

In each case documents are folded from the left in processing order, so the results are equal byte for byte, even sums
of floating-point numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.document.key import show_key
from derive.document.key_columns import KeyColumns
from derive.errors import ReductionError
from derive.protocol.specs import DerivationSpec, Document
from derive.reduce.combiner import Combiner, NotAssociative, key_failure
from derive.schema.validator import compile_validator
from derive.shard.published import Combined, Content, Documents, Published, RowMaker, weigh
from derive.storage.segments.partition import MakeLabels, compile_labels
from derive.storage.segments.rows import KEY, SEQ, KeyRows, NumberedRows, PublishedRows, WrittenRows, ascending, concat
from derive.storage.segments.sorter import Sorter, Spill
from derive.storage.segments.writer import WRITE_SIZES
from derive.time import tick_begin


class KeyFold:
    """Folds documents of one key into one document, or into as few as the annotations allow.

    Args:
        spec: the derivation.
    """

    def __init__(self, spec: DerivationSpec) -> None:
        collection = spec.collection
        self._name = collection.name
        self._step = Combiner(collection.write_schema, name=spec.name).partial_step
        self._validator = compile_validator(collection.write_schema, name=spec.name)
        self._positions = collection.write_positions

    def add(self, key: bytes, folded: list[Document], document: Document) -> None:
        """Fold a document into the documents of its key; it may stay a separate document.

        Args:
            key: packed key.
            folded: folded documents so far; not empty.
            document: published document of this key.

        Raises:
            ReductionError: a strategy does not accept the documents.
            SchemaViolation: the folded document is invalid.
        """
        try:
            folded[-1] = self._step(folded[-1], document)
        except NotAssociative:
            folded.append(document)
        except ReductionError as exc:
            raise key_failure(self._name, key, exc) from exc
        if not self._validator.is_valid(folded[-1]):
            raise self._validator.violation(folded[-1], key=show_key(key), positions=self._positions)


def combine_ended(parts: Sequence[Published], tick: int, fold: KeyFold, make: RowMaker) -> Iterator[WrittenRows]:
    """Combine the publications of ended ticks.

    Args:
        parts: publications in the order of processing, at least one.
        tick: length of a tick, microseconds.
        fold: reducer of documents.
        make: converter of documents to rows.

    Yields:
        Rows in storage order. The usual documents, which are unique and in order, are yielded in pieces, so that a
        piece is stored while the next one is written as text.
    """
    clocks = np.concatenate([part.clocks for part in parts])
    keys = pa.concat_arrays([part.key_array for part in parts])
    ticks = clocks // tick
    groups, several = _grouped(ticks, keys)
    if not several.size:
        if (np.diff(clocks) > 0).all():
            yield from (_alone(piece, make) for piece in _pieces(parts))
        else:
            yield _alone(parts, make).in_order()
        return
    is_alone = np.isin(groups, several, invert=True)
    borders = np.cumsum([len(part) for part in parts])[:-1]
    alone, others = [], []
    for part, chosen, numbers in zip(parts, np.split(is_alone, borders), np.split(groups, borders), strict=True):
        if chosen.any():
            alone.append(part.take(np.flatnonzero(chosen)))
        if not chosen.all():
            others.append((part.take(np.flatnonzero(~chosen)), numbers[~chosen].tolist()))
    rows = [_folded(others, fold, make)]
    if alone:
        rows.append(_alone(alone, make))
    yield concat(rows).in_order()


def _pieces(parts: Sequence[Published]) -> Iterator[Sequence[Published]]:
    """Yield groups of consecutive parts, each but the last with at least as many documents as a row group."""
    held: list[Published] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= WRITE_SIZES.row_group:
            yield held
            held = []
    if held:
        yield held


def _grouped(ticks: np.ndarray, keys: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return a group number for each document, and the groups of several documents."""
    if _ascend(ticks, keys):
        return np.arange(len(ticks)), np.empty(0, dtype=np.int64)
    groups = _groups(ticks, keys)
    ascending = np.sort(groups)
    return groups, ascending[1:][ascending[1:] == ascending[:-1]]


def _ascend(ticks: np.ndarray, keys: pa.BinaryArray) -> bool:
    """Return whether the keys of each tick ascend, like consecutive numbers: then no two documents share a key."""
    first = len(keys) - 1
    ascends = pc.less(keys.slice(0, first), keys.slice(1)).to_numpy(zero_copy_only=False)
    return bool((ascends | (np.diff(ticks) > 0)).all())


def _groups(ticks: np.ndarray, keys: pa.BinaryArray) -> np.ndarray:
    """Return a group number for each document: equal for equal tick and key, and different otherwise."""
    encoded = keys.dictionary_encode()
    ordinals = np.concatenate([[0], np.cumsum(np.diff(ticks) != 0)])
    groups: np.ndarray = ordinals * len(encoded.dictionary) + encoded.indices.to_numpy()
    return groups


def _alone(parts: Sequence[Published], make: RowMaker) -> WrittenRows:
    """Return rows of documents that are unique in their tick and key."""
    clocks = np.concatenate([part.clocks for part in parts])
    columns = (
        pa.concat_arrays([part.key_array for part in parts]),
        pa.concat_arrays([make.texts(part.content) for part in parts]),
        pa.concat_arrays([make.labels(part.content) for part in parts]),
    )
    fields = [made for part in parts if (made := make.fields(part.content)) is not None]
    rows = WrittenRows.of(clocks, np.zeros(len(clocks), dtype=np.int32), *columns)
    return rows.with_fields(pa.concat_arrays(fields) if fields else None)


def _folded(parts: Sequence[tuple[Published, list[int]]], fold: KeyFold, make: RowMaker) -> WrittenRows:
    """Return rows of reduced documents that share a tick and key, by their group numbers."""
    opened: dict[int, tuple[int, bytes, list[Document]]] = {}
    for part, groups in parts:
        columns = (groups, part.clocks.tolist(), part.key_list, part.content.documents())
        for group, clock, key, document in zip(*columns, strict=True):
            entry = opened.get(group)
            if entry is None:
                opened[group] = (clock, key, [document])
            else:
                fold.add(key, entry[2], document)
                opened[group] = (clock, key, entry[2])
    rows = [
        (clock, seq, key, document)
        for clock, key, documents in opened.values()
        for seq, document in enumerate(documents)
    ]
    clocks, seqs, keys, documents = zip(*rows, strict=True)
    content = Documents(documents)
    return WrittenRows.sorted_of(clocks, seqs, keys, documents, make.labels(content), make.fields(content))


_Row: TypeAlias = tuple[int, int, bytes, Document]
"""Timestamp, sequence number, key and document."""

P = TypeVar("P", bound=NumberedRows)


class LargeTick(Generic[P]):
    """Combines the documents of one tick.

    Args:
        layout: layout of the published documents, with the sort columns of processing.
        fold: reducer of documents.
        labels: function from documents to labels.
        spill: files for rows.
    """

    def __init__(self, layout: type[P], fold: KeyFold, labels: MakeLabels, spill: Spill) -> None:
        self._layout = layout
        self._published = Sorter(layout.SCHEMA, [KEY, *layout.PROCESSED], spill)
        self._combined = Sorter(WrittenRows.SCHEMA, WrittenRows.ORDER, spill)
        self._fold = fold
        self._labels = labels
        self._key: bytes | None = None  # the key that is being folded
        self._clock = 0
        self._folded: list[Document] = []
        self._parked = Sorter(WrittenRows.SCHEMA, [SEQ], spill)
        self._parked_count = 0

    def add(self, rows: P) -> None:
        """Add published documents, in any order.

        Raises:
            DiskFullError: the documents do not fit on the disk.
        """
        self._published.add(rows.batch.select(self._layout.SCHEMA.names))

    def close(self) -> Iterator[WrittenRows]:
        """Combine the documents.

        Yields:
            Rows in storage order.

        Raises:
            DiskFullError: the combined documents do not fit on the disk.
        """
        for rows in map(self._layout, self._published.take()):
            alone = self._alone(rows)
            self._combined.add(rows.filter(alone).written().batch)
            self._fold_all(rows.filter(~alone))
        ended: list[_Row] = []
        self._end_key(ended)
        self._combined.add(self._rows(ended).batch)
        yield from map(WrittenRows, self._combined.take())

    def _alone(self, rows: P) -> np.ndarray:
        """Return the mask of rows that are certainly unique by key; the last row may have successors."""
        keys = rows.keys
        differ = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        is_alone: np.ndarray = np.concatenate([[keys[0].as_py() != self._key], differ]) & np.append(differ, False)
        return is_alone

    def _fold_all(self, rows: P) -> None:
        ended: list[_Row] = []
        for key, clock, number, document in zip(*rows.processed(), rows.documents(), strict=True):
            if key != self._key:
                self._end_key(ended)
                self._key = key
            if number < 0 or not self._folded:
                self._folded.append(document)
            else:
                self._fold.add(key, self._folded, document)
            self._clock = clock
        self._combined.add(self._rows(ended).batch)
        self._park(len(self._folded) - 1)

    def _end_key(self, ended: list[_Row]) -> None:
        """Add the folded documents of a key, at the timestamp of the last of its documents."""
        if self._parked_count:
            self._park(len(self._folded))
            for rows in map(WrittenRows, self._parked.take()):
                self._combined.add(rows.at(self._clock).batch)
            self._parked_count = 0
        elif self._key is not None:
            ended += [(self._clock, seq, self._key, document) for seq, document in enumerate(self._folded)]
        self._folded = []

    def _park(self, count: int) -> None:
        """Set folded documents of a key aside, because they may be many, and their timestamp is still unknown."""
        if count > 0:
            assert self._key is not None
            parked = [(0, self._parked_count + seq, self._key, self._folded[seq]) for seq in range(count)]
            self._parked.add(self._rows(parked).batch)
            self._parked_count += count
            del self._folded[:count]

    def _rows(self, rows: list[_Row]) -> WrittenRows:
        clocks, seqs, keys, documents = zip(*rows, strict=True) if rows else ((), (), (), ())
        return WrittenRows.sorted_of(clocks, seqs, keys, documents, self._labels(documents))


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
        """Add documents of one tick; if no tick is open, this tick becomes the open tick."""
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
        """Fold the held documents; if this has not freed enough memory, spill them to disk."""
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
            yield from combine_ended(parts, self._tick, self._fold, self._make)


T = TypeVar("T", PublishedRows, KeyRows)

_TICK = "tick"
_GROUP = (_TICK, KEY)

GATHERED_ROWS = 50_000
"""Number of rows that are combined at once."""


def combine_ticks(
    spec: DerivationSpec, batches: Iterator[tuple[PublishedRows, bool]], spill: Spill
) -> Iterator[WrittenRows]:
    """Combine published documents of a range of output keys.

    Args:
        spec: the derivation.
        batches: batches in any internal order, each with true for whole ticks, or false for a part of one tick.
        spill: files for a tick that arrives in parts.

    Yields:
        Batches of rows in storage order.
    """
    fold = KeyFold(spec)
    make = RowMaker(spec.collection)
    large: LargeTick[PublishedRows] | None = None
    number = 0
    for batch, is_whole in batches:
        rows, ticks = batch, batch.clocks // spec.tick
        if large is not None:
            is_rest = ticks == number
            large.add(rows.filter(is_rest))
            rows, ticks = rows.filter(~is_rest), ticks[~is_rest]
            if len(rows) or is_whole:
                yield from large.close()
                large = None
        if not is_whole and len(rows):
            number = int(ticks[0])
            large = LargeTick(PublishedRows, fold, compile_labels(spec.collection), spill)
            large.add(rows)
        elif len(rows):
            yield _combined(fold, make, rows, ticks)
    if large is not None:
        yield from large.close()


def _combined(fold: KeyFold, make: RowMaker, rows: PublishedRows, ticks: np.ndarray) -> WrittenRows:
    """Return rows of whole ticks, in storage order."""
    groups = pa.table({_TICK: ticks, KEY: rows.keys})
    order = pc.sort_indices(groups, sort_keys=ascending(_GROUP)).to_numpy()
    sizes = _group_sizes(groups.take(order))
    alone = np.repeat(sizes, sizes) == 1
    parts = []
    if alone.any():
        picked = rows if alone.all() else rows.take(np.sort(order[alone]))
        parts.append(picked.written())
    if not alone.all():
        several = rows.batch.append_column(_TICK, pa.array(ticks)).take(pa.array(order[~alone]))
        in_order = PublishedRows(several).sorted((*_GROUP, *PublishedRows.PROCESSED))
        parts.append(_folded_ticks(fold, make, in_order, sizes[sizes > 1].tolist()))
    return concat(parts).in_order()


def _group_sizes(groups: pa.Table) -> np.ndarray:
    """Return the lengths of the runs of equal rows."""
    count = groups.num_rows
    ticks, keys = groups.column(_TICK).to_numpy(), groups.column(KEY)
    differ = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy()
    starts = np.concatenate([[0], np.flatnonzero((np.diff(ticks) != 0) | differ) + 1])
    return np.diff(np.append(starts, count))


def _folded_ticks(fold: KeyFold, make: RowMaker, rows: PublishedRows, sizes: list[int]) -> WrittenRows:
    """Return rows of groups of several documents, which are consecutive in processing order."""
    clocks: list[int] = []
    seqs: list[int] = []
    keys: list[bytes] = []
    documents: list[Document] = []
    parsed = iter(rows.documents())
    packed_keys, published = rows.keys, rows.clocks
    end = 0
    for size in sizes:
        end += size
        key = packed_keys[end - 1].as_py()
        folded = [next(parsed)]
        for document in itertools.islice(parsed, size - 1):
            fold.add(key, folded, document)
        clocks += [int(published[end - 1])] * len(folded)
        seqs += range(len(folded))
        keys += [key] * len(folded)
        documents += folded
    content = Documents(documents)
    fields = None if rows.fields is None else make.fields(content)
    return WrittenRows.sorted_of(clocks, seqs, keys, documents, make.labels(content), fields)


def share_keys(published: Sequence[Sequence[PublishedRows]], tick: int) -> bool:
    """Return true if several shards have published documents of one key in one tick.

    Args:
        published: publications of each shard.
        tick: length of a tick, microseconds.
    """
    groups = [
        _distinct(pa.concat_tables([_groups_of_ticks(part, tick) for part in parts])) for parts in published if parts
    ]
    return len(groups) > 1 and _repeats(pa.concat_tables(groups))


def are_shared(batches: Iterator[tuple[KeyRows, bool]], tick: int) -> bool:
    """Return true if several shards published a key in one tick, or if a tick has too many keys to compare.

    Args:
        batches: keys of all shards, once per shard and tick, each batch with true for whole ticks.
        tick: length of a tick, microseconds.
    """
    return any(not is_whole or _repeats(_groups_of_ticks(keys, tick)) for keys, is_whole in batches)


def _groups_of_ticks(rows: PublishedRows | KeyRows, tick: int) -> pa.Table:
    """Return a value for each row that is equal for rows of the same tick and key."""
    return pa.table({_TICK: rows.clocks // tick, KEY: rows.keys})


def _distinct(groups: pa.Table) -> pa.Table:
    return groups.group_by(_GROUP, use_threads=False).aggregate([])


def _repeats(groups: pa.Table) -> bool:
    if pc.count_distinct(groups.column(KEY)).as_py() == groups.num_rows:  # the usual case
        return False
    return bool(_distinct(groups).num_rows < groups.num_rows)


def gather_ticks(
    packets: Iterator[tuple[int, T]], tick: int, most_bytes: int, fewest: int = GATHERED_ROWS
) -> Iterator[tuple[T, bool]]:
    """Gather rows of several senders into batches of whole ticks, unordered within a batch.

    Args:
        packets: first timestamp and rows of each packet, ordered by first timestamp; rows are sorted by timestamp.
        tick: length of a tick, microseconds.
        most_bytes: limit for the gathered bytes; a larger tick is yielded in parts.
        fewest: number of rows to gather at least, within the limit.

    Yields:
        Batches in order of ticks, with true for whole ticks and false for a part of one tick. The rest of a divided
        tick may be in the following batch of whole ticks.
    """
    held: _Held[T] = _Held()
    for first, part in packets:
        if held.rows >= fewest or held.bytes > most_bytes:
            border = tick_begin(first, tick)
            if ready := held.take_below(border):
                yield concat(ready), True
            if held.bytes > most_bytes and (parts := held.take_below(border + tick)):
                yield concat(parts), False
        held.add(part)
    if ready := held.take_below(None):
        yield concat(ready), True


class _Held(Generic[T]):
    """Rows of several senders, each part sorted by timestamp."""

    def __init__(self) -> None:
        self._parts: list[T] = []
        self.rows = self.bytes = 0

    def add(self, part: T) -> None:
        self._parts.append(part)
        self.rows += len(part)
        self.bytes += part.nbytes

    def take_below(self, clock: int | None) -> list[T]:
        """Remove and return rows with timestamps below `clock`, or all rows."""
        parts, self._parts, self.rows, self.bytes = self._parts, [], 0, 0
        taken = []
        for part in parts:
            cut = len(part) if clock is None else int(np.searchsorted(part.clocks, clock))
            if cut:
                taken.append(part.slice(0, cut))
            if cut < len(part):
                self.add(part.slice(cut))
        return taken
