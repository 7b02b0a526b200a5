"""Compaction: merge small segments into large ones, and reduce unneeded history per key.

A merge of segments changes no readable contents at any time. A move of `since` deletes the history below `since`, and
keeps the contents at and above `since` exact (law L3). A replaced file is kept for a grace period, and until no reader
can use it.

A continuous run compacts from time to time in a thread, beside its transactions.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import orjson

from derive.errors import FencedError, FlowError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec
from derive.storage.blobs import translated
from derive.storage.capability.table import Capability, TaskCapability
from derive.storage.history import GRACE
from derive.storage.metadata.descriptions import Collection as StoredCollection
from derive.storage.metadata.segment import WindowPlace
from derive.storage.metadata.transaction import SMALL_BYTES, SMALL_DOCUMENTS
from derive.storage.roles import Maintainable
from derive.storage.segments.fold import FOLD_SIZES, Fold, FoldSizes, by_partition, copy_rows
from derive.storage.segments.partition import COMPACTED
from derive.storage.segments.segment_file import are_valid, read_clocks
from derive.storage.segments.writer import SegmentWriter
from derive.storage.timeline import wall_clock
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import Segment, SourceRead


@dataclass(frozen=True, slots=True)
class MergeSizes:
    """Thresholds for the merge of segments.

    Attributes:
        small_documents: a segment is small if it has fewer documents than this, and fewer bytes than `small_bytes`.
        small_bytes: see `small_documents`.
        large_documents: a merged segment with at least these documents, or with `large_bytes`, is large enough.
        large_bytes: see `large_documents`.
    """

    small_documents: int = SMALL_DOCUMENTS
    small_bytes: int = SMALL_BYTES
    large_documents: int = 1_000_000
    large_bytes: int = 128 << 20

    def is_small(self, segment: Segment) -> bool:
        """Return true if a segment is small enough to merge."""
        return segment.documents < self.small_documents and segment.bytes < self.small_bytes

    def is_large(self, documents: int, size: int) -> bool:
        """Return true if a merged segment of this size is large enough."""
        return documents >= self.large_documents or size >= self.large_bytes


MERGE_SIZES = MergeSizes()


@dataclass(frozen=True, slots=True)
class Compaction:
    """Outcome of a compaction.

    Attributes:
        collection: name of the collection.
        before: number of segments before.
        after: number of segments after.
        documents_before: number of documents before.
        documents_after: number of documents after.
        since: the new `since`.
        held_by: read capabilities that kept `since` below the requested timestamp.
    """

    collection: str
    before: int
    after: int
    documents_before: int
    documents_after: int
    since: int = BEGINNING
    held_by: tuple[Capability, ...] = ()


Shown: TypeAlias = Callable[[str, int, int], None]
"""Called with a step (`reduce` or `merge`), the number of its documents that are done, and of all its documents."""


def compact(
    store: Maintainable,
    spec: CollectionSpec,
    *,
    since: int | None = None,
    fewest: int = 2,
    grace: int = GRACE,
    wait: bool = True,
    fold_sizes: FoldSizes = FOLD_SIZES,
    progress: Shown = lambda step, done, total: None,
) -> Compaction | None:
    """Merge small segments of a collection, and remove unused files.

    Args:
        store: store of the collection.
        spec: the collection.
        since: timestamp below which history is reduced, as far as it is final and not needed; None to keep all history.
        fewest: smallest number of consecutive small segments that are merged.
        grace: shortest time for which replaced files are kept, microseconds.
        wait: whether to wait for another process that compacts in this data folder.
        fold_sizes: limits for the amount of history in memory.
        progress: shows the work.

    Returns:
        The outcome; None if another process compacts and `wait` is false.

    Raises:
        FlowError: the disk is full or broken; no data are lost.
    """
    spec = store.tables.as_stored(spec)
    with _alone(store, wait=wait) as capability:
        if capability is None:
            return None
        store.garbage.collect_unfinished(capability)
        versions = store.history.versions(spec.name)
        spec = store.read_as(spec)
        store.tables.flush_named(spec.name)
        before = store.collection(spec.name)
        if since is not None:
            known = store.history.frontiers(spec.name)
            bound = min(since, known.bound) if known else BEGINNING
            for former in versions[:-1]:
                if former.ends is not None and bound < former.ends:
                    past = replace(former.read_as(spec), name=former.stored)
                    _advance(store, past, bound, fold_sizes, capability, progress)
            _advance(store, spec, bound, fold_sizes, capability, progress)
        total = sum(segment.documents for group in merge_groups(store, spec, fewest) for segment in group)
        count = _Count(partial(progress, "merge"), total)
        for group in merge_groups(store, spec, fewest):
            _merge(store, spec, group, capability, count)
        store.garbage.collect_replaced(wall_clock() - grace)
        return _outcome(store, spec, before, since)


class _Count:
    """Counts documents, and shows their number.

    Args:
        progress: called with the number of documents that are done, and of all documents.
        total: number of all documents.
        passes: number of times that each document is counted.
    """

    def __init__(self, progress: Callable[[int, int], None], total: int, passes: int = 1) -> None:
        self._progress, self._total, self._passes = progress, total, passes
        self._counted = 0
        progress(0, total)

    def __call__(self, documents: int) -> None:
        """Count documents."""
        self._counted += documents
        self._progress(min(self._counted // self._passes, self._total), self._total)


def _outcome(
    store: Maintainable, spec: CollectionSpec, before: StoredCollection | None, desired: int | None
) -> Compaction:
    after = store.collection(spec.name)
    known = store.history.frontiers(spec.name)
    reached = known.since if known else BEGINNING
    bounds = tuple(reader for reader in known.readers if reader.frontier <= reached) if known else ()
    return Compaction(
        spec.name,
        before.segments if before else 0,
        after.segments if after else 0,
        before.documents if before else 0,
        after.documents if after else 0,
        reached,
        bounds if desired is not None and reached < desired else (),
    )


def _advance(
    store: Maintainable,
    spec: CollectionSpec,
    desired: int,
    sizes: FoldSizes,
    capability: TaskCapability,
    progress: Shown,
) -> None:
    """Move `since` up to `desired`, or to the bound of the read capabilities, and fold the history below it."""
    known = store.history.frontiers(spec.name)
    since = min(desired, known.bound) if known else BEGINNING
    if known is None or since <= known.since:
        return
    old = store.segments(spec, end=since)
    count = _Count(partial(progress, "reduce"), sum(segment.documents for segment in old), passes=2)
    with _new_files(store, spec, capability) as name:
        writer = SegmentWriter(store.location, spec, f"{name}-later")
        try:
            with _scratch(store) as scratch, translated(store.root):
                new = Fold(store.location, spec, scratch, sizes).write(old, since, name, count)
                for label, segments in by_partition([segment for segment in old if segment.clock_max >= since]).items():
                    copy_rows(
                        store.location, spec, writer, SourceRead(0, 0, since, END_OF_TIME, tuple(segments)), label
                    )
                new += writer.close()
            reach("compaction.folded")
            is_done = store.history.advance_since(spec.name, since, old, new, capability)
        except FlowError:
            store.garbage.collect_unfinished(capability)
            raise
        if not is_done:
            store.garbage.collect_unfinished(capability)
        reach("compaction.advanced")


def merge_groups(
    store: Maintainable, spec: CollectionSpec, fewest: int, begin: int = BEGINNING
) -> Iterator[list[Segment]]:
    """Yield the groups of segments to merge that begin at or after a timestamp; only some segments are in memory."""
    end: WindowPlace | None = WindowPlace()
    while end is not None:
        window = store.history.window(spec, max(fewest, 2), end, _WINDOW)
        yield from choose([segment for segment in window.segments if segment.clock_min >= begin], fewest)
        end = window.end


_WINDOW = 10_000
"""Greatest number of small segments in memory, and so in a group."""


def choose(segments: Sequence[Segment], fewest: int, sizes: MergeSizes = MERGE_SIZES) -> list[list[Segment]]:
    """Return groups of segments to merge: consecutive small segments of one logical partition.

    Args:
        segments: segments, ordered by timestamp.
        fewest: smallest size of a group.
        sizes: thresholds of small and large segments.
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


