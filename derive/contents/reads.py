"""Reads of a collection: stored segments, timestamps and documents; and updates, as soon as they are final."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.document.key import pack_column
from derive.document.pointer import JSON
from derive.errors import FencedError, FrontierError, SegmentMissingError, UsageError
from derive.plural import counted
from derive.protocol.collection import owner_of_version
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.changes import Mark
from derive.storage.metadata.descriptions import Collection
from derive.storage.roles import Readable, View
from derive.storage.segments.reader import Condition, read_sorted
from derive.storage.segments.rows import KEY, ReadRows
from derive.storage.table_types import GlobalId
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import SourceRead


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read.

    Attributes:
        since: first timestamp; None for all history, whose compacted part is reduced.
        as_of: timestamp of the read, inclusive; None for the last final timestamp.
        selector: selection of logical partitions.
        keys: packed keys of the documents to read; None for all.
    """

    since: int | None = None
    as_of: int | None = None
    selector: SelectorSpec = field(default_factory=SelectorSpec)
    keys: tuple[bytes, ...] | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return the filters on rows of segments."""
        return () if self.keys is None else (Condition(KEY, pa.array(self.keys, pa.binary())),)


def selector_of(spec: CollectionSpec, value: Mapping[str, JSON]) -> SelectorSpec:
    """Parse a partition selector from JSON: `{"include": {...}, "exclude": {...}}`.

    Raises:
        UsageError: the JSON has other properties, or names a field that is not a logical partition.
    """
    unknown = [side for side in value if side not in ("include", "exclude")]
    if unknown:
        raise UsageError(f"a partition selector has no '{unknown[0]}'", hint="known: include, exclude")
    known = [projection.field for projection in spec.partitions]
    sides: dict[str, dict[str, tuple[JSON, ...]]] = {}
    for side in ("include", "exclude"):
        sides[side] = {}
        for name, values in (value.get(side) or {}).items():
            if name not in known:
                listed = ", ".join(known) or "none"
                raise UsageError(f"'{name}' is not a logical partition of '{spec.name}'", hint=f"known: {listed}")
            sides[side][name] = tuple(values) if isinstance(values, list) else (values,)
    return SelectorSpec(sides["include"], sides["exclude"])


def packed_key(spec: CollectionSpec, value: JSON) -> bytes:
    """Pack a key from JSON: an array with one value for each location; for a key of one location also the bare value.

    Raises:
        UsageError: the value has another number of components, or a component of a type that the schema excludes.
    """
    values = value if isinstance(value, list) else [value]
    if len(values) != len(spec.key):
        needed = f"{counted(len(spec.key), 'value')}, of {', '.join(spec.key)}"
        raise UsageError(f"a key of '{spec.name}' has {needed}; {dump_exact(value).decode()} has {len(values)}")
    for pointer, component in zip(spec.key, values, strict=True):
        types = frozenset().union(*(one.types for one in spec.projections if one.pointer == pointer))
        kinds = _kinds_of(component)
        if types and not kinds & types:
            message = f"{pointer} of a key of '{spec.name}' is {' or '.join(sorted(types))}"
            raise UsageError(f"{message}, and {dump_exact(component).decode()} is {' or '.join(sorted(kinds))}")
    return b"".join(pack_column([component])[0] for component in values)


def _kinds_of(value: JSON) -> frozenset[str]:
    """Return the types of JSON Schema that a value belongs to."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case None:
            return frozenset({"null"})
    return frozenset({"array" if isinstance(value, list) else "object"})


@dataclass(frozen=True, slots=True)
class Reading:
    """A read of a collection.

    Attributes:
        read: segments and timestamps.
        spec: the collection as the documents of the read version are defined.
    """

    read: SourceRead
    spec: CollectionSpec


@contextmanager
def reading(
    store: Readable, spec: CollectionSpec, options: ReadOptions, table: GlobalId | None = None
) -> Iterator[Reading]:
    """Yield a read of the version in force at its time; a read capability keeps it while the block runs.

    Args:
        store: store of the collection.
        spec: the collection.
        options: times and logical partitions of the read.
        table: identifier of a table, which may have been renamed; None for the collection with the spec's name.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
        FencedError: the collection was reset meanwhile.
        ViewError: the collection is a materialized view with an error at that time.
        SegmentError: a file of the collection cannot be read.
    """
    times = [clock for clock in (options.since, options.as_of) if clock is not None]
    frontier = max(BEGINNING, min(times)) if times else None
    with store.capabilities.keep(spec.name, frontier, table, at=options.as_of) as capability:
        spec = capability.read_as(spec)
        try:
            yield Reading(_source_read(store, spec, options, capability.relation), spec)
        except SegmentMissingError as exc:
            if store.is_missing(exc.path):
                raise
            raise FencedError(f"'{spec.name}' was reset during the read", hint="run the command again") from exc


def compacted_before(store: View, spec: CollectionSpec) -> int | None:
    """Return the timestamp before which a collection has documents that compaction has reduced; None without any."""
    known = store.collection(spec.name)
    if known is None or known.since <= BEGINNING:
        return None
    return known.since if store.segments(spec, end=known.since) else None


