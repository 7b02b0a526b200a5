"""Writes of commits to collections, within their write transactions."""

from __future__ import annotations

import apsw

from derive.errors import FrontierError
from derive.storage.capability.table import downgrade_run, require_run
from derive.storage.metadata.collection import advance_upper, upper_of
from derive.storage.metadata.descriptions import CollectionUpdate, TaskMove
from derive.storage.metadata.segment import insert_segments, last_clock
from derive.storage.metadata.tasks import advance_task


def move_task(db: apsw.Connection, move: TaskMove) -> None:
    """Advance a task and the collections that it writes.

    Raises:
        FencedError: the capability is no longer valid.
        FrontierError: a timestamp is out of bounds, or a transform would move back.
    """
    capability = move.capability
    require_run(db, capability, [update.collection for update in move.updates])
    for update in move.updates:
        insert_update(db, update, capability.frontiers[update.collection])
        downgrade_run(db, capability, update.collection, update.frontier)
        advance_upper(db, update.collection, update.frontier)
    if move.commit:
        advance_task(db, capability.task, move.commit)


def insert_update(db: apsw.Connection, update: CollectionUpdate, frontier: int, *, ascending: bool = False) -> None:
    """Add segments to a collection; the caller has a write capability at `frontier`.

    Raises:
        FrontierError: a timestamp is out of bounds.
    """
    name, segments = update.collection, update.segments
    low = min((segment.clock_min for segment in segments), default=frontier)
    high = max((segment.clock_max for segment in segments), default=frontier - 1)
    upper = upper_of(db, name)
    if low < max(upper, frontier) or high >= max(update.frontier, low):
        raise FrontierError(f"documents at {low} to {high} do not fit '{name}', whose upper is {upper}")
    last = last_clock(db, name) if ascending and segments else None
    if last is not None and low <= last:
        raise FrontierError(f"documents from {low} on are not later than those '{name}' already holds")
    insert_segments(db, name, segments)
