"""Tables and materialized views: what they hold at a time, and what changes in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from derive.algebra.bounds import Bounds
from derive.algebra.types import Row, Type
from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FrontierError, SegmentMissingError, ViewError
from derive.relations.columns import columns_of
from derive.relations.hold import Hold
from derive.relations.tables.additions import TableAdditions, is_added_to
from derive.relations.tables.rows import rows_of
from derive.storage.roles import Readable
from derive.storage.table import Table
from derive.storage.table_files import pieces_of
from derive.storage.table_subscription import updates_of
from derive.time.frontier import BEGINNING
from derive.time.source_read import SourceRead

_BATCH = 10_000
_NO_BOUNDS: Bounds = {}


def table_at(store: Readable, table: Table, as_of: int, bounds: Bounds = _NO_BOUNDS) -> Generator[list[Row]]:
    """The rows that a table holds at a time, each as often as it is there, in batches.

    Args:
        store: holds the table.
        table: the table.
        as_of: the time.
        bounds: what columns are in rows that are needed; others may be left out.

    Raises:
        FrontierError: the contents at that time are no longer, or not yet, known.
        ViewError: it is a materialized view, and has an error in their place.
    """
    with _held(store, table, as_of):
        store.tables.check_at(_name(store, table), as_of)
        yield from _batches(store, table, as_of, bounds)


def unordered_at(
    store: Readable, table: Table, as_of: int, wanted: Collection[int] | None = None
) -> Generator[list[Row]]:
    """The same rows as those of `table_at`, in any order.

    Args:
        store: holds the table.
        table: the table.
        as_of: the time.
        wanted: indexes of the columns that are needed, all others may be NULL; None for all.

    Raises:
        FrontierError: as for `table_at`.
        ViewError: as for `table_at`.
    """
    with _held(store, table, as_of):
        store.tables.check_at(_name(store, table), as_of)
        known = store.tables.read(table.id, BEGINNING, as_of + 1)
        with _dropped(table):
            if not is_added_to(store.root, known.segments, known.appended):
                yield from _batches(store, table, as_of)
                return
            additions = TableAdditions(store.root, table, wanted)
            yield from additions.read(SourceRead(0, 0, BEGINNING, as_of + 1, known.segments), known.appended)


def last_rows(store: Readable, table: Table) -> Generator[list[Row]]:
    """The rows that were stored last in batches, which are older ones where there is an error in their place.

    Compaction may have reduced them to what they are from `upper` on, so that they are not known at any time.

    Raises:
        FrontierError: there are later ones by now.
    """
    capability = store.leases.lease(_name(store, table), max(table.since, table.upper - 1))
    with store.leases.kept(capability):
        yield from _batches(store, table, capability.frontier)


@contextmanager
def _held(store: Readable, table: Table, as_of: int) -> Iterator[None]:
    """Have what a table holds at a time stay known."""
    capability = store.leases.lease(_name(store, table), as_of)
    with store.leases.kept(capability):
        upper = store.upper(_name(store, table))
        if as_of >= upper:
            raise FrontierError(f"'{table.name}' is known up to {format_rfc3339(upper)}, and not yet at that time")
        yield


def _batches(store: Readable, table: Table, as_of: int, bounds: Bounds = _NO_BOUNDS) -> Iterator[list[Row]]:
    # Who goes on from what it has reads no files at first, and need not wait for what that takes.
    from derive.relations.tables.conditions import TableConditions
    from derive.storage.reduced_read import reduced_here
    from derive.storage.segments.rows import StoredRows

    rows = rows_of(table)
    conditions = TableConditions(table, rows, bounds)
    known = store.tables.read(table.id, BEGINNING, as_of + 1, conditions.within_texts())
    read = SourceRead(0, 0, BEGINNING, as_of + 1, known.segments)
    updates = conditions.wanted(known.appended)
    columns = zip(*pieces_of(updates), strict=True) if updates else ((),) * len(StoredRows.SCHEMA)
    appended = StoredRows.from_columns(*columns)
    with _dropped(table), TemporaryDirectory(prefix="flowctl-") as scratch:
        for part in reduced_here(
            store.root, table.spec, read, Path(scratch), conditions=conditions.of_files(), appended=appended
        ):
            for begin in range(0, len(part), _BATCH):
                yield rows.rows(part.slice(begin, _BATCH).texts.to_pylist())


@contextmanager
def _dropped(table: Table) -> Iterator[None]:
    """Where a file is missing, a table was dropped."""
    try:
        yield
    except SegmentMissingError as exc:
        raise FencedError(f"'{table.name}' was dropped while it was read") from exc


def _name(store: Readable, table: Table) -> str:
    """What the table is called now."""
    return store.tables.name_of(table.id) or table.name


class TableInput:
    """A table from a time on, for a dataflow.

    It holds the right to read the table, from where it is, until it is closed.

    Args:
        store: holds the table.
        table: the table.
        as_of: clock, at or above its `since` and below its `upper`.
        wanted: indexes of the columns that are needed of its snapshot, all others may be NULL; None for all.

    Attributes:
        types: of the columns.
        since: the time from which on updates are told.
        has_more: a poll tells of all that there is.
        keeps: nothing is kept of the snapshot.
        failure: of a materialized view, the time at which it has an error in the place of rows, and the error; what is
            before that is told, and nothing more.

    Raises:
        FrontierError: the contents at that time are no longer known.
    """

    has_more = keeps = False

    def __init__(self, store: Readable, table: Table, as_of: int, wanted: Collection[int] | None = None) -> None:
        self.types: tuple[Type, ...] = tuple(column.type for column in columns_of(table))
        self.since = as_of
        self.failure: tuple[int, ViewError] | None = None
        self._store = store
        self._table = table
        self._wanted = wanted
        self._rows = rows_of(table)
        self._frontier = as_of + 1
        self._hold = Hold(store, _name(store, table), as_of)

    def close(self) -> None:
        """Give the right to read back."""
        self._hold.close()

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at `since`, which is the time that may be asked for."""
        assert as_of == self.since
        return unordered_at(self._store, self._table, as_of, self._wanted)

    def count(self, as_of: int) -> int:
        """About how many updates there are up to a time.

        Raises:
            FrontierError: it is not known at that time yet.
        """
        read = self._store.tables.read(self._table.id, BEGINNING, as_of + 1)
        if as_of >= read.upper:
            raise FrontierError(f"'{self._table.name}' is not yet known at that time")
        return sum(segment.documents for segment in read.segments) + len(read.appended)

    def opener(self, as_of: int, wanted: Collection[int] | None, place: Path) -> Callable[[], TableInput]:
        """What opens the same table from a time on in another process; it keeps nothing."""
        return partial(_opened, self._store.root, self._table, as_of, wanted)

    def adopt(self, as_of: int, place: Path) -> None:
        """Go on from a time."""
        self.since = as_of
        self._frontier = as_of + 1

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """What is final by now and was not told yet.

        Returns:
            A frontier, and all updates below it that were not told before: times, rows and diffs, by time.
        """
        read = self._store.tables.read_on(self._table.id, self._frontier)
        if read is None:
            return self._frontier, []
        upper = read.upper
        if read.failure is not None:
            self.failure = read.failure
            upper = read.failure[0]
            if upper <= self._frontier:
                return self._frontier, []
        updates = updates_of(self._store, self._table.id, read, self._frontier, upper)
        told = sorted(updates, key=lambda update: update.clock)
        rows = self._rows.rows([update.text for update in told])
        self._frontier = upper
        self._hold.move(upper)
        return upper, [(update.clock, row, update.diff) for update, row in zip(told, rows, strict=True)]


def _opened(root: Path, table: Table, as_of: int, wanted: Collection[int] | None) -> TableInput:
    from derive.storage.store import Store

    return TableInput(Store(root, reading=True), table, as_of, wanted)
