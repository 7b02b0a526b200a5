"""Tables and materialized views: their contents at a time, and their changes."""

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
    """Yield the rows that a table holds at a time in batches, each repeated by its count.

    Args:
        store: the data folder.
        table: the table.
        as_of: the time.
        bounds: bounds of columns in needed rows; other rows may be left out.

    Raises:
        FrontierError: the contents at that time are compacted, or not known yet.
        ViewError: it is a materialized view with an error in place of rows.
    """
    with _held(store, table, as_of):
        store.tables.check_at(_name(store, table), as_of)
        yield from _batches(store, table, as_of, bounds)


def unordered_at(
    store: Readable, table: Table, as_of: int, requested: Collection[int] | None = None
) -> Generator[list[Row]]:
    """Yield the rows of `table_at`, in any order.

    Args:
        store: the data folder.
        table: the table.
        as_of: the time.
        requested: indexes of the needed columns, others may be NULL; None for all.

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
            additions = TableAdditions(store.root, table, requested)
            yield from additions.read(SourceRead(0, 0, BEGINNING, as_of + 1, known.segments), known.appended)


def last_rows(store: Readable, table: Table) -> Generator[list[Row]]:
    """Yield the last stored rows in batches; they are outdated if there is an error in place of rows.

    Compaction may have reduced them to their state from `upper` on, so that they are not known at any time.

    Raises:
        FrontierError: there are later rows now.
    """
    with store.capabilities.keep(_name(store, table), max(table.since, table.upper - 1)) as capability:
        yield from _batches(store, table, capability.frontier)


@contextmanager
def _held(store: Readable, table: Table, as_of: int) -> Iterator[None]:
    """Hold the contents of a table at a time for the length of the block."""
    with store.capabilities.keep(_name(store, table), as_of):
        upper = store.upper(_name(store, table))
        if as_of >= upper:
            raise FrontierError(f"'{table.name}' is known up to {format_rfc3339(upper)}, and not yet at that time")
        yield


def _batches(store: Readable, table: Table, as_of: int, bounds: Bounds = _NO_BOUNDS) -> Iterator[list[Row]]:
    # A resuming reader reads no files at first, and need not wait for that.
    from derive.relations.tables.conditions import TableConditions
    from derive.storage.reduced_read import reduced_locally
    from derive.storage.segments.rows import StoredRows

    rows = rows_of(table)
    conditions = TableConditions(table, rows, bounds)
    known = store.tables.read(table.id, BEGINNING, as_of + 1, conditions.within_texts())
    read = SourceRead(0, 0, BEGINNING, as_of + 1, known.segments)
    updates = conditions.matching(known.appended)
    columns = zip(*pieces_of(updates), strict=True) if updates else ((),) * len(StoredRows.SCHEMA)
    appended = StoredRows.from_columns(*columns)
    with _dropped(table), TemporaryDirectory(prefix="flowctl-") as scratch:
        for part in reduced_locally(
            store.root, table.spec, read, Path(scratch), conditions=conditions.of_files(), appended=appended
        ):
            for begin in range(0, len(part), _BATCH):
                yield rows.rows(part.slice(begin, _BATCH).texts.to_pylist())


@contextmanager
def _dropped(table: Table) -> Iterator[None]:
    """Translate a missing file to the error that the table was dropped."""
    try:
        yield
    except SegmentMissingError as exc:
        raise FencedError(f"'{table.name}' was dropped while it was read") from exc


def _name(store: Readable, table: Table) -> str:
    """Return the present name of the table."""
    return store.tables.name_of(table.id) or table.name


class TableInput:
    """A table from a time on, for a dataflow.

    It holds the capability to read the table until it is closed.

    Args:
        store: the data folder.
        table: the table.
        as_of: timestamp, at or above its `since` and below its `upper`.
        requested: indexes of the needed columns of its snapshot, others may be NULL; None for all.

    Attributes:
        types: types of the columns.
        since: time after which updates are returned.
        has_more: False: a poll returns all updates.
        keeps: False: nothing of the snapshot is stored.
        failure: the time at which a materialized view has an error in place of rows, and the error; only updates before
            it are returned.

    Raises:
        FrontierError: the contents at that time are compacted.
    """

    has_more = keeps = False

    def __init__(self, store: Readable, table: Table, as_of: int, requested: Collection[int] | None = None) -> None:
        self.types: tuple[Type, ...] = tuple(column.type for column in columns_of(table))
        self.since = as_of
        self.failure: tuple[int, ViewError] | None = None
        self._store = store
        self._table = table
        self._requested = requested
        self._rows = rows_of(table)
        self._frontier = as_of + 1
        self._capability = store.capabilities.keep(_name(store, table), as_of)

    def close(self) -> None:
        """Release the capability to read."""
        self._capability.close()

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`, the only time that may be read."""
        assert as_of == self.since
        return unordered_at(self._store, self._table, as_of, self._requested)

    def count(self, as_of: int) -> int:
        """Return the approximate number of updates up to a time.

        Raises:
            FrontierError: the table is not known at that time yet.
        """
        read = self._store.tables.read(self._table.id, BEGINNING, as_of + 1)
        if as_of >= read.upper:
            raise FrontierError(f"'{self._table.name}' is not yet known at that time")
        return sum(segment.documents for segment in read.segments) + len(read.appended)

    def opener(self, as_of: int, requested: Collection[int] | None, place: Path) -> Callable[[], TableInput]:
        """Return a function that opens the same table from a time on in another process; nothing is stored."""
        return partial(_opened, self._store.root, self._table, as_of, requested)

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from a time."""
        self.since = as_of
        self._frontier = as_of + 1

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """Return the updates that are final and were not returned yet.

        Returns:
            A frontier, and all new updates below it: times, rows and diffs, by time.
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
        self._capability.move(upper)
        return upper, [(update.clock, row, update.diff) for update, row in zip(told, rows, strict=True)]


def _opened(root: Path, table: Table, as_of: int, requested: Collection[int] | None) -> TableInput:
    from derive.storage.store import Store

    return TableInput(Store(root, reading=True), table, as_of, requested)
