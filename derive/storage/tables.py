"""Tables of a data folder: multisets of rows that are written a few at a time, and often.

A commit is one transaction of the metadata, whatever it writes to how many tables: so it waits for the disk once. What
it writes becomes segments later, many commits at once. Readers see both, and never the border between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import apsw

from derive.document.clock import format_rfc3339
from derive.errors import FrontierError, StorageError, UsageError, ViewError
from derive.protocol.specs import CollectionSpec
from derive.protocol.sql_names import aside_name, intended_name
from derive.storage.metadata.capability import drop_ended
from derive.storage.metadata.collection import advance_since, advance_upper
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.failures import first_error, standing_errors, write_errors
from derive.storage.metadata.owner import Door, Owner, owner_of_documents, require_open
from derive.storage.metadata.relations import name_of_relation, new_identifier
from derive.storage.metadata.table_read import TableRead, read_between, read_on
from derive.storage.metadata.tables import (
    alter,
    append,
    appended_tables,
    begin_view,
    delete_appended,
    end_writing,
    find_table,
    forget_unread,
    insert_table,
    make_way,
    name_of,
    next_seq,
    read_appended,
    read_table,
    read_tables,
    rename,
    take_over,
)
from derive.storage.metadata.timeline import assign_up_to
from derive.storage.table import GlobalId, RowUpdate, Table, TableColumn, TableUpdate
from derive.storage.table_files import TableFile, TableFiles, adopt, appended_rows
from derive.storage.timeline import Timeline
from derive.time.frontier import BEGINNING, END_OF_TIME

MANY_ROWS = 20_000
"""So many updates of one table are written to a segment of their own, or made one of those that were appended."""

Change: TypeAlias = tuple[str, bytes, int]
"""A row's text, its packed key, and how often it is added; as in `RowUpdate`."""


