"""Compaction: many small segments become few large ones, and history that nobody needs any more is reduced per key.

Merging segments changes nothing that can be read, at any time. Moving `since` up does: below it, what a collection held
is no longer known, and at or above it everything stays exact (law L3). A replaced file is kept for a while and until
nobody can be reading it.
"""

from __future__ import annotations

import fcntl
import itertools
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from derive.errors import FlowError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec
from derive.storage.disk_errors import translated
from derive.storage.garbage import GRACE
from derive.storage.metadata.descriptions import Hold
from derive.storage.roles import Kept
from derive.storage.segments.fold import FOLD_SIZES, Fold, FoldSizes, by_partition, copy_rows
from derive.storage.segments.partition import COMPACTED
from derive.storage.segments.segment_file import are_valid
from derive.storage.segments.writer import SegmentWriter
from derive.storage.timeline import wall_clock
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.segment import Segment
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class MergeSizes:
    """Which segments are merged, and into how large ones.

    Attributes:
        small_documents: with fewer documents and fewer than `small_bytes`, a segment is small.
        small_bytes: see `small_documents`.
        large_documents: with as many documents or as many as `large_bytes`, a merged segment is large enough.
        large_bytes: see `large_documents`.
    """

    small_documents: int = 250_000
    small_bytes: int = 32 << 20
    large_documents: int = 1_000_000
    large_bytes: int = 128 << 20

    def is_small(self, segment: Segment) -> bool:
        """Whether a segment is worth merging."""
        return segment.documents < self.small_documents and segment.bytes < self.small_bytes

    def is_large(self, documents: int, size: int) -> bool:
        """Whether a merged segment of so many documents and bytes is large enough."""
        return documents >= self.large_documents or size >= self.large_bytes


MERGE_SIZES = MergeSizes()


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done to a collection.

    Attributes:
        collection: its name.
        before: how many segments it had.
        after: how many it has.
        documents_before: how many documents it had.
        documents_after: how many it has.
        since: it is exact from here on.
        held_by: who did not let `since` move as far as it was meant to.
    """

    collection: str
    before: int
    after: int
    documents_before: int
    documents_after: int
    since: int = BEGINNING
    held_by: tuple[Hold, ...] = ()


def compact(
    store: Kept,
    spec: CollectionSpec,
    *,
    since: int | None = None,
    fewest: int = 2,
    grace: int = GRACE,
    wait: bool = True,
    fold_sizes: FoldSizes = FOLD_SIZES,
) -> Compaction | None:
    """Merge small segments of a collection, and remove files that are of no use any more.

    Args:
        store: holds it.
        spec: the collection.
        since: reduce the history below this clock, as far as it is final and nobody needs it; None to keep it.
        fewest: how many small segments in a row are worth merging.
        grace: how long replaced files are kept, microseconds; longer while someone may be reading them.
        wait: for another process that compacts in this data folder.
        fold_sizes: how much of the history is handled at once.

    Returns:
        What was done; None if another process compacts and `wait` is False.

    Raises:
        FlowError: the disk is full or broken; nothing is lost.
    """
    spec = store.tables.as_stored(spec)
    with _alone(store, wait=wait) as is_alone:
        if not is_alone:
            return None
        store.garbage.collect_unfinished()
        before = store.segments(spec)
        if since is not None:
            _advance(store, spec, since, fold_sizes)
        for group in choose(store.segments(spec), fewest):
            _merge(store, spec, group)
        store.garbage.collect_replaced(wall_clock() - grace)
        return _outcome(store, spec, before, since)


def _outcome(store: Kept, spec: CollectionSpec, before: Sequence[Segment], wanted: int | None) -> Compaction:
    after = store.segments(spec)
    known = store.history.frontiers(spec.name)
    reached = known.since if known else BEGINNING
    held = tuple(hold for hold in known.holds if hold.frontier <= reached) if known else ()
    return Compaction(
        spec.name,
        len(before),
        len(after),
        sum(segment.documents for segment in before),
        sum(segment.documents for segment in after),
        reached,
        held if wanted is not None and reached < wanted else (),
    )


def _advance(store: Kept, spec: CollectionSpec, wanted: int, sizes: FoldSizes) -> None:
    """Move `since` as far up as it may go, and fold what is below."""
    known = store.history.frontiers(spec.name)
    since = min(wanted, known.bound) if known else BEGINNING
    if known is None or since <= known.since:
        return
    old = [segment for segment in store.segments(spec) if segment.clock_min < since]
    with _new_files(store, spec) as name:
        writer = SegmentWriter(store.root, spec, f"{name}-later")
        try:
            with _scratch(store) as scratch, translated(store.root):
                new = Fold(store.root, spec, scratch, sizes).write(old, since, name)
                for label, segments in by_partition([segment for segment in old if segment.clock_max >= since]).items():
                    copy_rows(store.root, spec, writer, SourceRead(0, 0, since, END_OF_TIME, tuple(segments)), label)
                new += writer.close()
            reach("compaction.folded")
            is_done = store.history.advance_since(spec.name, since, old, new)
        except FlowError:
            store.garbage.collect_unfinished()
            raise
        if not is_done:
            store.garbage.collect_unfinished()
        reach("compaction.advanced")


def choose(segments: Sequence[Segment], fewest: int, sizes: MergeSizes = MERGE_SIZES) -> list[list[Segment]]:
    """Which segments to merge: small ones of one logical partition that follow one another in time.

    Args:
        segments: by clock.
        fewest: how many are worth it.
        sizes: which of them are small, and when a merged one is large enough.
    """
    chosen = []
    ordered = sorted(segments, key=lambda segment: orjson.dumps(segment.partition))
    for _, partition in itertools.groupby(ordered, key=lambda segment: orjson.dumps(segment.partition)):
        group: list[Segment] = []
        documents = size = 0
        for segment in partition:
            is_small = sizes.is_small(segment)
            if not is_small or sizes.is_large(documents, size):
                chosen.append(group)
                group, documents, size = [], 0, 0
            if is_small:
                group.append(segment)
                documents, size = documents + segment.documents, size + segment.bytes
        chosen.append(group)
    return [group for group in chosen if len(group) >= max(fewest, 2)]


def _merge(store: Kept, spec: CollectionSpec, group: Sequence[Segment]) -> None:
    is_valid = are_valid(store.root, group, spec.write_schema)
    label = orjson.dumps(list(group[0].partition)).decode()
    with _new_files(store, spec) as name:
        writer = SegmentWriter(store.root, spec, name, is_valid=is_valid)
        try:
            copy_rows(store.root, spec, writer, SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(group)), label)
            written = writer.close()
            reach("compaction.written")
            if not store.history.replace(spec.name, group, written):
                writer.abort()  # the collection was reset meanwhile
            reach("compaction.replaced")
        except FlowError:
            writer.abort()
            raise


@contextmanager
def _new_files(store: Kept, spec: CollectionSpec) -> Iterator[str]:
    """Yield the beginning of the names of new files, and remember it until the block has committed or removed them."""
    name = f"{COMPACTED}{uuid.uuid4()}"
    store.history.begin_files(spec.name, name)
    yield name
    store.history.end_files(name)


@contextmanager
def _scratch(store: Kept) -> Iterator[Path]:
    """An empty folder on the data folder's disk, gone when the block ends; a crash may leave it to the next one."""
    folder = store.root / "compaction"
    with translated(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(store: Kept, *, wait: bool) -> Iterator[bool]:
    """Whether no other process compacts in this data folder while the block is at work."""
    path = store.root / "compaction.lock"
    with translated(path), path.open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
