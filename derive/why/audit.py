"""Audits: replay a whole derivation over all its sources, and compare the result with all its stored documents.

An explanation replays the documents that matter for some keys. An audit needs every key, so it replays all documents
once, in the order of processing, with the reader and the combiner of a transaction. The replayed and the stored
documents are two sorted streams, which are compared in constant memory. The typed columns of segments are compared with
the documents beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from derive.protocol.specs import CollectionSpec, DerivationSpec
from derive.shard.fields import UnparsedDocuments, reading_of_documents
from derive.shard.invoke import SourceBatch, with_ends
from derive.shard.tick_combiner import TickCombiner
from derive.storage.roles import Readable
from derive.storage.segments.columns import WrongValue, wrong_values
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import CLOCK, DOC, KEY, SEQ, ReadRows
from derive.storage.segments.sorter import Spill
from derive.time import BEGINNING
from derive.time.positions import SourceRead, offset_of
from derive.why.explain import past_reasons
from derive.why.replay import Part, Replay, past_of
from derive.why.scan import StoredDocument

MOST_DIFFERENCES = 20
"""Number of differences after which an audit ends."""

_SPILL_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A document that is only stored, only replayed, or that differs in the replay.

    Attributes:
        stored: the stored document; None for none.
        replayed: the document of the replay with the same timestamp, number and key; None for none.
    """

    stored: StoredDocument | None
    replayed: StoredDocument | None


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        documents: number of compared stored documents.
        since: timestamp from which on documents were compared; earlier documents are compacted.
        differences: the first differences, at most `MOST_DIFFERENCES`.
        wrong_values: the first values of typed columns that differ from their documents, at most `MOST_DIFFERENCES`.
        reasons: known reasons of differences.
    """

    documents: int
    since: int
    differences: tuple[Difference, ...]
    wrong_values: tuple[WrongValue, ...]
    reasons: tuple[str, ...]


def audit(store: Readable, spec: DerivationSpec, scratch: Path, progress: Callable[[int], None]) -> Audit:
    """Replay a derivation, and compare the result with its stored documents.

    Args:
        store: the data folder.
        spec: the derivation as the catalog defines it now.
        scratch: an empty folder for the state.
        progress: called with the number of documents that were replayed after the previous call.

    Raises:
        LambdaError: a lambda failed.
        UsageError: a former definition cannot be restored.
    """
    past, known = past_of(store, spec), store.collection(spec.name)
    since = BEGINNING if known is None else known.since
    differences: list[Difference] = []
    documents = 0
    with closing(Replay(store.root, scratch, past.parts[0])) as replay, Spill(scratch / "spill", _SPILL_BYTES) as spill:
        for part in past.parts:
            replay.enter(part)
            begin = max(part.clamp, since)
            stored = _Counted(_stored(store, part.spec.collection, begin, part.upper))
            replayed = (row for row in _replayed(store, replay, spill, progress) if begin <= row.clock < part.upper)
            differences += islice(_compare(stored, replayed), MOST_DIFFERENCES - len(differences))
            documents += stored.count
            if len(differences) >= MOST_DIFFERENCES:
                break
    reasons = past_reasons(store, past) if differences else []
    segments = store.segments(spec.collection)
    wrong = islice((value for segment in segments for value in wrong_values(store.location, segment)), MOST_DIFFERENCES)
    return Audit(documents, since, tuple(differences), tuple(wrong), tuple(reasons))


class _Counted:
    """An iterator that counts its items."""

    def __init__(self, rows: Iterator[StoredDocument]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[StoredDocument]:
        for row in self._rows:
            self.count += 1
            yield row


def _stored(store: Readable, spec: CollectionSpec, begin: int, end: int) -> Iterator[StoredDocument]:
    """Yield the stored documents with timestamps in an interval, in order."""
    segments = tuple(segment for segment in store.segments(spec, begin=begin) if segment.clock_min < end)
    for rows in read_sorted(store.location, [SourceRead(0, 0, begin, end, segments)]):
        yield from map(StoredDocument._make, rows.tuples())


def _replayed(
    store: Readable, replay: Replay, spill: Spill, progress: Callable[[int], None]
) -> Iterator[StoredDocument]:
    """Yield the documents that a part of a derivation's past gives, combined per tick and in order."""
    spec = replay.part.spec
    combiner = TickCombiner(spec, spill)
    parts = read_sorted(store.location, _reads(store, replay.part), selection=reading_of_documents(spec).selection)
    for rows in with_ends(parts, spec, replay.invoker, progress):
        for published in replay.invoker.invoke(_batch(rows)):
            for combined in combiner.add(published):
                yield from map(StoredDocument, *_columns(combined.batch))
    for combined in combiner.close():
        yield from map(StoredDocument, *_columns(combined.batch))


def _reads(store: Readable, part: Part) -> list[SourceRead]:
    """Return the reads of all transforms in a part."""
    reads = []
    for transform in part.spec.transforms:
        begin, end = part.bounds(transform)
        source = part.spec.sources[transform.input.source]
        retried = store.retried(part.spec.name, transform, source, begin).segments
        segments = [*store.segments(source, transform.input.selector, begin), *retried]
        offset = offset_of(transform.input, part.spec.tick)
        chosen = tuple(segment for segment in segments if segment.clock_min < end)
        reads.append(SourceRead(transform.index, offset, begin, end, chosen))
    return reads


def _batch(rows: ReadRows) -> SourceBatch:
    documents = UnparsedDocuments(rows)

    def key_of(row: int) -> bytes:
        key: bytes = rows.keys[row].as_py()
        return key

    return SourceBatch(
        rows.transforms.tolist(), rows.adjusted, key_of, documents, unchecked=rows.unchecked, written=documents.written
    )


def _columns(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    return (batch.column(name).to_pylist() for name in (CLOCK, SEQ, KEY, DOC))


def _compare(stored: Iterable[StoredDocument], replayed: Iterable[StoredDocument]) -> Iterator[Difference]:
    """Yield the differences of two sequences in storage order."""
    left, right = iter(stored), iter(replayed)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if one == other:
            one, other = next(left, None), next(right, None)
        elif other is None or (one is not None and one[:3] < other[:3]):
            yield Difference(one, None)
            one = next(left, None)
        elif one is None or other[:3] < one[:3]:
            yield Difference(None, other)
            other = next(right, None)
        else:
            yield Difference(one, other)
            one, other = next(left, None), next(right, None)
