"""Writes materialized views to Storage, where they outlive their dataflow, and where other tasks can read them.

Rows and errors are written together. Storage has no rows of the times at which a view has an error: the changes of
these times are written at the time at which the last error ends. So a reader never gets rows that were computed beside
an error.

The first rows of a view may be many: a separate thread writes them, and other views do not wait.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.relation import Finishing, Get, GlobalId
from derive.algebra.types import Row
from derive.compute.dataflow.staging import as_failure
from derive.compute.instance import Instance
from derive.compute.replica.isolation import Instances
from derive.contents.rows import last_rows
from derive.errors import FlowError
from derive.relations.columns import columns_of
from derive.relations.table_rows import TableRows, rows_of
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import BulkChanges, ErrorUpdate, RowUpdate, Table, TableUpdate
from derive.storage.tables import BULK_ROWS
from derive.time import END_OF_TIME, FOREVER

_PATIENCE_SECONDS = 0.1
"""Seconds for which other views wait for the first rows of a view."""

_Update: TypeAlias = tuple[int, Row, int]
_Gap: TypeAlias = tuple[int, int]
"""Begin (included) and end (excluded) of the times at which a view has errors."""


class Writeback:
    """The writer of materialized views.

    Args:
        store: Storage of the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failing: dict[GlobalId, _Gap] = {}
        """For each view with errors, the first time of unwritten rows, and the time before which rows are written.

        Another process may have written later rows.
        """
        self._begun: set[tuple[GlobalId, int]] = set()
        """Views that this process has written at least once, each with the number of its definition."""
        self._beginning: tuple[GlobalId, threading.Thread] | None = None
        self._failures: dict[GlobalId, FlowError] = {}
        """The error of each view whose last write failed, the oldest failure first."""

    def close(self) -> None:
        """Wait until the running write is done."""
        if self._beginning is not None:
            self._beginning[1].join()

    def write(self, instance: Instance | Instances, views: Mapping[GlobalId, int]) -> Mapping[GlobalId, FlowError]:
        """Write views up to their frontiers in one commit; the first rows of new definitions may be written later.

        Args:
            instance: the instance that maintains the views.
            views: numbers of the definitions by view; a view is not written by an earlier definition.

        Returns:
            The errors of the views whose last write failed; the next calls try again.

        Raises:
            FlowError: Storage cannot write.
        """
        if self._beginning is not None and not self._beginning[1].is_alive():
            self._beginning = None
        beginning = self._beginning[0] if self._beginning is not None else None
        self._begun.intersection_update(views.items())
        for gone in self._failures.copy().keys() - views.keys():
            self._failures.pop(gone, None)
        new = [one for one, number in views.items() if (one, number) not in self._begun and _is_known(instance, one)]
        if new and beginning is None:
            beginning = self._least_failed(new)
            begun = instance, beginning, views[beginning]
            thread = threading.Thread(target=self._begin, args=begun, name="flowctl-sql-writeback")
            self._beginning = beginning, thread
            thread.start()
            thread.join(_PATIENCE_SECONDS)
        self._write(
            instance,
            {id_: number for id_, number in views.items() if (id_, number) in self._begun and id_ != beginning},
        )
        return self._failures.copy()

    def _least_failed(self, views: Sequence[GlobalId]) -> GlobalId:
        """Return a view whose last write did not fail, or else the one whose failure is the oldest."""
        untried = (one for one in views if one not in self._failures)
        return next(untried, None) or next(one for one in self._failures if one in views)

    def _fail(self, identifier: GlobalId, error: Exception) -> None:
        self._failures.pop(identifier, None)
        self._failures[identifier] = as_failure(error)

    def _begin(self, instance: Instance | Instances, identifier: GlobalId, definition: int) -> None:
        try:
            self._write(instance, {identifier: definition})
        except Exception as error:  # other views are next
            self._fail(identifier, error)
            return
        if identifier not in self._failures:
            self._begun.add((identifier, definition))

    def _write(self, instance: Instance | Instances, views: Mapping[GlobalId, int]) -> None:
        updates: list[TableUpdate] = []
        failing: dict[GlobalId, _Gap | None] = {}
        for identifier, definition in views.items():
            try:
                update, begun = self._update(instance, identifier, definition)
            except FlowError:  # the view is no longer maintained, and its readers get the error
                continue
            except Exception as error:  # other views are written
                self._fail(identifier, error)
                continue
            self._failures.pop(identifier, None)
            if update is not None:
                updates.append(update)
                failing[identifier] = None if begun is None else (begun, update.end)
        if updates:
            self._store.tables.commit(updates, Door.DATAFLOW)
        for identifier, gap in failing.items():
            if gap is None:
                self._failing.pop(identifier, None)
            else:
                self._failing[identifier] = gap

    def _update(
        self, instance: Instance | Instances, identifier: GlobalId, definition: int
    ) -> tuple[TableUpdate | None, int | None]:
        """Return the update of a view, or None; and, if errors remain at its end, the first time of unwritten rows.

        There is no update by an earlier definition than that of the view.

        If the first time of unwritten rows is unknown, or the instance knows the view only from a later time on, the
        update is the difference from the last written rows. An update of many rows has only one time, because columns
        are written faster than rows; the next update has the later times.
        """
        table = self._store.tables.table(identifier)
        since, upper = instance.frontiers(identifier)
        upper = min(upper, FOREVER)
        if table is None or table.upper >= END_OF_TIME or upper <= max(since, table.upper):
            return None, None
        if abs(table.definition) != definition:
            return None, None
        begin = max(since, table.upper)
        stored = self._store.tables.errors(identifier)
        updates = instance.updates(identifier, begin, upper)
        gaps = list(_gaps(updates.errors, upper))
        known_from = begin if begin > table.upper else None  # the rows before this time were not computed
        unwritten = self._unwritten(table, has_errors=bool(stored))
        if unwritten is not None and unwritten > updates.since:
            changes = updates.rows if unwritten == begin else instance.updates(identifier, unwritten, upper).rows
        else:
            time = gaps[0][1] if gaps and gaps[0][0] == begin else begin
            difference = self._difference(instance, table, time, upper)
            if not (stored or gaps) and (bulk := _bulk(table, difference)):
                update = TableUpdate(identifier, table.upper, begin + 1, since=known_from, bulk=bulk)
                return replace(update, definition=definition), None
            changes = [(time, row, diff) for row, diff in difference]
            changes += [update for update in updates.rows if update[0] > time]
        rows = _row_updates(table, _outside(changes, begin, gaps, upper))
        errors = _error_updates(begin, stored, updates.errors)
        update = TableUpdate(identifier, table.upper, upper, tuple(rows), tuple(errors), known_from, None, definition)
        if not gaps or gaps[-1][1] < upper:
            return update, None
        return update, gaps[-1][0] if gaps[-1][0] > begin else unwritten

    def _unwritten(self, table: Table, *, has_errors: bool) -> int | None:
        """Return the first time at which changes of a view's rows are unwritten; None if the time is unknown.

        The time is unknown for a view without readable times: no rows were written yet, or all history was compacted.
        The time is also unknown if the written rows are those of an earlier definition.
        """
        if table.upper <= table.since or table.definition < 0:
            return None
        if not has_errors:
            return table.upper
        begun, written = self._failing.get(table.id, (0, 0))
        return begun if written == table.upper else None

    def _difference(self, instance: Instance | Instances, table: Table, time: int, upper: int) -> list[tuple[Row, int]]:
        """Return the changes from the last written rows to the rows at a time; none if this time is not known yet."""
        if time >= upper:
            return []
        types = tuple(column.type for column in columns_of(table))
        counts: Counter[Row] = Counter()
        finishing = Finishing((), None, 0, tuple(range(len(types))))
        for batch in instance.peek(Get(table.id, types), finishing, time):
            counts.update(batch)
        for batch in last_rows(self._store, table):
            counts.subtract(batch)
        return [(row, count) for row, count in counts.items() if count]