class Tables:
    """The tables of one data folder.

    Args:
        root: the data folder.
        metadata: of it.
        timeline: of it.
    """

    def __init__(self, root: Path, metadata: Metadata, timeline: Timeline) -> None:
        self._metadata = metadata
        self._files = TableFiles(root, metadata)
        self._appended: Counter[GlobalId] = Counter()
        self._timeline = timeline

    # What there is

    def new_id(self) -> GlobalId:
        """A number that has never identified anything, for what is not stored, such as a view."""
        with self._metadata.transaction() as db:
            return new_identifier(db)

    def id_of(self, name: str) -> GlobalId | None:
        """What identifies the collection that is bound to a name, of whatever kind; None if none is."""
        with self._metadata.snapshot() as db:
            identifier: int | None = db.execute("SELECT id FROM collection WHERE name = ?", (name,)).get
        return identifier

    def name_of(self, identifier: GlobalId) -> str | None:
        """The name to which a collection of whatever kind is bound; None if nothing is stored under the identifier."""
        with self._metadata.snapshot() as db:
            return name_of(db, identifier)

    def find(self, name: str) -> Table | None:
        """The table that is bound to a name; None if there is none, or if it was dropped."""
        with self._metadata.snapshot() as db:
            table = find_table(db, name)
        return table if table and table.upper < END_OF_TIME else None

    def table(self, identifier: GlobalId) -> Table | None:
        """What is known of a table; None if there never was one of this identifier."""
        with self._metadata.snapshot() as db:
            return read_table(db, identifier)

    def of_relation(self, relation: int) -> Table | None:
        """The table of a relation, also one that was dropped; None if it is none, or nothing of it is left."""
        with self._metadata.snapshot() as db:
            name = name_of_relation(db, relation)
            return None if name is None else find_table(db, name)

    def as_stored(self, spec: CollectionSpec) -> CollectionSpec:
        """A collection of a catalog as what is stored under its name, which may be a table."""
        with self._metadata.snapshot() as db:
            is_table = find_table(db, spec.name) is not None
        return replace(spec, kind="consolidated") if is_table else spec

    def all(self) -> list[Table]:
        """All tables but those that were dropped, by name."""
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
        aside: bool = False,
    ) -> Table:
        """Create a table, whose contents are known from the present on.

        Args:
            name: to which nothing is bound, or a table that was dropped, or a collection that a catalog has declared
                and that nobody has written.
            columns: in their order.
            key: names of the columns of its key; the first column if there is none.
            at: its first `since` and `upper`; the present if it is None.
            view_of: names of what a materialized view is made of, which it holds from there on; None if it is none.
            aside: where another table has the name, this one is bound to one of its own until `arrange` gives it that.

        Raises:
            UsageError: something is stored under the name.
        """
        names = list(key) or [column.name for column in columns[:1]]
        pointers = [column.pointer for column in columns if column.name in names]
        with self._metadata.transaction(calls=True) as db:
            frontier = self._timeline.pass_now(db) if at is None else at
            drop_ended(db)
            identifier = take_over(db, name, columns, pointers, frontier)
            if identifier is None and aside and find_table(db, name) and not make_way(db, name):
                identifier = insert_table(db, aside_name(name, 0), columns, pointers, frontier)
                rename(db, aside_name(name, 0), aside_name(name, identifier))
            elif identifier is None:
                _free(db, name)
                identifier = insert_table(db, name, columns, pointers, frontier)
            if view_of is not None:
                begin_view(db, identifier, view_of, frontier)
        table = self.table(identifier)
        assert table is not None
        return table

    def rename(self, identifier: GlobalId, name: str) -> None:
        """Bind a table to another name, as `create` does.

        Raises:
            UsageError: something is stored under the name.
            StorageError: the table was dropped.
        """
        with self._metadata.transaction(calls=True) as db:
            before = _open(db, identifier).name
            if before != name:
                drop_ended(db)
                _free(db, name)
                rename(db, before, name)

    def arrange(self, names: Mapping[GlobalId, str], dropped: Collection[GlobalId] = ()) -> list[GlobalId]:
        """Drop tables, and bind others to their names, which may change places in any way; all of it in one commit.

        Args:
            names: of tables; those that were dropped are left alone.
            dropped: tables that are no more, as `drop`.

        Returns:
            The tables whose names something other than a table has: these are bound to names of their own.
        """
        with self._metadata.transaction(calls=True) as db:
            drop_ended(db)
            for identifier in dropped:
                if _is_open(db, identifier):
                    end_writing(db, identifier)
            forget_unread(db)
            before = {id_: name_of(db, id_) for id_ in names if _is_open(db, id_)}
            moved = {id_: old for id_, old in before.items() if old is not None and old != names[id_]}
            for identifier, name in moved.items():  # so that each finds its name free
                if not name.startswith("@"):
                    rename(db, name, aside_name(name, identifier))
            left = []
            for identifier in moved:
                if make_way(db, names[identifier]):
                    rename(db, str(name_of(db, identifier)), names[identifier])
                else:
                    left.append(identifier)
        return left

    def alter(self, identifier: GlobalId, columns: Sequence[TableColumn]) -> None:
        """Give a table other columns: a row that lacks one has NULL there, and one that has more is read without it.

        Raises:
            StorageError: the table was dropped.
        """
        with self._metadata.transaction(calls=True) as db:
            _open(db, identifier)
            alter(db, identifier, columns)

    def is_open(self, name: str) -> bool:
        """Whether a table may be bound to a name, if no other table is bound to it."""
        with self._metadata.snapshot() as db:
            return find_table(db, name) is not None or owner_of_documents(db, name) is Owner.NOBODY

    def drop(self, *identifiers: GlobalId) -> None:
        """Drop tables: nobody can write them any more, and once all who read them now are done, nobody can read them.

        Raises:
            StorageError: one was dropped before.
        """
        with self._metadata.transaction(calls=True) as db:
            for identifier in identifiers:
                _open(db, identifier)
                end_writing(db, identifier)
            drop_ended(db)
            forget_unread(db)

    def forget_unread(self) -> None:
        """Forget what dropped tables held that nobody reads any more; their files are garbage from here on."""
        with self._metadata.transaction() as db:
            drop_ended(db)
            forget_unread(db)

    # Writing

    def append(
        self, clock: int, changes: Mapping[GlobalId, Sequence[Change]], advance: Iterable[GlobalId] = ()
    ) -> None:
        """Change tables at one time, and let time pass for them and for others; all in one commit.

        Args:
            clock: when; not below the `upper` of any of the tables.
            changes: of each table.
            advance: tables of which this time is final as well, without a change.

        Raises:
            FrontierError: that time is final in one of the changed tables already; nothing was written.
            StorageError: one of the changed tables was dropped.
        """
        updates = [
            TableUpdate(table, None, clock + 1, tuple(RowUpdate(clock, *change) for change in changed))
            for table, changed in changes.items()
        ]
        updates += [TableUpdate(table, None, clock + 1) for table in advance if table not in changes]
        self.commit(updates)

    def commit(self, updates: Sequence[TableUpdate], door: Door = Door.SERVER) -> None:
        """Write to tables, and move their `upper`; all of it or nothing, in one commit.

        Those without any rows to write, whose `upper` may be anywhere, are left alone where they were dropped or are
        later already.

        Args:
            updates: at most one of each table.
            door: through which they are written.

        Raises:
            FrontierError: the `upper` of a table is not the expected one, or a clock is out of bounds.
            OwnedError: a table belongs to another writer.
            StorageError: a table was dropped.
        """
        files = {update.id: self._file(update) for update in updates if len(update.updates) >= MANY_ROWS}
        try:
            with self._metadata.transaction(calls=True) as db:
                for update in updates:
                    write_update(db, update, files.get(update.id), door)
                ends = [update.end for update in updates if update.end < END_OF_TIME]
                assign_up_to(db, max(ends, default=BEGINNING) - 1)
        except BaseException:
            for file in files.values():
                self._files.remove(file)
            raise
        self._flush_many({update.id: len(update.updates) for update in updates if update.id not in files})

    def _flush_many(self, counts: Mapping[GlobalId, int]) -> None:
        """Make segments of what was appended to tables, of those to which that were many rows by now."""
        self._appended.update(counts)
        for identifier in counts:
            if self._appended[identifier] >= MANY_ROWS:
                self._appended[identifier] = 0
                self.flush_table(identifier)

    def _file(self, update: TableUpdate) -> TableFile:
        with self._metadata.snapshot() as db:
            table = _open(db, update.id)
            first = next_seq(db, update.id, min(row.clock for row in update.updates))
        return self._files.write(table, appended_rows(update.updates, first))

    def flush(self, *, fewest: int = 1) -> int:
        """Make segments of what was appended to tables, of those with at least so many updates; returns how many."""
        with self._metadata.snapshot() as db:
            identifiers = appended_tables(db, fewest)
        return sum(map(self.flush_table, identifiers))

    def flush_table(self, identifier: GlobalId) -> int:
        """Make a segment of what was appended to a table; returns of how many updates."""
        with self._metadata.snapshot() as db:
            table = read_table(db, identifier)
            rows = read_appended(db, identifier, BEGINNING, END_OF_TIME)
        if table is None or not rows:
            return 0
        if not self._metadata.can_write:
            what = f"'{table.name}' holds rows that are in no file yet"
            raise StorageError(what, hint="read it once as someone who may write the data folder")
        file = self._files.write(table, rows)
        end = max(row[0] for row in rows) + 1
        try:
            with self._metadata.transaction() as db:
                # Another may have done the same, or updates may have come at the last time that was read.
                is_done = len(read_appended(db, identifier, BEGINNING, end)) == len(rows)
                if is_done:
                    delete_appended(db, identifier, end)
                    adopt(db, identifier, file)
        except BaseException:
            self._files.remove(file)
            raise
        if not is_done:
            self._files.remove(file)
        return len(rows) if is_done else 0

    # Reading

    def read(self, identifier: GlobalId, begin: int, end: int, within: Sequence[Sequence[str]] = ()) -> TableRead:
        """Updates of a table with clocks in `[begin, end)`, for whoever has the right to read them.

        Args:
            identifier: of the table.
            begin: the first clock.
            end: the clock behind the last one.
            within: of those that are in no segment, only such are wanted whose text has one of each of these in it.

        Raises:
            StorageError: there is no such table.
        """
        with self._metadata.snapshot() as db:
            known = read_between(db, identifier, begin, end, within)
        if known is None:
            raise _unknown(identifier)
        return known

    def read_on(self, identifier: GlobalId, begin: int) -> TableRead | None:
        """Updates of a table from a clock on, as far as they are final, for whoever has the right to read them.

        Args:
            identifier: of the table.
            begin: the first clock; everything before it was read.

        Returns:
            Those before the first error in the place of rows; None if nothing is final that was not before.
        """
        with self._metadata.snapshot() as db:
            return read_on(db, identifier, begin)

    def errors(self, identifier: GlobalId) -> dict[tuple[str, str], int]:
        """Errors in the place of rows at the last time that is known, by SQLSTATE and message, and since when."""
        with self._metadata.snapshot() as db:
            return standing_errors(db, identifier)

    def first_error(self, name: str, begin: int, end: int) -> tuple[int, ViewError] | None:
        """The first time in `[begin, end)` at which a collection has an error in the place of rows, and the error."""
        with self._metadata.snapshot() as db:
            return first_error(db, name, begin, end)

    def check_at(self, name: str, time: int) -> None:
        """Check that a collection has rows at a time, for whoever has the right to read it then.

        Raises:
            ViewError: it is a materialized view, and has an error in their place.
        """
        failure = self.first_error(name, time, time + 1)
        if failure is not None:
            raise failure[1]


