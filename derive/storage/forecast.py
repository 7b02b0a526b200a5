"""Forecast a compaction without performing it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from derive.protocol.specs import CollectionSpec
from derive.storage.capability.table import Capability
from derive.storage.compaction import choose
from derive.storage.roles import Maintainable
from derive.storage.segments.segment_file import read_clocks
from derive.time.source_read import Segment


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
    segments = store.segments(spec)
    old = [segment for segment in segments if reached > known.since and segment.clock_min < reached]
    merged = list(chain(*choose([segment for segment in segments if segment not in old], 2)))
    is_held = since is not None and reached < since
    return Forecast(
        spec.name,
        len(segments),
        len(old) + len(merged),
        sum(segment.documents for segment in segments),
        sum(_below(store, segment, reached) for segment in old),
        reached,
        tuple(reader for reader in known.readers if reader.frontier <= reached) if is_held else (),
    )


def _below(store: Maintainable, segment: Segment, clock: int) -> int:
    """Return the number of documents of a segment with timestamps below `clock`."""
    if segment.clock_max < clock:
        return segment.documents
    return int(np.searchsorted(read_clocks(store.root, segment), clock))
