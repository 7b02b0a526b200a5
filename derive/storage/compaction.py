"""Compaction: many small segments become few large ones, so that reading and planning stay fast.

What a collection holds, and when, stays the same. A replaced file is kept for a while, because readers that began
before may still be at it.
"""

from __future__ import annotations

import fcntl
import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import orjson
import pyarrow as pa

from derive.errors import FlowError
from derive.failpoint import reach
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.frontier import BEGINNING, END_OF_TIME
from derive.storage.metadata import translated
from derive.storage.partition import collection_folder
from derive.storage.reader import SourceRead, read_sorted
from derive.storage.segment import COMPACTED, ROWS, Segment, SegmentWriter
from derive.storage.store import Store
from derive.storage.timeline import wall_clock

GRACE = 600_000_000
"""How long replaced files are kept, microseconds."""

_SMALL_DOCUMENTS, _SMALL_BYTES = 250_000, 32 << 20
_LARGE_DOCUMENTS, _LARGE_BYTES = 1_000_000, 128 << 20


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done to a collection.

    Attributes:
        collection: its name.
        before: how many segments it had.
        after: how many it has.
    """

    collection: str
    before: int
    after: int


def compact(store: Store, spec: CollectionSpec, *, fewest: int = 2, grace: int = GRACE) -> Compaction:
    """Merge small segments of a collection, and remove what was replaced some time ago.

    Args:
        store: holds it.
        spec: the collection.
        fewest: how many small segments in a row are worth merging.
        grace: how long replaced files are kept, microseconds.

    Raises:
        FlowError: the disk is full or broken; nothing is lost.
    """
    with _alone(store):
        _remove_abandoned(store, spec.name)
        before = _segments(store, spec)
        for group in choose(before, fewest):
            _merge(store, spec, group)
        store.remove_replaced(wall_clock() - grace)
        return Compaction(spec.name, len(before), len(_segments(store, spec)))


def choose(segments: Sequence[Segment], fewest: int) -> list[list[Segment]]:
    """Which segments to merge: small ones of one logical partition that follow one another in time.

    Args:
        segments: by clock.
        fewest: how many are worth it.
    """
    chosen = []
    ordered = sorted(segments, key=lambda each: orjson.dumps(each.partition))
    for _, partition in itertools.groupby(ordered, key=lambda each: orjson.dumps(each.partition)):
        group: list[Segment] = []
        for segment in partition:
            is_small = segment.documents < _SMALL_DOCUMENTS and segment.bytes < _SMALL_BYTES
            if not is_small or _is_full(group):
                chosen.append(group)
                group = []
            if is_small:
                group.append(segment)
        chosen.append(group)
    return [group for group in chosen if len(group) >= max(fewest, 2)]


def _is_full(group: Sequence[Segment]) -> bool:
    documents, size = sum(each.documents for each in group), sum(each.bytes for each in group)
    return documents >= _LARGE_DOCUMENTS or size >= _LARGE_BYTES


def _merge(store: Store, spec: CollectionSpec, group: Sequence[Segment]) -> None:
    writer = SegmentWriter(store.root, spec, f"{COMPACTED}{uuid.uuid4()}")
    label = pa.scalar(orjson.dumps(list(group[0].partition)).decode())
    try:
        for batch in read_sorted(store.root, [SourceRead(0, 0, BEGINNING, END_OF_TIME, tuple(group))]):
            adjusted, _, seq, key, doc = batch.columns
            columns = [adjusted, seq, key, doc, pa.repeat(label, batch.num_rows)]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=ROWS))
        written = writer.close()
        reach("compaction.written")
        if not store.replace_segments(spec.name, group, written):
            writer.abort()  # the collection was reset meanwhile
        reach("compaction.replaced")
    except FlowError:
        writer.abort()
        raise


def _segments(store: Store, spec: CollectionSpec) -> list[Segment]:
    return store.segments(spec.name, [each.field for each in spec.partitions], SelectorSpec())


def _remove_abandoned(store: Store, name: str) -> None:
    """Remove files of a compaction that was not finished."""
    known = store.known_files(name)
    for file in (store.root / collection_folder(name)).rglob(f"{COMPACTED}*.parquet"):
        if str(file.relative_to(store.root)) not in known:
            file.unlink(missing_ok=True)


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Wait until no other process compacts in this data folder."""
    path = store.root / "compaction.lock"
    with translated(path), path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
