"""Tables of a data folder: multisets of rows that are written often, a few at a time.

A commit is one transaction of the metadata, for any number of tables, so it syncs the disk once. Later, the rows of
several commits are written to segments together. Readers see both kinds of rows as one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FlowError, FrontierError, StorageError, ViewError
from derive.protocol.collection import intended_name
from derive.protocol.specs import CollectionSpec
from derive.storage.capability.table import Capability, acquire, is_live, release, release_expired, require_live
from derive.storage.location import Location
from derive.storage.metadata.collection import (
    advance_since,
    advance_upper,
    advance_uppers,
    failed_collections,
    first_error,
    name_of_relation,
    new_identifier,
    standing_errors,
    write_errors,
)
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.definitions import Definitions, NewTable, define, free, stage
from derive.storage.metadata.owner import Door, require_open
from derive.storage.metadata.segment import insert_segments
from derive.storage.metadata.tables import (
    TableRead,
    append,
    appended_tables,
    begin_ended_views,
    begin_view,
    count_updates,
    delete_appended,
    find_table,
    forget_unread,
    has_appended,
    has_ended_views,
    insert_table,
    name_of,
    next_seq,
    read_appended,
    read_between,
    read_on,
    read_table,
    read_tables,
    require_definition,
    take_over,
)
from derive.storage.metadata.transaction import Transaction, nothing
from derive.storage.segments.partition import INGESTED, NO_PARTITION
from derive.storage.table_types import (
    AppendedRow,
    BulkChanges,
    GlobalId,
    RowUpdate,
    Table,
    TableColumn,
    TableUpdate,
    in_order,
)
from derive.storage.timeline import Timeline, assign_up_to, require_unassigned
from derive.time import BEGINNING, END_OF_TIME, FOREVER
from derive.time.positions import Segment

if TYPE_CHECKING:
    from derive.storage.segments.rows import WrittenRows
    from derive.storage.segments.writer import SegmentWriter

_MOST_DIFF = 127
_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class TableFile:
    """Durable segments of a table that are not committed yet.

    Attributes:
        capability: write capability that protects the segments from removal; it bounds no frontier.
        segments: segments of the table.
        writer: writer of the segments.
    """

    capability: Capability
    segments: Sequence[Segment]
    writer: SegmentWriter


def _update(table: GlobalId, clock: int, changes: Sequence[Change] | BulkChanges) -> TableUpdate:
    """Return changes of a table at one timestamp."""
    if isinstance(changes, BulkChanges):
        return TableUpdate(table, None, clock + 1, bulk=changes)
    return TableUpdate(table, None, clock + 1, tuple([RowUpdate(clock, *change) for change in changes]))


def appended_rows(updates: Sequence[RowUpdate], first: int) -> list[AppendedRow]:
    """Return the updates of one commit as rows in order; their sequence numbers begin at `first`."""
    return [
        (clock, number, diff, key, text)
        for number, (clock, text, key, diff) in enumerate(in_order(updates), start=first)
    ]


class TableFiles:
    """Writes segments of tables.

    Args:
        location: location of the segments.
        metadata: metadata database of the data folder.
    """

    def __init__(self, location: Location, metadata: Metadata) -> None:
        self._location = location
        self._metadata = metadata

    def write(self, table: Table, rows: Sequence[AppendedRow]) -> TableFile:
        """Write segments of a table.

        Args:
            table: table of the rows; the files get the name of the table, even if the table is not yet bound to the
                name.
            rows: rows, ordered by timestamp and sequence number.
        """
        from derive.storage.segments.rows import WrittenRows

        def batches() -> Iterator[WrittenRows]:
            pieces = pieces_of(rows)
            for begin in range(0, len(pieces), _BATCH):
                clocks, seqs, diffs, keys, texts = zip(*pieces[begin : begin + _BATCH], strict=True)
                labels = [NO_PARTITION] * len(clocks)
                yield WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, labels)

        return self._write(table, batches())

    def write_bulk(self, table: Table, clock: int, first: int, changes: BulkChanges) -> TableFile:
        """Write segments of a table with changes at one timestamp.

        Args:
            table: as for `write`.
            clock: the timestamp.
            first: sequence number of the first row.
            changes: the changes.
        """
        import numpy as np
        import pyarrow as pa

        from derive.storage.segments.rows import WrittenRows

        def batches() -> Iterator[WrittenRows]:
            seq = first
            for diff, texts, keys, fields in changes.batches():
                count = len(texts)
                clocks = pa.array(np.full(count, clock))
                seqs = pa.array(np.arange(seq, seq + count, dtype=np.int32))
                diffs = pa.array(np.full(count, diff, dtype=np.int8))
                labels = pa.repeat(pa.scalar(NO_PARTITION), count)
                yield WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, labels).with_fields(fields)
                seq += count

        return self._write(table, batches())

    def _write(self, table: Table, batches: Iterator[WrittenRows]) -> TableFile:
        from derive.storage.segments.writer import SegmentWriter

        with self._metadata.transaction(synced=False) as db:  # a loss of power ends the capability anyway
            capability = acquire(db, "write", str(name_of(db, table.id)), END_OF_TIME)
        writer = SegmentWriter(self._location, table.spec, f"{INGESTED}{capability.id}", is_valid=True)
        try:
            for rows in batches:
                writer.write(rows)
            return TableFile(capability, writer.close(), writer)
        except BaseException:
            self.remove(TableFile(capability, (), writer))
            raise

    def remove(self, file: TableFile) -> None:
        """Remove segments that were not committed.

        A failure is possible after the commit. Segments stay if the outcome is unknown: without a commit, their
        capability expires, and a later compaction removes them.
        """
        with suppress(FlowError):
            with self._metadata.snapshot() as db:
                is_committed = not is_live(db, file.capability.id)  # `adopt` releases it
            if not is_committed:
                file.writer.abort()
                with self._metadata.transaction(synced=False) as db:
                    release(db, file.capability.id)


def adopt(db: Transaction, identifier: GlobalId, file: TableFile) -> None:
    """Add segments to their table, in a write transaction.

    Raises:
        FencedError: the capability has expired, so the segments are garbage.
    """
    require_live(db, file.capability)
    name = name_of(db, identifier)
    if name is None:
        raise FencedError(f"table {identifier} was dropped")
    insert_segments(db, name, file.segments)
    release(db, file.capability.id)


def pieces_of(rows: Sequence[AppendedRow]) -> list[AppendedRow]:
    """Split each row whose diff exceeds the limit of a segment into several rows.

    >>> pieces_of([(5, 0, 300, b"k", "{}")])
    [(5, 0, 127, b'k', '{}'), (5, 0, 127, b'k', '{}'), (5, 0, 46, b'k', '{}')]
    """
    if all(-_MOST_DIFF <= row[2] <= _MOST_DIFF for row in rows):
        return list(rows)
    pieces: list[AppendedRow] = []
    for row in rows:
        clock, seq, diff, key, text = row
        while abs(diff) > _MOST_DIFF:
            piece = _MOST_DIFF if diff > 0 else -_MOST_DIFF
            pieces.append((clock, seq, piece, key, text))
            diff -= piece
        pieces.append((clock, seq, diff, key, text))
    return pieces


BULK_ROWS = 8_000
"""Number of changed rows of one commit from which they are written to a segment as columns, if that is possible."""
MANY_ROWS = 20_000
"""Number of updates of a table (of one commit, or appended ones) from which they are written to a segment."""

Change: TypeAlias = tuple[str, bytes, int]
"""Text, packed key and diff of a row, as in `RowUpdate`."""


class Tables:
    """The tables of one data folder.

    Args:
        location: location of the segments.
        metadata: metadata database of the data folder.
        timeline: timeline of the data folder.
    """

    def __init__(self, location: Location, metadata: Metadata, timeline: Timeline) -> None:
        self._metadata = metadata
        self._files = TableFiles(location, metadata)
        self._appended: Counter[GlobalId] = Counter()
        self._timeline = timeline

    # Look-ups

    def new_ids(self, count: int) -> list[GlobalId]:
        """Return new identifiers for definitions, without a sync: a loss of power also undoes the definitions."""
        with self._metadata.transaction(synced=False) as db:
            return [new_identifier(db) for _ in range(count)]

    def id_of(self, name: str) -> GlobalId | None:
        """Return the identifier of the collection of any kind with a name; None for none."""
        with self._metadata.snapshot() as db:
            identifier: int | None = db.execute("SELECT id FROM collection WHERE name = ?", (name,)).get
        return identifier

    def name_of(self, identifier: GlobalId) -> str | None:
        """Return the name of a collection of any kind; None for an unknown identifier."""
        with self._metadata.snapshot() as db:
            return name_of(db, identifier)

    def find(self, name: str) -> Table | None:
        """Return the table with a name; None if there is none, or the table was dropped."""
        with self._metadata.snapshot() as db:
            table = find_table(db, name)
        return table if table and table.upper < END_OF_TIME else None

    def table(self, identifier: GlobalId) -> Table | None:
        """Return a table, dropped or not; None for an unknown identifier."""
        with self._metadata.snapshot() as db:
            return read_table(db, identifier)

    def of_relation(self, relation: int) -> Table | None:
        """Return the table of a relation, dropped or not.

        Return None if the relation is not a table, or was deleted.
        """
        with self._metadata.snapshot() as db:
            name = name_of_relation(db, relation)
            return None if name is None else find_table(db, name)

    def as_stored(self, spec: CollectionSpec) -> CollectionSpec:
        """Return a collection of a catalog as the kind of collection that is stored, which may be a table."""
        with self._metadata.snapshot() as db:
            is_table = find_table(db, spec.name) is not None
        return replace(spec, kind="consolidated") if is_table else spec

    def all(self) -> list[Table]:
        """Return all tables except dropped ones, by name."""
        with self._metadata.snapshot() as db:
            return [table for table in read_tables(db) if table.upper < END_OF_TIME]

    # Creating and dropping

    def create(
        self,
        name: str,
        columns: Sequence[TableColumn],
        *,
        key: Sequence[str] = (),
        at: int | None = None,
        view_of: Collection[str] | None = None,
    ) -> Table:
        """Create a table that belongs to no item of SQL; its contents are known from the present on.

        Args:
            name: a name that is unused, or that belongs to a dropped table, or to a declared collection that was never
                written.
            columns: columns in order.
            key: names of the key columns; the first column if empty.
            at: first `since` and `upper`; the present if None.
            view_of: names of the inputs of a materialized view, whose history the view keeps from `at` on; None for a
                table.

        Raises:
            UsageError: the name is in use.
        """
        names = list(key) or [column.name for column in columns[:1]]
        pointers = [column.pointer for column in columns if column.name in names]
        with self._metadata.transaction(wakes=True) as db:
            frontier = self._timeline.pass_now(db)() if at is None else at
            release_expired(db)
            identifier = take_over(db, name, columns, pointers, frontier)
            if identifier is None:
                free(db, name)
                identifier = insert_table(db, name, columns, pointers, frontier)
            if view_of is not None:
                begin_view(db, identifier, view_of, frontier)
        table = self.table(identifier)
        assert table is not None
        return table

    def forget_unread(self) -> None:
        """Delete the contents of dropped tables without readers; their files become garbage."""
        with self._metadata.transaction() as db:
            release_expired(db)
            forget_unread(db)

    def begin_ended_views(self) -> None:
        """Begin materialized views of constants again that an earlier release has stored like dropped tables."""
        with self._metadata.snapshot() as db:
            if not has_ended_views(db):
                return
        with self._metadata.transaction(wakes=True) as db:
            begin_ended_views(db, self._timeline.pass_now(db)())

    # Writing

    def append(
        self,
        clock: int,
        changes: Mapping[GlobalId, Sequence[Change] | BulkChanges],
        advance: Iterable[GlobalId] = (),
        definitions: Definitions | None = None,
        *,
        is_estimate: bool = False,
        at_once: bool = False,
    ) -> bool:
        """Define tables, change tables at one timestamp, and advance these and other tables; in one commit.

        Args:
            clock: timestamp, at or above the `upper` of all changed tables.
            changes: changes by table; bulk changes are at least `BULK_ROWS`.
            advance: other tables for which this timestamp becomes final.
            definitions: definitions of SQL; the changed tables may be new.
            is_estimate: whether the timestamp is one of `Timeline.estimate`.
            at_once: whether to commit only if this takes about a millisecond, for few rows.

        Returns:
            False if nothing was written, because the commit would not be done at once.

        Raises:
            FrontierError: the timestamp is already final in a changed table, or was estimated wrongly; nothing was
                written.
            UsageError: a name of a table is in use; nothing was written.
            StorageError: a changed table was dropped.
        """
        updates = [_update(table, clock, changed) for table, changed in changes.items()]
        updates += [TableUpdate(table, None, clock + 1) for table in advance if table not in changes]
        if not self._commit(updates, Door.SERVER, definitions, clock, is_estimate=is_estimate, at_once=at_once):
            return False
        self._timeline.note(clock)
        return True

    def commit(self, updates: Sequence[TableUpdate], door: Door = Door.SERVER) -> None:
        """Write to tables and move their `upper`, all or none, in one commit.

        An update without rows and without an expected `upper` is skipped if its table was dropped, or has a later
        `upper`.

        Args:
            updates: at most one per table.
            door: kind of writer.

        Raises:
            FrontierError: the `upper` of a table is not the expected `upper`, a view has another definition, or a
                timestamp is out of bounds.
            OwnedError: a table belongs to another writer.
            StorageError: a table was dropped.
        """
        self._commit(updates, door, None, BEGINNING)

    def _commit(
        self,
        updates: Sequence[TableUpdate],
        door: Door,
        definitions: Definitions | None,
        clock: int,
        *,
        is_estimate: bool = False,
        at_once: bool = False,
    ) -> bool:
        counts = {update.id: len(update.updates) for update in updates}
        if at_once and any(self._appended[identifier] + count >= MANY_ROWS for identifier, count in counts.items()):
            return False
        created = {table.id: table for table in definitions.created} if definitions else {}
        files = {
            update.id: self._file(update, created.get(update.id))
            for update in updates
            if update.bulk is not None or update.count >= MANY_ROWS
        }

        def body(db: Transaction) -> Callable[[], None]:
            if is_estimate:
                require_unassigned(db, clock)
            if definitions is not None:
                define(db, definitions, clock)
            advanced: dict[int, list[GlobalId]] = {}
            for update in updates:
                if not update.is_idle:
                    _write_rows(db, update, files.get(update.id), door)
                advanced.setdefault(update.end, []).append(update.id)
            for end, identifiers in advanced.items():
                advance_uppers(db, identifiers, end)
            ends = [update.end for update in updates if update.end < FOREVER]
            assign_up_to(db, max(ends, default=BEGINNING) - 1)
            return nothing

        if at_once and not self._metadata.commit_at_once(body):
            return False
        if not at_once:
            self._commit_with_files(body, files.values())
        self._flush_many({identifier: count for identifier, count in counts.items() if identifier not in files})
        return True

    def _commit_with_files(self, body: Callable[[Transaction], Callable[[], None]], files: Iterable[TableFile]) -> None:
        """Commit, and remove the files after a failure."""
        try:
            self._metadata.commit(body, wakes=True)
        except BaseException:
            for file in files:
                self._files.remove(file)
            raise

    def _flush_many(self, counts: Mapping[GlobalId, int]) -> None:
        """Write the appended rows of each table with many appended rows to a segment.

        The rows are committed already, so a failure is not an error of the commit; the next flush writes the rows.
        """
        self._appended.update(counts)
        for identifier in counts:
            if self._appended[identifier] >= MANY_ROWS:
                self._appended[identifier] = 0
                with suppress(FlowError):
                    self.flush_table(identifier)

    def _file(self, update: TableUpdate, new: NewTable | None) -> TableFile:
        """Write the segments of an update before its commit, which may create the table."""
        first = 0
        if new is not None:
            with self._metadata.transaction(synced=False) as db:
                stage(db, new)
            table = new.begun_at(END_OF_TIME)
        else:
            with self._metadata.snapshot() as db:
                table = _open(db, update.id)
                first = next_seq(db, update.id, min(update.clocks))
        if update.bulk is not None:
            return self._files.write_bulk(table, update.end - 1, first, update.bulk)
        return self._files.write(table, appended_rows(update.updates, first))

    def flush(self, *, fewest: int = 1) -> int:
        """Write the appended rows of each table with at least `fewest` to segments; return the number of updates."""
        with self._metadata.snapshot() as db:
            identifiers = appended_tables(db, fewest)
        return sum(map(self.flush_table, identifiers))

    def flush_named(self, name: str) -> None:
        """Write the appended rows of the table with a name to a segment; do nothing for another collection."""
        with self._metadata.snapshot() as db:
            identifier = has_appended(db, name)
        if identifier is not None:
            self.flush_table(identifier)

    def flush_table(self, identifier: GlobalId) -> int:
        """Write the appended rows of a table to a segment; return the number of updates.

        The segment is written again if its capability has expired, because the process or the machine was suspended.
        """
        while (count := self._flush_once(identifier)) is None:
            pass
        return count

    def _flush_once(self, identifier: GlobalId) -> int | None:
        """Write the appended rows to a segment; return the number of updates, or None if its capability has expired."""
        with self._metadata.snapshot() as db:
            table = read_table(db, identifier)
            rows = read_appended(db, identifier, BEGINNING, END_OF_TIME)
        if table is None or not rows:
            return 0
        if not self._metadata.can_write:
            what = f"'{table.name}' holds rows that are in no file yet"
            raise StorageError(what, hint="read the table once as a user who may write the data folder")
        file = self._files.write(table, rows)
        end = max(row[0] for row in rows) + 1
        try:
            with self._metadata.transaction() as db:
                can_adopt = is_live(db, file.capability.id)
                # Another process may have written the same rows, or appended updates at the last timestamp that was
                # read.
                is_done = can_adopt and len(read_appended(db, identifier, BEGINNING, end)) == len(rows)
                if is_done:
                    delete_appended(db, identifier, end)
                    adopt(db, identifier, file)
        except BaseException:
            self._files.remove(file)
            raise
        if not is_done:
            self._files.remove(file)
        if not can_adopt:
            return None
        return len(rows) if is_done else 0

    # Reading

    def read(self, identifier: GlobalId, begin: int, end: int, within: Sequence[Sequence[str]] = ()) -> TableRead:
        """Return the updates of a table with timestamps in `[begin, end)`; the caller holds a read capability.

        Args:
            identifier: identifier of the table.
            begin: first timestamp.
            end: exclusive upper bound of the timestamps.
            within: filter on updates that are in no segment: their text contains one text of each of these lists.

        Raises:
            StorageError: the table does not exist.
        """
        with self._metadata.snapshot() as db:
            known = read_between(db, identifier, begin, end, within)
        if known is None:
            raise _unknown(identifier)
        return known

    def updates_of(self, identifiers: Iterable[GlobalId]) -> int:
        """Return the number of stored updates of some tables."""
        with self._metadata.snapshot() as db:
            return sum(count_updates(db, identifier) for identifier in identifiers)

    def read_on(self, identifier: GlobalId, begin: int) -> TableRead | None:
        """Return the final updates of a table from a timestamp on; the caller holds a read capability.

        Args:
            identifier: identifier of the table.
            begin: first timestamp; all earlier updates were read.

        Returns:
            The updates before the first error of a view; None if no later timestamp is final.
        """
        with self._metadata.snapshot() as db:
            return read_on(db, identifier, begin)

    def errors(self, identifier: GlobalId) -> dict[tuple[str, str], int]:
        """Return the errors of a view at its last known time: the first timestamp of each, by SQLSTATE and message."""
        with self._metadata.snapshot() as db:
            return standing_errors(db, identifier)

    def failures(self) -> dict[GlobalId, ViewError]:
        """Return an error of each view that has errors at its last known time."""
        with self._metadata.snapshot() as db:
            return failed_collections(db)

    def first_error(self, name: str, begin: int, end: int) -> tuple[int, ViewError] | None:
        """Return the first timestamp in `[begin, end)` at which a view has an error, and the error; None for none."""
        with self._metadata.snapshot() as db:
            return first_error(db, name, begin, end)

    def check_at(self, name: str, time: int) -> None:
        """Raise an error if a view has no rows at a time; the caller holds a read capability.

        Raises:
            ViewError: the collection is a materialized view with an error at that time.
        """
        failure = self.first_error(name, time, time + 1)
        if failure is not None:
            raise failure[1]


def _open(db: Transaction, identifier: GlobalId) -> Table:
    """Return a table that was not dropped.

    Raises:
        StorageError: the table does not exist, or was dropped.
    """
    table = read_table(db, identifier)
    if table is None:
        raise _unknown(identifier)
    if table.upper >= END_OF_TIME:
        raise StorageError(f"table '{intended_name(table.name)}' was dropped")
    return table


def _unknown(identifier: GlobalId) -> StorageError:
    return StorageError(f"there is no table {identifier}")


def write_update(db: Transaction, update: TableUpdate, file: TableFile | None, door: Door = Door.SERVER) -> None:
    """Write to a table, in a write transaction.

    Args:
        db: the write transaction.
        update: changes of the table.
        file: the segments of the update, if they are written already; None otherwise.
        door: kind of writer.

    Raises:
        OwnedError: the table belongs to another writer.
        FrontierError: the `upper` of the table is not the expected timestamp, or a timestamp is out of bounds.
        StorageError: the table was dropped.
    """
    if update.is_idle:
        name = name_of(db, update.id)
        if name is not None:
            advance_upper(db, name, update.end)
        return
    _write_rows(db, update, file, door)
    advance_uppers(db, [update.id], update.end)


def _write_rows(db: Transaction, update: TableUpdate, file: TableFile | None, door: Door) -> None:
    """Write to a table like `write_update`, without moving its `upper`."""
    name = _require_fit(db, update)
    require_open(db, name, door)
    if update.definition is not None:
        require_definition(db, update.id, update.definition)
    if file is None:
        append(db, update.id, update.updates)
    else:
        adopt(db, update.id, file)
    write_errors(db, update.id, update.errors)
    if update.since is not None:
        advance_since(db, name, update.since)


def _require_fit(db: Transaction, update: TableUpdate) -> str:
    """Return the name of the table of an update; raise an error if the table cannot have the update."""
    clocks = update.clocks
    name = name_of(db, update.id)
    most = min([*(clocks or [update.end]), END_OF_TIME - 1] + ([] if update.begin is None else [update.begin]))
    fits = "SELECT 1 FROM collection WHERE id = ? AND columns IS NOT NULL AND upper >= ? AND upper <= ?"
    if (
        name is not None
        and max(clocks, default=BEGINNING) < update.end
        and db.expect(fits, (update.id, update.begin or BEGINNING, most))
    ):
        return name
    table = _open(db, update.id)
    first, last = min(clocks, default=table.upper), max(clocks, default=table.upper - 1)
    is_expected = update.begin is None or update.begin == table.upper
    if not is_expected or first < table.upper or last >= update.end:
        raise FrontierError(
            f"updates from {format_rfc3339(first)} to {format_rfc3339(last)} do not fit table '{table.name}', which is"
            f" final before {format_rfc3339(table.upper)}"
        )
    return table.name
