"""The updates of a table, in segments and metadata: stored updates, sums at a time, and updates from a time on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator

from derive.errors import FencedError, FrontierError, SegmentMissingError
from derive.storage.capability.table import Capability
from derive.storage.metadata.tables import TableRead
from derive.storage.roles import Readable
from derive.storage.table_types import GlobalId, RowUpdate
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import SourceRead

_IDLE_SECONDS = 0.2
"""Interval between calls of `is_idle` while nothing is new."""


def read_updates(store: Readable, table: GlobalId, begin: int, end: int) -> Iterator[RowUpdate]:
    """Yield the updates of a table with timestamps in `[begin, end)`; the caller holds a read capability.

    Yields:
        Updates in segments, ordered by timestamp; and then updates that are in no segment yet, in the same order.

    Raises:
        StorageError: the table does not exist.
        FencedError: the table was dropped during the read.
    """
    return updates_of(store, table, store.tables.read(table, begin, end), begin, end)


def updates_of(store: Readable, table: GlobalId, read: TableRead, begin: int, end: int) -> Iterator[RowUpdate]:
    """Yield the updates of a table like `read_updates`, from the result of `Tables.read`."""
    try:
        yield from _in_segments(store, SourceRead(0, 0, begin, end, read.segments))
    except SegmentMissingError as exc:
        raise FencedError(f"table {table} was dropped during the read") from exc
    for clock, _, diff, key, text in read.appended:
        yield RowUpdate(clock, text, key, diff)


def _in_segments(store: Readable, read: SourceRead) -> Iterator[RowUpdate]:
    if not read.segments:
        return
    from derive.storage.segments.reader import read_sorted

    for rows in read_sorted(store.location, [read]):
        columns = (rows.adjusted.tolist(), rows.texts.to_pylist(), rows.keys.to_pylist(), rows.diffs.tolist())
        yield from map(RowUpdate, *columns)


def table_contents(store: Readable, table: GlobalId, as_of: int) -> dict[tuple[str, bytes], int]:
    """Return the count of each row of a table at a time, by text and packed key of the row.

    Raises:
        StorageError: a row has more retractions than insertions.
    """
    from derive.storage.segments.rows import times_present

    counts: Counter[tuple[str, bytes]] = Counter()
    for update in read_updates(store, table, BEGINNING, as_of + 1):
        counts[update.text, update.key] += update.diff
    return {row: times_present(str(table), row[0], count) for row, count in counts.items() if count}


def subscribe_at(
    store: Readable, capability: Capability, is_idle: Callable[[], None], *, has_snapshot: bool = True
) -> Generator[list[RowUpdate] | int]:
    """Yield the contents of a table at the frontier of a read capability, and later updates as they become final.

    The caller may downgrade the capability up to a yielded frontier.

    Args:
        store: store of the table.
        capability: read capability on the table.
        is_idle: called regularly while no update is new; it may raise an error to end the subscription.
        has_snapshot: whether to begin with the contents at the frontier, each row as an update at the frontier.

    Yields:
        Updates, and frontiers: every update below a frontier has been yielded. The last frontier of a dropped table is
            `END_OF_TIME`.

    Raises:
        FencedError: the capability was dropped, or expired.
        FrontierError: the capability was downgraded beyond the yielded frontier.
        ViewError: the table is a materialized view with an error; all earlier updates were yielded.
    """
    frontier = capability.frontier
    is_begun = False
    while frontier < END_OF_TIME:
        mark = store.changes.mark()
        current = store.capabilities.find(capability.id)
        if current.frontier > frontier:
            raise FrontierError(
                f"capability {capability.id} was downgraded beyond the updates that the subscription has yielded"
            )
        table = store.tables.table(capability.collection)
        known = store.collection(table.name) if table else None
        if known is None or known.sound <= frontier:
            if known is not None and known.failure is not None:
                raise known.failure[1]
            is_idle()
            store.changes.wait(mark, _IDLE_SECONDS)
            continue
        store.changes.settle()
        if not is_begun:
            is_begun = True
            if has_snapshot:
                contents = table_contents(store, capability.collection, frontier)
                yield [RowUpdate(frontier, text, key, count) for (text, key), count in contents.items()]
            frontier += 1
        updates = list(read_updates(store, capability.collection, frontier, known.sound))
        if updates:
            yield sorted(updates, key=lambda update: update.clock)
        frontier = known.sound
        yield frontier
