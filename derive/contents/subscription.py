"""Subscriptions: a collection's updates as they become final, and the progress of the frontier."""

from __future__ import annotations

from collections.abc import Callable, Generator

from derive.contents.reads import ReadOptions, read_between
from derive.errors import FencedError, SegmentMissingError
from derive.protocol.specs import CollectionSpec
from derive.storage.changes import Mark
from derive.storage.metadata.descriptions import Collection
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.time.frontier import BEGINNING, END_OF_TIME

_IDLE_SECONDS = 0.2
"""Interval between calls of `is_idle` while nothing is new."""


def subscribe_at(
    store: Readable, spec: CollectionSpec, options: ReadOptions, is_idle: Callable[[], None]
) -> Generator[ReadRows | int]:
    """Yield the updates of a collection from a time on, past and future, without an end.

    A renamed or altered table is followed; another table with its former name is not.

    Args:
        store: store of the collection, which may not exist yet.
        spec: the collection.
        options: first timestamp and logical partitions; `as_of` is None.
        is_idle: called when nothing is new, and regularly until something is; it may raise to end the subscription.

    Yields:
        Rows as `read_rows` does, and frontiers: every update below a frontier has been yielded, so a subscription from
            there resumes without gaps.

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
                yield from read_sorted(store.root, [read])
            except SegmentMissingError as exc:
                if store.missing([known.name]):
                    raise
                fate = store.describe_fate(spec.name, relation)
                raise FencedError(f"{fate} while it was read", hint="run the command again") from exc
            frontier = upper
            if frontier < END_OF_TIME:
                yield frontier


def _followed(store: Readable, spec: CollectionSpec, relation: int, frontier: int) -> Collection:
    """Return the description of the followed collection, whatever its name.

    Raises:
        FencedError: the collection was reset, or it was dropped and all of its updates were yielded.
    """
    known = store.collection_of(relation)
    if known is None or frontier >= END_OF_TIME:
        raise FencedError(
            f"the subscription ended: {store.describe_fate(spec.name, relation)}",
            hint="run the command again: the subscription begins with the present rows",
        )
    return known


def _wait(store: Readable, mark: Mark, is_idle: Callable[[], None]) -> None:
    """Wait for a commit after a mark."""
    is_idle()
    while not store.changes.wait(mark, _IDLE_SECONDS):
        is_idle()