def _free(db: apsw.Connection, name: str) -> None:
    """Make sure that nothing is bound to a name, as `make_way` does."""
    if not make_way(db, name):
        what = "collection" if find_table(db, name) is None else "table"
        raise UsageError(f"{what} '{name}' is there already", hint="use another name")


def _is_open(db: apsw.Connection, identifier: GlobalId) -> bool:
    """Whether there is a table, which was not dropped."""
    table = read_table(db, identifier)
    return table is not None and table.upper < END_OF_TIME


def _open(db: apsw.Connection, identifier: GlobalId) -> Table:
    """A table that was not dropped."""
    table = read_table(db, identifier)
    if table is None:
        raise _unknown(identifier)
    if table.upper >= END_OF_TIME:
        raise StorageError(f"table '{intended_name(table.name)}' was dropped")
    return table


def _unknown(identifier: GlobalId) -> StorageError:
    return StorageError(f"there is no table {identifier}")


def write_update(db: apsw.Connection, update: TableUpdate, file: TableFile | None, door: Door = Door.SERVER) -> None:
    """Write to a table, in a write transaction.

    Args:
        db: in it.
        update: of the table.
        file: what it writes, if that is written already.
        door: through which it is written.

    Raises:
        OwnedError: the table belongs to another writer.
        FrontierError: the `upper` of the table is not the expected one, or a clock is out of bounds.
        StorageError: the table was dropped.
    """
    if not update.updates and not update.errors and update.begin is None:
        name = name_of(db, update.id)
        if name is not None:
            advance_upper(db, name, update.end)
        return
    table = _open(db, update.id)
    require_open(db, table.name, door)
    clocks = [change.clock for changes in (update.updates, update.errors) for change in changes]
    first, last = min(clocks, default=table.upper), max(clocks, default=table.upper - 1)
    is_expected = update.begin is None or update.begin == table.upper
    if not is_expected or first < table.upper or last >= update.end:
        raise FrontierError(
            f"updates from {format_rfc3339(first)} to {format_rfc3339(last)} do not fit table '{table.name}', which is"
            f" final before {format_rfc3339(table.upper)}"
        )
    if file is None:
        append(db, update.id, update.updates)
    else:
        adopt(db, update.id, file)
    write_errors(db, update.id, update.errors)
    if update.since is not None:
        advance_since(db, table.name, update.since)
    advance_upper(db, table.name, update.end)
