"""Subscriptions: a collection's updates as they become final, and how far that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from derive.errors import FencedError, SegmentMissingError
from derive.protocol.specs import CollectionSpec
from derive.storage.changes import Mark
from derive.storage.contents import ReadOptions, read_between
from derive.storage.metadata.capability import RENEW_SECONDS
from derive.storage.metadata.descriptions import Collection
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.time.frontier import BEGINNING, END_OF_TIME

_IDLE_SECONDS = 0.2
"""How often whoever subscribes is told that there is nothing new."""


def subscribe_at(
    store: Readable, spec: CollectionSpec, options: ReadOptions, is_idle: Callable[[], None]
) -> Generator[ReadRows | int]:
    """Updates of a collection from a time on, those that come as well as those that are there, without an end.

    Args:
        store: holds it, or will.
        spec: the collection.
        options: from when on, and which logical partitions; it has no `as_of`.
        is_idle: is called when there is nothing new, and now and then while that is so; it may raise to end the
            subscription.

    Yields:
        Rows as `read_rows` does, and now and then a frontier: every update with a clock below it has been handed on. A
        subscription that begins there goes on where this one was.

    A table that is renamed or altered is followed on; one that has its name then is not.

    Raises:
        ViewError: it is a materialized view with an error in the place of rows; what was before that is handed on.
        FrontierError: what the collection held at `options.since` was compacted.
        FencedError: the collection was reset, or it is a table that was dropped; what was before that is handed on.
    """
    while True:
        mark = store.changes.mark()
        if (begun := store.collection(spec.name)) is not None:
            break
        _wait(store, mark, is_idle)
    relation = begun.relation
    frontier = max(BEGINNING, options.since or BEGINNING)
    capability = store.leases.lease(spec.name, None if options.since is None else frontier)
    renewed = time.monotonic()
    with store.leases.kept(capability):
        while True:
            mark = store.changes.mark()
            known = _followed(store, spec, relation, frontier)
            if frontier > capability.frontier and time.monotonic() - renewed > RENEW_SECONDS:
                capability = store.leases.downgrade(capability, frontier)
                renewed = time.monotonic()
            capability = replace(capability, collection=known.name)
            store.leases.upper(capability)
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
                fate = store.tell_fate(spec.name, relation)
                raise FencedError(f"{fate} while it was read", hint="run the command again") from exc
            frontier = upper
            if frontier < END_OF_TIME:
                yield frontier


def _followed(store: Readable, spec: CollectionSpec, relation: int, frontier: int) -> Collection:
    """Return the description of the collection that is followed, whatever its name is.

    Raises:
        FencedError: it was reset; or it was dropped, and all of it is handed on.
    """
    known = store.collection_of(relation)
    if known is None or frontier >= END_OF_TIME:
        raise FencedError(
            f"what was followed has ended: {store.tell_fate(spec.name, relation)}",
            hint="run the command again: it begins with what is there then",
        )
    return known


def _wait(store: Readable, mark: Mark, is_idle: Callable[[], None]) -> None:
    """Wait until something is committed after a mark."""
    is_idle()
    while not store.changes.wait(mark, _IDLE_SECONDS):
        is_idle()