def _merge(
    store: Maintainable, spec: CollectionSpec, group: Sequence[Segment], capability: TaskCapability, count: _Count
) -> None:
    is_valid = are_valid(store.location, group, spec.write_schema)
    label = orjson.dumps(list(group[0].partition)).decode()
    with _new_files(store, spec, capability) as name:
        writer = SegmentWriter(store.location, spec, name, is_valid=is_valid)
        try:
            read = SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(group))
            copy_rows(store.location, spec, writer, read, label, count)
            written = writer.close()
        except FlowError:
            writer.abort()
            raise
        reach("compaction.written")
        # After an error, the segments may be committed: the next compaction finds out, and removes them if not.
        if not store.history.replace(spec.name, group, written, capability):
            writer.abort()  # the collection was reset meanwhile
        reach("compaction.replaced")


@contextmanager
def _new_files(store: Maintainable, spec: CollectionSpec, capability: TaskCapability) -> Iterator[str]:
    """Yield a prefix for the names of new files; it is recorded until the block has committed or removed the files."""
    name = f"{COMPACTED}{uuid.uuid4()}"
    store.history.begin_files(spec.name, name, capability)
    try:
        yield name
    except FencedError:  # another process has perhaps deleted the record
        store.garbage.remove_fenced(spec.name, name)
        raise
    store.history.end_files(name)


