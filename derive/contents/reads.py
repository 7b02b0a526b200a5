"""Reads of a collection: their segments and timestamps, and the published documents as they are stored."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FrontierError, SegmentMissingError, UsageError
from derive.protocol.specs import JSON, CollectionSpec, SelectorSpec
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.time.frontier import BEGINNING
from derive.time.source_read import SourceRead


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read.

    Attributes:
        since: first timestamp; None for all history, whose compacted part is reduced.
        as_of: timestamp of the read, inclusive; None for the last final timestamp.
        selector: selection of logical partitions.
    """

    since: int | None = None
    as_of: int | None = None
    selector: SelectorSpec = field(default_factory=SelectorSpec)


def selector_of(spec: CollectionSpec, value: Mapping[str, JSON]) -> SelectorSpec:
    """Parse a partition selector from JSON: `{"include": {...}, "exclude": {...}}`.

    Raises:
        UsageError: the JSON has other properties, or names a field that is not a logical partition.
    """
    unknown = [side for side in value if side not in ("include", "exclude")]
    if unknown:
        raise UsageError(f"a partition selector has no '{unknown[0]}'", hint="it has 'include' and 'exclude'")
    known = [projection.field for projection in spec.partitions]
    sides: dict[str, dict[str, tuple[JSON, ...]]] = {}
    for side in ("include", "exclude"):
        sides[side] = {}
        for name, values in (value.get(side) or {}).items():
            if name not in known:
                listed = ", ".join(known) or "none"
                raise UsageError(f"'{name}' is not a logical partition of '{spec.name}'", hint=f"it has: {listed}")
            sides[side][name] = tuple(values) if isinstance(values, list) else (values,)
    return SelectorSpec(sides["include"], sides["exclude"])


@contextmanager
def reading(store: Readable, spec: CollectionSpec, options: ReadOptions) -> Iterator[SourceRead]:
    """Yield the segments and timestamps of a read, and keep a read capability while the block runs.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
        FencedError: the collection was reset meanwhile.
        ViewError: the collection is a materialized view with an error at that time.
        SegmentError: a file of the collection cannot be read.
    """
    times = [clock for clock in (options.since, options.as_of) if clock is not None]
    with store.capabilities.keep(spec.name, max(BEGINNING, min(times)) if times else None):
        try:
            yield _source_read(store, spec, options)
        except SegmentMissingError as exc:
            if store.missing([spec.name]):
                raise
            raise FencedError(f"'{spec.name}' was reset while it was read", hint="run the command again") from exc


def _source_read(store: Readable, spec: CollectionSpec, options: ReadOptions) -> SourceRead:
    known = store.collection(spec.name)
    assert known is not None  # the caller has a capability to read it
    end = known.upper
    if options.as_of is not None:
        if options.as_of >= known.upper:
            raise FrontierError(
                f"'{spec.name}' is known up to {format_rfc3339(known.upper)} and not yet at"
                f" {format_rfc3339(options.as_of)}",
                hint="run the task that fills it, or ask for an earlier time",
            )
        end = options.as_of + 1
    store.tables.check_at(spec.name, end - 1)
    begin = max(BEGINNING, options.since or BEGINNING)
    return read_between(store, spec, options.selector, begin, end)


def read_between(
    store: Readable, spec: CollectionSpec, selector: SelectorSpec, begin: int, end: int, relation: int | None = None
) -> SourceRead:
    """Return the segments with timestamps in `[begin, end)`; the caller holds a read capability.

    Args:
        store: store of the collection.
        spec: the collection.
        selector: selection of logical partitions.
        begin: first timestamp.
        end: timestamp after the last one.
        relation: relation to read, whatever its present name; None for the relation with the spec's name.
    """
    return SourceRead(0, 0, begin, end, tuple(store.segments(spec, selector, begin, relation))).within(begin, end)


def read_rows(store: Readable, spec: CollectionSpec, options: ReadOptions) -> Generator[ReadRows]:
    """Yield updates ordered by (clock, seq, key), with the document's timestamp as adjusted timestamp.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
    """
    with reading(store, spec, options) as read:
        yield from read_sorted(store.root, [read])
