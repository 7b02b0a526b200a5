"""The documents of a collection at a time, in the order of keys: reduced per key, or the documents of a multiset.

Rows come sorted by key, so memory holds one batch and the state of one key. A document that reduction leaves unchanged
is not parsed: the stored text is returned.

The caller chooses the executor: this process starts at once, and Spark takes seconds to start and has many cores. Both
fold the same rows in the same order, so the results are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from derive.contents.reads import ReadOptions, reading, subscribe_at
from derive.document.exact import parse_exact
from derive.document.key import unpack
from derive.document.pointer import JSON, MISSING, parse_pointer
from derive.errors import ReductionError, UsageError
from derive.protocol.specs import CollectionSpec, Document
from derive.reduce.combiner import Combiner, key_failure
from derive.storage.location import Location
from derive.storage.roles import Readable
from derive.storage.segments.partition import NO_PARTITION
from derive.storage.segments.reader import Condition, read_segment
from derive.storage.segments.rows import CLOCK, DOC, KEY, SEQ, ContentRows, ReadRows, StoredRows, concat, times_present
from derive.storage.segments.sorter import Sorter, Spill
from derive.storage.segments.texts import write_texts
from derive.time import BEGINNING
from derive.time.extent import size_of
from derive.time.positions import SourceRead

PER_KEY: tuple[str, ...] = (KEY, CLOCK, SEQ)
"""Sort order of this fold: by key, and rows of a key in storage order."""

_Row: TypeAlias = tuple[int, int, bytes, str]
"""Timestamp, sequence number, packed key and JSON text."""


def contents_per_key(spec: CollectionSpec, parts: Iterable[StoredRows]) -> Iterator[ContentRows]:
    """Yield the documents of updates: reduced per key, or of a multiset, each as often as its count.

    Args:
        spec: the collection.
        parts: rows in the order `PER_KEY`, in parts of any size.

    Raises:
        ReductionError: documents of a key cannot be reduced.
        StorageError: a multiset has more retractions than insertions of a document.
    """
    rows = (part for part in parts if len(part))
    return (_Counting(spec) if spec.kind == "consolidated" else _Reducing(spec)).contents(rows)


class _Reducing:
    """Reduces documents per key.

    Args:
        spec: the collection.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        self._name = spec.name
        self._combiner = Combiner(spec.read_schema, name=spec.name)
        self._last: tuple[int, int, bytes] | None = None  # timestamp, sequence number and key of the last row
        self._value: JSON = MISSING  # the open key's documents, reduced so far

    def contents(self, parts: Iterable[StoredRows]) -> Iterator[ContentRows]:
        """Yield the reduced documents of rows."""
        for rows in parts:
            yield from self._take(rows)
        yield from self._finish()

    def _take(self, rows: StoredRows) -> Iterator[ContentRows]:
        """Process rows, and yield all completed keys; the last key stays open."""
        firsts = _first_rows(rows.keys)
        lasts = np.append(firsts[1:], len(rows)) - 1
        goes_on = self._last is not None and self._last[2] == rows.sort_key(0)[2]
        if not goes_on:
            yield from self._finish()
        if self._combiner.takes_last:
            firsts = lasts
        is_reduced = (firsts < lasts) | (not self._combiner.keeps_single)
        is_reduced[0] |= goes_on
        is_reduced[-1] = True
        counts = (lasts - firsts + 1)[is_reduced]
        indices = np.repeat(firsts[is_reduced] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        values = self._values(rows.take(indices), counts.tolist())
        self._last, self._value = rows.sort_key(len(rows) - 1), values.pop()
        is_there = np.ones(len(lasts) - 1, dtype=np.bool_)
        is_there[is_reduced[:-1]] = [value is not MISSING for value in values]
        kept = rows.take(lasts[:-1][is_there])
        texts = write_texts([value for value in values if value is not MISSING])
        texts = pc.replace_with_mask(kept.texts, pa.array(is_reduced[:-1][is_there]), texts)
        yield ContentRows.from_columns(*(kept.batch.column(name) for name in (CLOCK, SEQ, KEY)), texts)

    def _values(self, rows: StoredRows, counts: list[int]) -> list[JSON]:
        """Reduce the rows of keys with these counts; the first key may continue the open key."""
        step = self._combiner.full_step
        documents = iter(rows.documents())
        values: list[JSON] = []
        value = self._value
        try:
            for count in counts:
                for _ in range(count):
                    value = step(value, next(documents))
                values.append(value)
                value = MISSING
        except ReductionError as exc:
            raise key_failure(self._name, rows.sort_key(sum(counts[: len(values)]))[2], exc) from exc
        return values

    def _finish(self) -> Iterator[ContentRows]:
        """Yield the reduced document of the open key, and close it."""
        if self._last is not None and self._value is not MISSING:
            clock, seq, key = self._last
            yield ContentRows.from_columns([clock], [seq], [key], write_texts([self._value]))
        self._last, self._value = None, MISSING


class _Counting:
    """Counts the documents of a multiset. The text of a document with count 1 and a unique key is returned as stored.

    Args:
        spec: the collection.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        self._spec = spec
        self._last: tuple[int, int, bytes] | None = None  # timestamp, sequence number and key of the last row
        self._counts: Counter[str] = Counter()  # sum of diffs by document of the open key

    def contents(self, parts: Iterable[StoredRows]) -> Iterator[ContentRows]:
        """Yield the documents of rows."""
        for rows in parts:
            yield self._take(rows)
        yield _content_rows(self._finish())

    def _take(self, rows: StoredRows) -> ContentRows:
        """Process rows, and return all completed keys; the last key stays open."""
        firsts = _first_rows(rows.keys)
        counts = np.diff(np.append(firsts, len(rows)))
        is_alone = (counts == 1) & (rows.diffs[firsts] == 1)
        is_alone[0] &= self._last is None or self._last[2] != rows.sort_key(0)[2]
        is_alone[-1] = False
        is_handed_on = np.repeat(is_alone, counts)
        counted = _content_rows(self._count(rows.filter(~is_handed_on)))
        alone = rows.filter(is_handed_on)
        handed_on = ContentRows.from_columns(*(alone.batch.column(name) for name in (CLOCK, SEQ, KEY, DOC)))
        if not len(counted) or not len(handed_on):
            return counted if len(counted) else handed_on
        return concat([counted, handed_on]).sorted((KEY, DOC))

    def _count(self, rows: StoredRows) -> list[_Row]:
        """Return the documents of the keys that end in some rows."""
        done: list[_Row] = []
        columns = (rows.sort_keys(), rows.texts.to_pylist(), rows.diffs.tolist())
        for identity, text, diff in zip(*columns, strict=True):
            if self._last is not None and identity[2] != self._last[2]:
                done += self._finish()
            self._last = identity
            self._counts[text] += diff
        return done

    def _finish(self) -> list[_Row]:
        """Return the documents of the open key, and close it."""
        done = list(_present(self._spec, self._last, self._counts)) if self._last is not None else []
        self._last = None
        self._counts.clear()
        return done


def _present(spec: CollectionSpec, last: tuple[int, int, bytes], counts: Mapping[str, int]) -> Iterator[_Row]:
    """Yield the documents of a key, each repeated by its count."""
    for text in sorted(counts):
        for _ in range(times_present(spec.name, text, counts[text])):
            yield *last, text


def _content_rows(rows: list[_Row]) -> ContentRows:
    return ContentRows.from_columns(*(zip(*rows, strict=True) if rows else ([], [], [], [])))


def _first_rows(keys: pa.Array) -> np.ndarray:
    """Return the indices of the rows whose key differs from the key of the previous row; keys are sorted."""
    differ = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.concatenate([[True], differ]))


class Versions:
    """Reduces the documents of one key, and keeps each intermediate document.

    Documents with equal timestamps form one version, because a reader sees all of them or none.

    Args:
        spec: the collection.

    Raises:
        UsageError: the collection is a table, whose rows are inserted and deleted, and not reduced.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        if spec.kind == "consolidated":
            raise UsageError(
                f"'{spec.name}' is a table: its rows are inserted and deleted, so a key has no versions",
                hint="read the key without --history to see insertions and deletions",
            )
        self._name = spec.name
        self._combiner = Combiner(spec.read_schema, name=spec.name)
        self._value: JSON = MISSING  # all documents so far, reduced
        self._last: tuple[int, int, bytes] | None = None  # timestamp, sequence number and key of the open version

    def take(self, rows: ReadRows) -> ContentRows:
        """Add documents of the key, in order; return the versions that are complete now. A deletion is `null`."""
        done: list[tuple[int, int, bytes, JSON]] = []
        for (clock, seq, key, _), document in zip(rows.tuples(), rows.documents(), strict=True):
            if self._last is not None and self._last[0] != clock:
                done.append((*self._last, self._value))
            try:
                self._value = self._combiner.full_step(self._value, document)
            except ReductionError as exc:
                raise key_failure(self._name, key, exc) from exc
            self._last = clock, seq, key
        return _version_rows(done)

    def finish(self) -> ContentRows:
        """Return the last version; no later document may have the same timestamp."""
        done = [] if self._last is None else [(*self._last, self._value)]
        self._last = None
        return _version_rows(done)


def _version_rows(versions: list[tuple[int, int, bytes, JSON]]) -> ContentRows:
    clocks, seqs, keys, values = zip(*versions, strict=True) if versions else ((), (), (), ())
    texts = write_texts([None if value is MISSING else value for value in values])
    return ContentRows.from_columns(clocks, seqs, keys, texts)


SORT_BYTES = 256 << 20
"""Approximate memory limit of a sort before it spills to disk."""

_BATCH = 10_000
_SPARK_SECONDS, _LOCAL_SECONDS = 9e-6, 6e-6
"""Measured seconds per document: on one core of Spark, and in this process."""

Reduced: TypeAlias = Callable[[Location, CollectionSpec, SourceRead], Iterator[ContentRows]]
"""Function from a location, a collection and a read to the reduced documents, in the order of keys."""


def read_reduced(
    store: Readable, spec: CollectionSpec, options: ReadOptions, reduced: Reduced
) -> Generator[ContentRows]:
    """Yield the documents of a collection: reduced per key, or of a multiset, each as often as its count.

    Yields:
        Rows in the order of packed keys.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
    """
    spec = store.tables.as_stored(spec)
    with reading(store, spec, options) as versioned:
        if versioned.read.segments:
            yield from reduced(store.location, versioned.spec, versioned.read)


def reduced_documents(
    store: Readable, spec: CollectionSpec, options: ReadOptions, progress: Callable[[int], None] = lambda _: None
) -> Generator[ContentRows]:
    """Yield documents like `read_reduced`, evaluated in this process.

    Args:
        store: the data folder.
        spec: the collection.
        options: options of the read.
        progress: called with numbers of documents, as by `reduced_locally`.
    """
    with TemporaryDirectory(prefix="flowctl-") as scratch:

        def reduced(location: Location, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
            chosen = ChosenRows(conditions=options.conditions)
            return reduced_locally(location, spec, read, Path(scratch), chosen=chosen, progress=progress)

        yield from read_reduced(store, spec, options, reduced)


def follow_reduced(
    store: Readable,
    spec: CollectionSpec,
    options: ReadOptions,
    read: Callable[[ReadOptions], Iterator[ContentRows]],
    is_idle: Callable[[], None],
) -> Generator[ContentRows | int]:
    """Yield the documents of a collection like `read_reduced`, and later each document that changes, without an end.

    With `options.since`, the first documents are those of the keys that have changed since then.

    Args:
        store: store of the collection, which may not exist yet.
        spec: the collection.
        options: first timestamp, logical partitions and keys; `as_of` is None.
        read: returns the documents of a read, as `read_reduced`.
        is_idle: called regularly while no update is new; it may raise an error to end the subscription.

    Yields:
        Rows, and frontiers: the rows before a frontier have the contents at the frontier of all keys with a change. A
        deleted document has the fields of the key, and the marker `{"_meta": {"op": "d"}}`.

    Raises:
        UsageError: the collection is a table.
        ReductionError: documents of a key cannot be reduced.
        FencedError: the collection was reset or dropped.
    """
    if spec.kind == "consolidated":
        raise UsageError(
            f"'{spec.name}' is a table: its rows are inserted and deleted, and not reduced",
            hint="follow it without --reduce to see insertions and deletions",
        )
    with ExitStack() as stack:
        if options.since is None and (known := store.collection(spec.name)) is not None and known.upper > BEGINNING:
            # The capability keeps the history between the first read and the subscription.
            stack.enter_context(store.capabilities.keep(spec.name, known.upper))
            yield from read(options)
            yield known.upper
            options = replace(options, since=known.upper)
        changed: dict[bytes, int] = {}
        with closing(subscribe_at(store, spec, options, is_idle)) as updates:
            for update in updates:
                stack.close()
                if not isinstance(update, int):
                    changed.update((key, clock) for clock, _, key, _ in update.tuples())
                    continue
                if changed:
                    at = replace(options, since=None, as_of=update - 1, keys=tuple(sorted(changed)))
                    for rows in read(at):
                        for _, _, key, _ in rows.tuples():
                            changed.pop(key, None)
                        yield rows
                    yield _deletions(spec, changed)
                    changed.clear()
                yield update


def _deletions(spec: CollectionSpec, clocks: Mapping[bytes, int]) -> ContentRows:
    """Return rows of deleted documents.

    Args:
        spec: the collection.
        clocks: times of the deletions, by packed keys.
    """
    texts = write_texts([{**_keyed(spec.key, unpack(key)), "_meta": {"op": "d"}} for key in clocks])
    return ContentRows.from_columns(list(clocks.values()), [0] * len(clocks), list(clocks), texts)


def _keyed(pointers: Sequence[str], values: Sequence[JSON]) -> dict[str, JSON]:
    """Return an object that has only the values of a key."""
    document: dict[str, JSON] = {}
    for pointer, value in zip(pointers, values, strict=True):
        *within, name = parse_pointer(pointer)
        place = document
        for step in within:
            place = place.setdefault(step, {})
        place[name] = value
    return document


def batches_of(parts: Iterable[ContentRows]) -> Iterator[ContentRows]:
    """Yield the same rows in batches of at most 10,000 rows."""
    for part in parts:
        for begin in range(0, len(part), _BATCH):
            yield part.slice(begin, _BATCH)


def is_little(read: SourceRead, most: int | None, cores: int | None, start_seconds: float) -> bool:
    """Return true if this process should evaluate a read rather than Spark.

    Args:
        read: segments and timestamps of the read.
        most: largest number of documents for this process; None to compare the estimated durations.
        cores: number of Spark's cores; None for unlimited.
        start_seconds: time that Spark takes to start.
    """
    spared = _LOCAL_SECONDS - (_SPARK_SECONDS / cores if cores else 0.0)  # seconds that Spark saves per document
    documents = size_of([read]).documents
    return documents * spared <= start_seconds if most is None else documents <= most


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows that a read in this process takes.

    Attributes:
        share: number of a share of the keys, from 0, and number of shares.
        conditions: filters on rows of segments; of the rows with the same key and text, all pass or none.
        appended: rows of the read that are in no segment yet.
    """

    share: tuple[int, int] = (0, 1)
    conditions: Sequence[Condition] = ()
    appended: StoredRows | None = None


ALL_ROWS = ChosenRows()


def reduced_locally(
    location: Location,
    spec: CollectionSpec,
    read: SourceRead,
    scratch: Path,
    memory: int = SORT_BYTES,
    chosen: ChosenRows = ALL_ROWS,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[ContentRows]:
    """Evaluate a read in this process, with constant memory.

    Args:
        location: location of the segments.
        spec: the collection.
        read: segments and timestamps of the read.
        scratch: folder for spilled rows.
        memory: approximate memory limit for the sort, bytes.
        chosen: the rows to read.
        progress: called with the number of documents of a batch: once when they are read, and once when they are
            sorted and about to be reduced.
    """
    number, count = chosen.share
    with Spill(scratch, memory) as spill:
        sorter = Sorter(StoredRows.SCHEMA, PER_KEY, spill)
        for segment in read.segments:
            for rows in read_segment(location, read, segment, conditions=chosen.conditions):
                if count > 1:
                    rows = rows.filter([crc32(key) % count == number for key in rows.keys.to_pylist()])  # noqa: PLW2901
                progress(len(rows))
                sorter.add(rows.written(NO_PARTITION).stored().batch)
        if chosen.appended is not None:
            sorter.add(chosen.appended.batch)
        yield from contents_per_key(spec, _counted(map(StoredRows, sorter.take()), progress))


def _counted(parts: Iterator[StoredRows], progress: Callable[[int], None]) -> Iterator[StoredRows]:
    for rows in parts:
        progress(len(rows))
        yield rows


_KeyText: TypeAlias = tuple[bytes, str]
"""Packed key and JSON text."""


class Difference(NamedTuple):
    """A key with different documents.

    Attributes:
        key: packed key.
        before: document in the first collection; None if it lacks the key.
        after: document in the second collection; None if it lacks the key.
    """

    key: bytes
    before: Document | None
    after: Document | None


def differing_documents(
    store: Readable, first: CollectionSpec, second: CollectionSpec, at: int
) -> Generator[Difference]:
    """Yield the keys whose documents differ between two collections at a time, in order.

    Args:
        store: the data folder.
        first: the collection with the documents before.
        second: the collection with the documents after.
        at: the timestamp.

    Raises:
        FrontierError: the contents of a collection at that time are compacted, or not known yet.
    """
    with closing(_documents(store, first, at)) as ours, closing(_documents(store, second, at)) as theirs:
        before, after = next(ours, None), next(theirs, None)
        while before is not None or after is not None:
            if after is None or (before is not None and before[0] < after[0]):
                assert before is not None
                yield Difference(before[0], parse_exact(before[1].encode()), None)
                before = next(ours, None)
            elif before is None or after[0] < before[0]:
                yield Difference(after[0], None, parse_exact(after[1].encode()))
                after = next(theirs, None)
            else:
                yield from _difference(before, after)
                before, after = next(ours, None), next(theirs, None)


def _difference(before: _KeyText, after: _KeyText) -> Iterator[Difference]:
    if before[1] != after[1]:
        documents = parse_exact(before[1].encode()), parse_exact(after[1].encode())
        if documents[0] != documents[1]:
            yield Difference(before[0], *documents)


def _documents(store: Readable, spec: CollectionSpec, at: int) -> Generator[_KeyText]:
    """Yield the packed keys and the texts of a collection's documents at a time, in the order of keys."""
    with closing(reduced_documents(store, spec, ReadOptions(as_of=at))) as parts:
        for part in parts:
            for _, _, key, text in part.tuples():
                yield key, text
