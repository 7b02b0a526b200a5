"""Collections of any kind as inputs of dataflows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row, Type
from derive.contents.rows import unordered_at
from derive.contents.table_updates import updates_of
from derive.document.clock import format_rfc3339
from derive.errors import FrontierError, ViewError
from derive.relations.columns import Source, columns_of
from derive.relations.table_rows import TableRows, rows_of
from derive.storage.roles import Readable
from derive.storage.table_types import Table
from derive.time import BEGINNING

if TYPE_CHECKING:
    from derive.contents.reduced_input import ReducedInput


def relation_input(
    store: Readable, source: Source, as_of: int, polls: SharedPolls | None = None
) -> ReducedInput | TableInput:
    """Return a collection from a time on, as an input that the dataflow closes.

    Args:
        store: the data folder.
        source: the collection.
        as_of: timestamp, at or above the collection's `since` and below its `upper`.
        polls: answers that the inputs of a table share; None if the input reads alone.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are compacted.
    """
    if isinstance(source, Table):
        return TableInput(store, source, as_of, polls=polls)
    from derive.contents.reduced_input import ReducedInput

    return ReducedInput(store, source, as_of)


@dataclass(frozen=True, slots=True)
class _Polled:
    """The final updates of a table from a time on.

    Attributes:
        upper: time before which updates are final.
        failure: time and error of the first error of a view; None for none. Updates from this time on are left out.
        updates: times, rows and diffs, by time.
    """

    upper: int
    failure: tuple[int, ViewError] | None
    updates: list[tuple[int, Row, int]]


def _polled(store: Readable, identifier: GlobalId, rows: TableRows, begin: int) -> _Polled | None:
    """Return the final updates of a table from a time on; None if no later time is final."""
    read = store.tables.read_on(identifier, begin)
    if read is None:
        return None
    upper = read.upper if read.failure is None else read.failure[0]
    if upper <= begin:
        return _Polled(upper, read.failure, [])
    ordered = sorted(updates_of(store, identifier, read, begin, upper), key=lambda update: update.clock)
    converted = rows.rows([update.text for update in ordered])
    updates = [(update.clock, row, update.diff) for update, row in zip(ordered, converted, strict=True)]
    return _Polled(upper, read.failure, updates)


class SharedPolls:
    """Answers that the inputs of one table share within a turn of work, which reads and converts each update once.

    Args:
        store: the data folder.
    """

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._known: dict[tuple[GlobalId, TableRows, int], _Polled | None] = {}

    def begin_turn(self) -> None:
        """Forget all answers, because later times may be final by now."""
        self._known = {}

    def of(self, identifier: GlobalId, rows: TableRows, begin: int) -> _Polled | None:
        """Return the final updates of a table from a time on; None if no later time is final.

        Args:
            identifier: identifier of the table.
            rows: converter of the table's rows; inputs that know other columns have another one.
            begin: the time.
        """
        known, key = self._known, (identifier, rows, begin)
        if key not in known:
            known[key] = _polled(self._store, identifier, rows, begin)
        return known[key]


class TableInput:
    """A table from a time on, for a dataflow.

    The input holds the capability to read the table until the input is closed.

    Args:
        store: the data folder.
        table: the table.
        as_of: timestamp, at or above the table's `since` and below its `upper`.
        requested: indexes of the needed columns of the snapshot; other columns may be NULL. None for all columns.
        on_close: called when the input is closed.
        polls: answers that the inputs of the table share; None if this input reads alone.

    Attributes:
        types: types of the columns.
        since: time after which updates are returned.
        has_more: False: a poll returns all updates.
        keeps: False: the snapshot is not stored.
        failure: the timestamp from which on a materialized view has an error in place of rows, and the error; only
            earlier updates are returned.

    Raises:
        FrontierError: the contents at that time are compacted.
    """

    has_more = keeps = False

    def __init__(
        self,
        store: Readable,
        table: Table,
        as_of: int,
        requested: Collection[int] | None = None,
        on_close: Callable[[], None] | None = None,
        *,
        polls: SharedPolls | None = None,
    ) -> None:
        self.types: tuple[Type, ...] = tuple(column.type for column in columns_of(table))
        self.since = as_of
        self.failure: tuple[int, ViewError] | None = None
        self._store = store
        self._table = table
        self._requested, self._on_close = requested, on_close
        self._rows = rows_of(table)
        self._poll = partial(_polled, store) if polls is None else polls.of
        self._frontier = as_of + 1
        self._capability = store.capabilities.keep(table.name, as_of, table.id)

    def close(self) -> None:
        """Release the capability to read."""
        self._capability.close()
        if self._on_close is not None:
            self._on_close()

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
            raise FrontierError(f"'{self._table.name}' is not yet known at {format_rfc3339(as_of)}")
        return sum(segment.documents for segment in read.segments) + len(read.appended)

    def opener(self, as_of: int, requested: Collection[int] | None, place: Path) -> Callable[[], TableInput]:
        """Return a function that opens the same table from a time on in another process.

        The function stores nothing.
        """
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
        polled = self._poll(self._table.id, self._rows, self._frontier)
        if polled is None:
            return self._frontier, []
        if polled.failure is not None:
            self.failure = polled.failure
        if polled.upper <= self._frontier:
            return self._frontier, []
        self._frontier = polled.upper
        self._capability.move(polled.upper)
        return polled.upper, polled.updates


def _opened(root: Path, table: Table, as_of: int, requested: Collection[int] | None) -> TableInput:
    from derive.storage.store import Store

    store = Store(root, reading=True)
    try:
        return TableInput(store, table, as_of, requested, store.close)
    except BaseException:
        store.close()
        raise
