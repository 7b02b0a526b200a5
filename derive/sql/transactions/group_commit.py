"""Group commit: concurrent writes are written together, with one sync of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from time import perf_counter
from typing import Protocol, TypeAlias

from derive.algebra.bounds import Bounds
from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.instruments import Histogram
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation
from derive.sql.transactions.key_index import KeyChanges, KeyIndexes
from derive.sql.transactions.resident_tables import ResidentTables, TableQuery
from derive.sql.transactions.timeline import Check, Timeline, time_text
from derive.sql.transactions.writes import Write, tables_of
from derive.storage.metadata.definitions import Definitions

_MOST_TRIES = 5
"""Number of attempts, at different times, to commit writes that depend on collections of other writers."""


def nothing() -> None:
    """Do nothing. This is the default callback after a commit."""


Histories: TypeAlias = Mapping[GlobalId, tuple[int, int]]
"""Relations of collections and tables, each with the time from which its rows have the present columns."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The reads that writes depend on.

    Attributes:
        ids: relations that were read.
        time: time of the reads.
        is_strict: whether later writes of other processes also conflict.
        histories: histories of these relations at this time.
    """

    ids: frozenset[GlobalId]
    time: int
    is_strict: bool = True
    histories: Histories = field(default_factory=dict, hash=False)


Referring: TypeAlias = Collection[tuple[NamedRelation, Constraint]]
"""Foreign keys that refer to a table, each with its own table."""

Shape: TypeAlias = tuple[
    str, str, tuple[NamedColumn, ...], tuple[Constraint, ...], frozenset[tuple[GlobalId, str]] | None
]
"""Schema, name, columns and constraints of a table, and foreign keys that refer to it, which rows were checked for.

