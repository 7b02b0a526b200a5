"""Subscriptions: a collection's updates as they become final, and how far that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from derive.errors import FencedError, SegmentMissingError
from derive.protocol.specs import CollectionSpec
from derive.storage.contents import ReadOptions, read_between
from derive.storage.metadata.capability import RENEW_SECONDS
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows
from derive.time.frontier import BEGINNING


def subscribe_at(
    store: Readable, spec: CollectionSpec, options: ReadOptions, pause: Callable[[], None]
) -> Generator[ReadRows | int]:
    """Updates of a collection from a time on, those that come as well as those that are there, without an end.

    Args:
        store: holds it, or will.
        spec: the collection.
        options: from when on, and which logical partitions; it has no `as_of`.
        pause: is called when there is nothing new; it may raise to end the subscription.

    Yields:
        Rows as `read_rows` does, and now and then a frontier: every update with a clock below it has been handed on. A
        subscription that begins there goes on where this one was.

    Raises:
        FrontierError: what the collection held at `options.since` was compacted.
        FencedError: the collection was reset.
    """
    while store.collection(spec.name) is None:
        pause()
    frontier = max(BEGINNING, options.since or BEGINNING)
    capability = store.leases.lease(spec.name, None if options.since is None else frontier)
    renewed = time.monotonic()
    with store.leases.kept(capability):
        while True:
            if frontier > capability.frontier and time.monotonic() - renewed > RENEW_SECONDS:
                capability = store.leases.downgrade(capability, frontier)
                renewed = time.monotonic()
            upper = store.leases.upper(capability)
            if upper <= frontier:
                pause()
                continue
            read = read_between(store, spec, options.selector, frontier, upper)
            try:
                yield from read_sorted(store.root, [read])
            except SegmentMissingError as exc:
                if store.missing([spec.name]):
                    raise
                raise FencedError(f"'{spec.name}' was reset while it was read", hint="run the command again") from exc
            frontier = upper
            yield frontier