@contextmanager
def _scratch(store: Maintainable) -> Iterator[Path]:
    """Yield an empty folder on the data folder's disk, and remove it afterwards.

    After a crash, the next compaction removes the folder.
    """
    folder = store.root / "compaction"
    own = folder / str(uuid.uuid4())
    with translated(folder):
        for former in folder.glob("*"):
            shutil.rmtree(former, ignore_errors=True)
        own.mkdir(parents=True)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):  # a process that was fenced may have a folder here
            folder.rmdir()


@contextmanager
def _alone(store: Maintainable, *, wait: bool) -> Iterator[TaskCapability | None]:
    """Yield the exclusive right to compact in this data folder; None if another process compacts, without a wait."""
    while True:
        with store.task_capabilities.compacting() as capability:
            if capability is not None or not wait:
                yield capability
                return
        time.sleep(_POLL_SECONDS)


_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a compaction.

    Attributes:
        collection: name of the collection.
        segments: number of segments.
        rewritten: number of segments that would be merged or reduced.
        documents: number of documents.
        reduced: number of documents that would be reduced per key.
        since: the new `since`.
        held_by: read capabilities that would keep `since` below the requested timestamp.
    """

    collection: str
    segments: int
    rewritten: int
    documents: int
    reduced: int
    since: int
    held_by: tuple[Capability, ...] = ()


def forecast(
    store: Maintainable, spec: CollectionSpec, *, since: int | None = None, gone: Collection[str] = ()
) -> Forecast | None:
    """Return the forecast of `compact`; None if nothing is stored under the collection's name.

    Args:
        store: store of the collection.
        spec: the collection.
        since: timestamp below which history would be reduced, as far as possible now; None to keep all history.
        gone: tasks whose read capabilities are ignored.

    Raises:
        SegmentError: a file cannot be read.
    """
    known = store.history.frontiers(spec.name)
    if known is None:
        return None
    known = replace(known, readers=tuple(reader for reader in known.readers if reader.task not in gone))
    reached = known.since if since is None else max(known.since, min(since, known.bound))
    store.tables.flush_named(spec.name)
    stored = store.collection(spec.name)
    old = store.segments(spec, end=reached) if reached > known.since else []
    merged = sum(map(len, merge_groups(store, spec, 2, reached if reached > known.since else BEGINNING)))
    is_held = since is not None and reached < since
    return Forecast(
        spec.name,
        stored.segments if stored else 0,
        len(old) + merged,
        stored.documents if stored else 0,
        sum(_below(store, segment, reached) for segment in old),
        reached,
        tuple(reader for reader in known.readers if reader.frontier <= reached) if is_held else (),
    )


def _below(store: Maintainable, segment: Segment, clock: int) -> int:
    """Return the number of documents of a segment with timestamps below `clock`."""
    if segment.clock_max < clock:
        return segment.documents
    return int(np.searchsorted(read_clocks(store.location, segment), clock))


EVERY_SECONDS = 60.0
"""Interval between compactions, in seconds."""

_PATIENCE_SECONDS = 10.0

_SWITCH_SECONDS = 0.0005
"""Python's thread switch interval during a compaction, which bounds delays of other threads."""


class CompactionThread:
    """Runs compactions in a separate thread while the block runs.

    Args:
        compact: runs a compaction.
        every: seconds between two runs.
    """

    def __init__(self, compact: Callable[[], None], every: float = EVERY_SECONDS) -> None:
        self._compact = compact
        self._every = every
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="compaction", daemon=True)

    def __enter__(self) -> CompactionThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def check(self) -> None:
        """Raise the error of a compaction that failed after the last call, if there is one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while not self._over.wait(self._every):
            before = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            try:
                self._compact()
            except BaseException as error:  # `check` raises every error again
                self._error = error
            finally:
                sys.setswitchinterval(before)
