"""Reading tables: their updates, wherever these are; their contents at a time; and subscriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator

from derive.errors import FencedError, FrontierError, SegmentMissingError
from derive.storage.metadata.held import Capability
from derive.storage.metadata.table_read import TableRead
from derive.storage.roles import Readable
from derive.storage.table import GlobalId, RowUpdate
from derive.time.frontier import BEGINNING, END_OF_TIME
from derive.time.source_read import SourceRead

_IDLE_SECONDS = 0.2
"""How often whoever subscribes is told that there is nothing new."""


def read_updates(store: Readable, table: GlobalId, begin: int, end: int) -> Iterator[RowUpdate]:
    """Updates of a table with clocks in `[begin, end)`, for whoever has the right to read them.

    Yields:
        Those in segments in the order of clocks, and then those that are in none yet, in this order too.

    Raises:
        StorageError: there is no such table.
        FencedError: it was dropped while it was read.
    """
    return updates_of(store, table, store.tables.read(table, begin, end), begin, end)


def updates_of(store: Readable, table: GlobalId, read: TableRead, begin: int, end: int) -> Iterator[RowUpdate]:
    """The same of a table that was looked at already."""
    try:
        yield from _in_segments(store, SourceRead(0, 0, begin, end, read.segments))
    except SegmentMissingError as exc:
        raise FencedError(f"table {table} was dropped while it was read") from exc
    for clock, _, diff, key, text in read.appended:
        yield RowUpdate(clock, text, key, diff)


def _in_segments(store: Readable, read: SourceRead) -> Iterator[RowUpdate]:
    if not read.segments:
        return
    from derive.storage.segments.reader import read_sorted

    for rows in read_sorted(store.root, [read]):
        columns = (rows.adjusted.tolist(), rows.texts.to_pylist(), rows.keys.to_pylist(), rows.diffs.tolist())
        yield from map(RowUpdate, *columns)


def table_contents(store: Readable, table: GlobalId, as_of: int) -> dict[tuple[str, bytes], int]:
    """The rows that a table holds at a time: texts and packed keys, and how often each is there.

    Raises:
        StorageError: a row was taken out more often than it was put in.
    """
    from derive.storage.segments.consolidation import times_present

    counts: Counter[tuple[str, bytes]] = Counter()
    for update in read_updates(store, table, BEGINNING, as_of + 1):
        counts[update.text, update.key] += update.diff
    return {row: times_present(str(table), row[0], count) for row, count in counts.items() if count}


def subscribe_at(
    store: Readable, capability: Capability, is_idle: Callable[[], None], *, has_snapshot: bool = True
) -> Generator[list[RowUpdate] | int]:
    """What a table holds at the frontier of a right to read it, and what changes after that, as it becomes final.

    Whoever subscribes may downgrade the right to a frontier that was yielded, and no further.

    Args:
        store: holds the table.
        capability: to read it.
        is_idle: is called when there is nothing new, and now and then while that is so; it may raise to end the
            subscription.
        has_snapshot: begin with the contents at the frontier, each row as an update at that time.

    Yields:
        Updates, and now and then a frontier: every update with a clock below it has been handed on. The last one is
        `END_OF_TIME`, of a table that was dropped.

    Raises:
        FencedError: the right was given back, or ran out.
        FrontierError: it was downgraded beyond what was yielded.
        ViewError: it is a materialized view with an error in the place of rows; what was before that was yielded.
    """
    frontier = capability.frontier
    is_begun = False
    while frontier < END_OF_TIME:
        mark = store.changes.mark()
        current = store.capabilities.find(capability.id)
        if current.frontier > frontier:
            raise FrontierError(f"capability {capability.id} was downgraded to what was not handed on yet")
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