def _source_read(store: Readable, spec: CollectionSpec, options: ReadOptions, relation: int) -> SourceRead:
    known = _present(store, spec, relation)
    end = known.upper
    if options.as_of is not None:
        if options.as_of >= known.upper:
            raise FrontierError(
                f"'{spec.name}' is known only before {format_rfc3339(known.upper)}, and not yet at"
                f" {format_rfc3339(options.as_of)}",
                hint="derive it: flowctl run --until-idle; or read at an earlier time",
            )
        end = options.as_of + 1
    store.tables.check_at(known.name, end - 1)
    begin = max(BEGINNING, options.since or BEGINNING)
    read = read_between(store, spec, options.selector, begin, end, relation)
    _present(store, spec, relation)  # a relation that was reset meanwhile has no segments
    return read


def _present(store: Readable, spec: CollectionSpec, relation: int) -> Collection:
    """Return the description of a relation.

    Raises:
        FencedError: the collection was reset, or dropped without a reader.
    """
    known = store.collection_of(relation)
    if known is None:
        raise FencedError(f"'{spec.name}' was reset during the read", hint="run the command again")
    return known


def read_between(
    store: Readable, spec: CollectionSpec, selector: SelectorSpec, begin: int, end: int, relation: int | None = None
) -> SourceRead:
    """Return the segments with timestamps in `[begin, end)`; the caller holds a read capability.

    Args:
        store: store of the collection.
        spec: the collection.
        selector: selection of logical partitions.
        begin: first timestamp.
        end: exclusive upper bound of the timestamps.
        relation: relation to read, which may have been renamed; None for the relation with the spec's name.
    """
    return SourceRead(0, 0, begin, end, tuple(store.segments(spec, selector, begin, relation, end)))


def read_rows(store: Readable, spec: CollectionSpec, options: ReadOptions) -> Generator[ReadRows]:
    """Yield updates ordered by (clock, seq, key), with the document's timestamp as adjusted timestamp.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the requested time is compacted, or not final yet.
    """
    with reading(store, spec, options) as versioned:
        yield from read_sorted(store.location, [versioned.read], conditions=options.conditions)


_IDLE_SECONDS = 0.2
"""Interval between calls of `is_idle` while nothing is new."""


def subscribe_at(
    store: Readable, spec: CollectionSpec, options: ReadOptions, is_idle: Callable[[], None]
) -> Generator[ReadRows | int]:
    """Yield the past and future updates of a collection from a time on, without an end.

    The subscription follows a renamed or altered table, and never another table that gets the former name.

    Args:
        store: store of the collection, which may not exist yet.
        spec: the collection.
        options: first timestamp, logical partitions and keys; `as_of` is None.
        is_idle: called regularly while no update is new; it may raise an error to end the subscription.

    Yields:
        Rows like `read_rows`, and frontiers: every update below a yielded frontier has been yielded, so a
        subscription from the frontier on has no gap.

    Raises:
        ViewError: the collection is a materialized view with an error; all earlier updates were yielded.
        FrontierError: the history at `options.since` is compacted.
        FencedError: the collection was reset or dropped; all earlier updates were yielded.
    """
    while True:
        mark = store.changes.mark()
        if (begun := store.collection(spec.name)) is not None:
            break
        _wait(store, mark, is_idle)
    relation = begun.relation
    spec = store.read_as(spec)
    frontier = max(BEGINNING, options.since or BEGINNING)
    with store.capabilities.keep(spec.name, None if options.since is None else frontier) as capability:
        while True:
            mark = store.changes.mark()
            known = _followed(store, spec, relation, frontier)
            capability.move(frontier)
            capability.upper()  # raises an error if the capability has ended
            upper = known.sound
            if upper <= frontier:
                if known.failure is not None:
                    raise known.failure[1]
                _wait(store, mark, is_idle)
                continue
            store.changes.settle()
            read = read_between(store, spec, options.selector, frontier, upper, relation)
            try:
                yield from read_sorted(store.location, [read], conditions=options.conditions)
            except SegmentMissingError as exc:
                if store.is_missing(exc.path):
                    raise
                fate = store.describe_fate(spec.name, relation)
                raise FencedError(f"{fate} during the read", hint="run the command again") from exc
            frontier = upper
            if frontier < END_OF_TIME:
                yield frontier


def _followed(store: Readable, spec: CollectionSpec, relation: int, frontier: int) -> Collection:
    """Return the description of the followed collection, also after a rename.

    Raises:
        FencedError: the collection was reset, or it was dropped or replaced and all of its updates were yielded.
    """
    known = store.collection_of(relation)
    is_former = known is not None and owner_of_version(known.name) == spec.name
    if known is None or frontier >= END_OF_TIME or (is_former and frontier >= known.upper):
        raise FencedError(
            f"the subscription ended: {store.describe_fate(spec.name, relation)}",
            hint="read again, from the start: the documents published before belong to the replaced version"
            if is_former
            else "run the command again: the subscription begins with the present rows",
        )
    return known


def _wait(store: Readable, mark: Mark, is_idle: Callable[[], None]) -> None:
    """Wait for a commit after a mark."""
    is_idle()
    while not store.changes.wait(mark, _IDLE_SECONDS):
        is_idle()