def _is_known(instance: Instance | Instances, identifier: GlobalId) -> bool:
    """Return whether there is a time at which a view is readable."""
    try:
        since, upper = instance.frontiers(identifier)
    except FlowError:
        return False
    return since < upper


def _gaps(errors: Iterable[tuple[int, str, str, int]], upper: int) -> Iterator[_Gap]:
    """Yield the intervals with errors, in order; the last ends at `upper` if its errors remain."""
    count = begun = 0
    for time, diff in _added(errors):
        if count == 0:
            begun = time
        count += diff
        if count == 0:
            yield begun, time
    if count:
        yield begun, upper


def _added(errors: Iterable[tuple[int, str, str, int]]) -> list[tuple[int, int]]:
    """Return times, each with the change of the number of errors."""
    counts: Counter[int] = Counter()
    for time, _, _, diff in errors:
        counts[time] += diff
    return [(time, diff) for time, diff in sorted(counts.items()) if diff]


def _outside(changes: Sequence[_Update], begin: int, gaps: Sequence[_Gap], upper: int) -> Sequence[_Update]:
    """Return changes: changes in a closed gap are moved to its end, and changes in an open gap are left out.

    Args:
        changes: changes by time; changes before `begin` are moved to `begin`.
        begin: first time that is written.
        gaps: intervals with errors, in order.
        upper: first time that is not written.
    """
    if not gaps and (not changes or changes[0][0] >= begin):
        return changes
    sums: dict[int, Counter[Row]] = {}
    rest = list(gaps)
    for time, row, diff in changes:
        written = max(time, begin)
        while rest and rest[0][1] <= written:
            del rest[0]
        if rest and rest[0][0] <= written:
            written = rest[0][1]
        sums.setdefault(written, Counter())[row] += diff
    return [(time, row, diff) for time, counts in sums.items() if time < upper for row, diff in counts.items() if diff]


def _bulk(table: Table, difference: Sequence[tuple[Row, int]]) -> BulkChanges | None:
    """Return many changes of rows as columns; None for few changes, or rows that are repeated."""
    if len(difference) < BULK_ROWS:
        return None
    return rows_of(table).bulk([row for row, _ in difference], [diff for _, diff in difference])


def _row_updates(table: Table, updates: Sequence[_Update]) -> list[RowUpdate]:
    changes = TableRows(table).changes([(row, diff) for _, row, diff in updates])
    return [RowUpdate(clock, *change) for (clock, _, _), change in zip(updates, changes, strict=True)]


def _error_updates(
    begin: int, stored: Iterable[tuple[str, str]], errors: Iterable[tuple[int, str, str, int]]
) -> Iterator[ErrorUpdate]:
    """Yield the insertions and deletions of errors after the last written errors.

    Args:
        begin: first time that is written.
        stored: SQLSTATE and message of the errors written last.
        errors: errors from `begin` on; an error that exists at `begin` has this time.
    """
    listed = list(errors)
    gone = set(stored) - {(sqlstate, message) for time, sqlstate, message, _ in listed if time == begin}
    yield from (ErrorUpdate(begin, *error, -1) for error in sorted(gone))
    known = set(stored)
    for time, sqlstate, message, diff in listed:
        if time > begin or (sqlstate, message) not in known:
            yield ErrorUpdate(time, sqlstate, message, diff)