The foreign keys are identifiers of their tables, and their names; None if no row was deleted, which they would refuse.
"""


def shape_of(table: NamedRelation, referring: Referring | None = None) -> Shape:
    """Return the shape of a table.

    Args:
        table: the table.
        referring: the foreign keys that refer to it; None if no row is deleted.
    """
    keys = None if referring is None else frozenset((other.id, key.name) for other, key in referring)
    return table.schema, table.name, table.columns, table.constraints, keys


def is_same_shape(present: Shape, expected: Shape) -> bool:
    """Return whether rows that were checked for one shape need no check for the present one; comments do not matter."""
    is_same = present[:4] == expected[:4] or _uncommented(present) == _uncommented(expected)
    return is_same and (expected[4] is None or (present[4] or frozenset()) <= expected[4])


def _uncommented(shape: Shape) -> tuple[object, ...]:
    schema, name, columns, constraints, _ = shape
    return schema, name, tuple(replace(column, comment=None) for column in columns), constraints


NO_SHAPES: Mapping[GlobalId, Shape] = {}


class Commit(Protocol):
    """A function that commits writes, and returns their time."""

    def __call__(
        self,
        writes: Sequence[Write],
        basis: Basis | None = None,
        then: Callable[[], None] = nothing,
        shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
        definitions: Definitions | None = None,
    ) -> Awaitable[int]:
        """Commit writes and definitions, and then call a function."""


class OtherWriters(Protocol):
    """Information about other writers: processes that write without group commit."""

    def written_by_others(self, basis: Basis) -> frozenset[GlobalId]:
        """Return the relations of a basis that other processes may have written after the reads."""

    async def is_unchanged(
        self, ids: Collection[GlobalId], after: int, before: int, writing: Collection[GlobalId]
    ) -> bool:
        """Return whether collections have no change after one time and before another; False if unknown.

        Args:
            ids: the collections.
            after: the first time.
            before: the second time.
            writing: tables to be written at the second time.
        """

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """Return the histories of collections and tables, without dropped ones."""


class NoOtherWriters:
    """The answers of `OtherWriters` if there are no other writers."""

    def written_by_others(self, basis: Basis) -> frozenset[GlobalId]:
        """Return no relations."""
        return frozenset()

    async def is_unchanged(
        self, ids: Collection[GlobalId], after: int, before: int, writing: Collection[GlobalId]
    ) -> bool:
        """Return True."""
        return True

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """Return no histories."""
        return {}


@dataclass(slots=True)
class _PendingCommit:
    writes: Sequence[Write]
    basis: Basis | None
    then: Callable[[], None]
    shapes: Mapping[GlobalId, Shape]
    definitions: Definitions | None
    done: asyncio.Future[int]


NO_KEYS = KeyIndexes(lambda _: None, lambda _: (0, ()))
"""The indexes of tables without keys."""
NO_RESIDENTS = ResidentTables(lambda _: None, lambda *_: None, 0)
"""No copies of tables."""


class GroupCommit:
    """The commits of all sessions.

    Args:
        timeline: timeline that assigns the times.
        dropped: returns the name of a dropped table; None if the table exists.
        others: other writers.
        altered: returns the name of a table whose shape differs from the given shape; None if no shape differs.
        keys: indexes of the keys of all tables.
        residents: copies of small tables.

    Attributes:
        residents: copies of small tables.
        keys: indexes of the keys of all tables.
        seconds: times for which transactions have waited for their commits.
    """

    def __init__(
        self,
        timeline: Timeline,
        dropped: Callable[[GlobalId], str | None] = lambda _: None,
        others: OtherWriters | None = None,
        altered: Callable[[GlobalId, Shape], str | None] = lambda *_: None,
        keys: KeyIndexes = NO_KEYS,
        residents: ResidentTables = NO_RESIDENTS,
    ) -> None:
        self._altered, self.keys, self.residents = altered, keys, residents
        self._timeline, self._dropped, self._others = timeline, dropped, others or NoOtherWriters()
        self._writers = asyncio.Lock()  # held by the writer, from the reads of its basis on
        self._waiting: list[_PendingCommit] = []
        self._task: asyncio.Task[None] | None = None
        self._written: dict[GlobalId, int] = {}
        self._applying: set[GlobalId] = set()  # tables with durable writes that are not in the index yet
        self._in_flight: frozenset[GlobalId] = frozenset()  # tables whose writes may be durable, and are not noted
        self._before = 0  # a time before the writes in flight
        self._publishing: asyncio.Event | None = None  # until definitions that may be durable are the current names
        self.seconds = Histogram()

    async def commit(
        self,
        writes: Sequence[Write],
        basis: Basis | None = None,
        then: Callable[[], None] = nothing,
        shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
        definitions: Definitions | None = None,
    ) -> int:
        """Commit writes, and return their time.

        A cancelled call has committed all writes, or none.

        Args:
            writes: the writes, applied atomically.
            basis: the reads that the writes depend on; None without any.
            then: a function called after the commit, before any client is notified.
            shapes: expected shapes of the written tables; another shape is an error.
            definitions: definitions of the same commit; the written tables may be new.

        Raises:
            SqlError: a relation of the basis was written.
            UsageError: a name of a table is in use.
            StorageError: Storage cannot write; nothing was written.
        """
        done = asyncio.get_running_loop().create_future()
        waiting = _PendingCommit(writes, basis, then, shapes, definitions, done)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
            self._task.add_done_callback(self._give_up)
        return await self._settled(waiting)

    async def _settled(self, waiting: _PendingCommit) -> int:
        begun, is_cancelled = perf_counter(), False
        while not waiting.done.done():
            try:
                await asyncio.wait([waiting.done])
            except asyncio.CancelledError:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
                is_cancelled = True
        if is_cancelled and waiting.done.exception():
            raise asyncio.CancelledError from waiting.done.exception()
        self.seconds.observe(perf_counter() - begun)
        return waiting.done.result()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Commit]:
        """Exclude all other writers of tables, and yield a function that commits the block's writes."""
        async with self._writers:

            async def write(
                writes: Sequence[Write],
                basis: Basis | None = None,
                then: Callable[[], None] = nothing,
                shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
                definitions: Definitions | None = None,
            ) -> int:
                done = asyncio.get_running_loop().create_future()
                waiting = _PendingCommit(writes, basis, then, shapes, definitions, done)
                writing = asyncio.create_task(self._write([waiting]))
                writing.add_done_callback(lambda _: _give_up([waiting]))
                try:
                    return await self._settled(waiting)
                finally:
                    await writing

            yield write

    async def _drain(self) -> None:
        while self._waiting:
            async with self._writers:
                group, self._waiting = self._waiting, []
                alone = [[waiting] for waiting in group if waiting.definitions or self._to_check(waiting)]
                together = [waiting for waiting in group if [waiting] not in alone]
                try:
                    for part in (together, *alone):
                        await self._write(part)
                except Exception as error:  # nothing of this part and of later parts was written
                    for waiting in group:
                        if not waiting.done.done():
                            waiting.done.set_exception(error)
                except BaseException:
                    _give_up(group)
                    raise

    def _to_check(self, waiting: _PendingCommit) -> frozenset[GlobalId]:
        return self._others.written_by_others(waiting.basis) if waiting.basis else frozenset()

    def _give_up(self, drained: asyncio.Task[None]) -> None:
        if drained.cancelled():
            group, self._waiting = self._waiting, []
            _give_up(group)

    async def load_keys(self, ids: Iterable[GlobalId]) -> None:
        """Build the missing indexes of the keys of some tables."""
        tables = self.keys.keyed(ids)
        if not self.keys.are_loaded(tables):
            async with self._writers:
                await self.load_keys_alone(tables)

    async def load_keys_alone(self, tables: Iterable[NamedRelation]) -> None:
        """Build the missing indexes of the keys of some tables; the caller excludes other writers."""
        await self.keys.load(tables, self._timeline.latest)

    async def rows_within(self, table: GlobalId, bounds: Bounds, time: int) -> list[Row] | None:
        """Return the rows of a table within bounds at a time; None if they are not known without a read of Storage."""
        if not self._is_applied(table, time):
            return None
        rows = await self.keys.rows_within(table, bounds, time)
        return rows if self._is_applied(table, time) else None

    async def rows_of_keys(
        self, table: NamedRelation, number: int, keys: Collection[bytes], time: int
    ) -> list[Row] | None:
        """Return the rows of values of a key at a time; None if they are not known without a read of Storage."""
        if not self._is_applied(table.id, time):
            return None
        rows = await self.keys.rows_of_keys(table, number, keys, time)
        return rows if self._is_applied(table.id, time) else None

    def _is_applied(self, table: GlobalId, time: int) -> bool:
        """Return whether the indexes and the copy of a table have its rows at a time."""
        # The time of a write in flight may be the latest time already, because a subscription has reported the write.
        if table in self._applying or (table in self._in_flight and time > self._before):
            return False
        return self._written.get(table, 0) <= time

    async def rows_of_tables(
        self,
        asked: TableQuery,
        time: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
        is_over: Callable[[], bool],
    ) -> list[Row] | None:
        """Return the rows of a query at a time from copies of its tables; None if Storage must be read.

        Args:
            asked: the query.
            time: the time.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
            is_over: returns whether the statement is cancelled; any thread calls it.
        """
        tables, query = asked.tables or {}, asked.lowered
        if query is None or not all(self._is_applied(identifier, time) for identifier in tables):
            return None
        if not query.is_slow:
            is_small = await self.residents.load(asked, time, self._is_applied)
            rows = self.rows_of_tables_at_once(asked, time, arguments, most_bytes) if is_small else None
            if rows is not None or (is_small and not query.is_slow and self.residents.are_loaded(asked)):
                return rows
        if len(tables) != 1:
            return None
        table = next(iter(tables.items()))
        return await self.residents.large.rows(query, table, time, arguments, most_bytes, self._is_applied, is_over)

    def rows_of_tables_at_once(
        self, asked: TableQuery, time: int, arguments: Sequence[Datum], most_bytes: int | None
    ) -> list[Row] | None:
        """Return the rows like `rows_of_tables` without awaiting; None also if a table is not copied yet."""
        if not all(self._is_applied(identifier, time) for identifier in asked.tables or ()):
            return None
        return self.residents.rows(asked, time, arguments, most_bytes)

    async def _key_changes(self, waiting: _PendingCommit) -> dict[GlobalId, KeyChanges]:
        """Return the changes of keys by a commit, for tables with keys that the commit does not define."""
        definitions = waiting.definitions
        defined = {table.id for table in definitions.created} | definitions.altered.keys() if definitions else set()
        tables = self.keys.keyed(tables_of(waiting.writes) - defined)
        await self.load_keys_alone(tables)
        changes = {table.id: KeyChanges(table) for table in tables}
        for change in changes.values():
            change.add_writes(waiting.writes)
        return changes

    async def _has_unique_keys(self, waiting: _PendingCommit, before: dict[GlobalId, KeyChanges]) -> bool:
        """Return whether all keys stay unique, and add the changes to `before`; otherwise fail the commit."""
        try:
            changes = await self._key_changes(waiting)
            for identifier, change in changes.items():
                violation = await self.keys.violation(change, before.get(identifier))
                if violation is not None:
                    raise violation
        except Exception as error:
            waiting.done.set_exception(error)
            return False
        for identifier, change in changes.items():
            if identifier in before:
                before[identifier].include(change)
            else:
                before[identifier] = change
        return True

    async def _accepted(
        self, group: Sequence[_PendingCommit], keys: dict[GlobalId, KeyChanges]
    ) -> list[_PendingCommit]:
        """Return the writes of a group that can commit one after the other; fail the other writes.

        Args:
            group: the writes.
            keys: gets the changes of keys by the returned writes, by table.
        """
        accepted: list[_PendingCommit] = []
        known: dict[GlobalId, str | None] = {}
        before: set[GlobalId] = set()
        for waiting in group:
            if waiting.basis and self._others.histories(waiting.basis.histories) != waiting.basis.histories:
                waiting.done.set_exception(_replaced())
                continue
            if waiting.basis and self._is_outdated(waiting.basis, before):
                waiting.done.set_exception(
                    _outdated("another transaction has written a relation that this one has read", waiting.basis)
                )
                continue
            tables = tables_of(waiting.writes)
            created = {table.id for table in waiting.definitions.created} if waiting.definitions else set()
            known.update((table, self._dropped(table)) for table in tables - created - known.keys())
            if dropped := sorted(name for table in tables - created if (name := known[table])):
                message = f"table {', '.join(dropped)} was dropped before this was committed"
                waiting.done.set_exception(SqlError("42P01", message))
                continue
            if altered := self._altered_of(waiting.shapes):
                waiting.done.set_exception(altered)
                continue
            if not await self._has_unique_keys(waiting, keys):
                continue
            accepted.append(waiting)
            before.update(tables)
        return accepted

    def _altered_of(self, shapes: Mapping[GlobalId, Shape]) -> SqlError | None:
        """Return the error of writes for some shapes if their tables have other ones; None if they have these."""
        altered = sorted(filter(None, starmap(self._altered, shapes.items())))
        if not altered:
            return None
        message = f"could not serialize access: table {', '.join(altered)} was altered or renamed"
        return SqlError("40001", message, hint="Run the transaction again.")

    def check_shapes(self, shapes: Mapping[GlobalId, Shape]) -> None:
        """Check that tables have kept their shapes.

        Raises:
            SqlError: a table was altered or renamed (40001), or dropped (40001), after its rows were checked.
        """
        if altered := self._altered_of(shapes):
            raise altered
        if dropped := sorted(shape[1] for table, shape in shapes.items() if self._dropped(table)):
            message = f"could not serialize access: table {', '.join(dropped)} was dropped"
            raise SqlError("40001", message, hint="Run the transaction again.")

    @property
    def is_publishing(self) -> bool:
        """Return whether a commit with definitions may be durable, while the names are those from before."""
        return self._publishing is not None

    async def published(self) -> None:
        """Wait until the names include the definitions of all commits at times that were assigned so far."""
        while self._publishing is not None:
            await self._publishing.wait()

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """Return the histories of collections and tables, without dropped ones."""
        return self._others.histories(ids)

    def check_histories(self, histories: Histories) -> None:
        """Check that relations have kept their histories.

        Raises:
            SqlError: a collection was reset, or a table was dropped or altered, after the read (40001).
        """
        if histories and self._others.histories(histories) != histories:
            raise _replaced()

    def check_unwritten(self, basis: Basis) -> None:
        """Check that the tables of a basis were not written after its reads.

        Raises:
            SqlError: a table was written (40001).
        """
        if self._is_outdated(basis, ()):
            raise _outdated("another transaction has written a relation that this one has read", basis)

    def _is_outdated(self, basis: Basis, before: Collection[GlobalId]) -> bool:
        return any(id_ in before or self._written.get(id_, 0) > basis.time for id_ in basis.ids)

    def _check_of(self, basis: Basis, ids: Collection[GlobalId], writing: Collection[GlobalId]) -> Check:
        tries = 0

        async def check(time: int) -> None:
            nonlocal tries
            tries += 1
            if tries > _MOST_TRIES or not await self._others.is_unchanged(ids, basis.time, time, writing):
                raise _outdated(
                    ("other processes have written a relation that this transaction has read, or are about to"), basis
                )
            self.check_histories(basis.histories)

        return check

    async def _write(self, pending: Sequence[_PendingCommit]) -> None:
        """Write a group at one time, and notify the waiting sessions."""
        keys: dict[GlobalId, KeyChanges] = {}
        group = await self._accepted(pending, keys)
        if not group:
            return
        if group[0].definitions is None:
            await self._write_accepted(group, keys)
            return
        published = self._publishing = asyncio.Event()
        try:
            await self._write_accepted(group, keys)
        finally:
            self._publishing = None
            published.set()

    async def _write_accepted(self, group: Sequence[_PendingCommit], keys: Mapping[GlobalId, KeyChanges]) -> None:
        first = group[0]
        writes = first.writes if len(group) == 1 else [write for waiting in group for write in waiting.writes]
        # A write with a check or with definitions is alone in its group.
        to_check, basis, definitions = self._to_check(first), first.basis, first.definitions
        tables = self._in_flight = tables_of(writes)
        self._before = self._timeline.latest
        check, after = None, None
        if to_check and basis:
            check, after = self._check_of(basis, to_check, tables), basis.time
        doubt = partial(self._note_doubt, group, tables)
        try:
            time = await self._timeline.write(writes, after=after, check=check, definitions=definitions, in_doubt=doubt)
        except Exception as error:
            for waiting in group:
                waiting.done.set_exception(error)
            return
        except BaseException:
            _give_up(group)
            raise
        finally:
            self._in_flight = frozenset()
        await self._note_written(group, keys, time)
        for waiting in group:
            try:
                waiting.then()
            except Exception as error:
                waiting.done.set_exception(error)
            else:
                waiting.done.set_result(time)

    def _note_doubt(self, group: Sequence[_PendingCommit], tables: Collection[GlobalId], time: int) -> None:
        """Record a failed write that may have happened: reads before its time do not tell the rows after it."""
        self._written.update(dict.fromkeys(tables, time))
        self._discard(tables)
        self._discard_defined(group[0].definitions)

    def _discard_defined(self, definitions: Definitions | None) -> None:
        """Discard the indexes and copies of dropped and altered tables."""
        if definitions is not None:
            self._discard((*definitions.dropped, *definitions.altered))

    def _discard(self, tables: Collection[GlobalId]) -> None:
        self.keys.discard(tables)
        self.residents.discard(tables)

    async def _note_written(
        self, group: Sequence[_PendingCommit], keys: Mapping[GlobalId, KeyChanges], time: int
    ) -> None:
        """Record the durable writes of a group, and add them to the indexes of keys."""
        # At once, because the next read may have this time, and a transaction at an earlier time may copy a table.
        for waiting in group:
            self._written.update(dict.fromkeys(tables_of(waiting.writes), time))
            self.residents.note(waiting.writes, time)
        self._applying.update(keys)
        self._discard_defined(group[0].definitions)
        try:
            await self.keys.apply(keys.values())
        except Exception:  # as if the disk is full: the writes stand, and the next write builds the indexes again
            self.keys.discard(keys.keys())
        except BaseException:
            self.keys.discard(keys.keys())
            _give_up(group)
            raise
        finally:
            self._applying.difference_update(keys)


def _replaced() -> SqlError:
    message = (
        "could not serialize access: a relation that this transaction has read was reset, dropped or altered after"
        " the read"
    )
    return SqlError("40001", message, hint="Run the transaction again.")


def _outdated(reason: str, basis: Basis) -> SqlError:
    hint = "Run the transaction again"
    if not basis.is_strict:
        hint += f" after all relations that it reads are known beyond {time_text(basis.time)}"
    return SqlError("40001", f"could not serialize access: {reason}", hint=f"{hint}.")


def _give_up(group: Sequence[_PendingCommit]) -> None:
    """Fail the waiting writes of a group, because the process shuts down."""
    for waiting in group:
        if not waiting.done.done():
            waiting.done.set_exception(
                SqlError(
                    "08007",
                    "the server shuts down, and it is not known whether the transaction was committed",
                    hint="Connect again, and check whether the rows were written.",
                )
            )
