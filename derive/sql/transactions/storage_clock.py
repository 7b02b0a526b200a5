"""Storage, as the timeline uses it: the source of its times, and the place of its writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat

from derive.algebra.relation import GlobalId
from derive.backoff import Backoff
from derive.errors import BusyError, SqlError
from derive.protocol.collection import SQL_PREFIX, intended_name
from derive.protocol.specs import CatalogSpec
from derive.relations.table_rows import TableRows, rows_of
from derive.sql.catalog.items import Item, at_commit
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import ObjectKind
from derive.sql.transactions.group_commit import Basis, Histories
from derive.sql.transactions.ownership import Ownership
from derive.sql.transactions.programs import as_commands, programs_of
from derive.sql.transactions.writes import Write, by_table
from derive.storage.capability.table import Capability
from derive.storage.changes import Changes
from derive.storage.metadata.definitions import Definitions
from derive.storage.serving import Serving
from derive.storage.store import Store
from derive.storage.table_types import BulkChanges
from derive.storage.tables import BULK_ROWS, Change
from derive.time import BEGINNING, END_OF_TIME

_SECONDS = 0.5
"""Longest wait for a commit, in seconds."""

_BACKOFF = Backoff(_SECONDS, 30.0)
"""Pauses, in seconds, before failed work is retried."""


class CommitWatcher:
    """A watcher of commits that wakes the event loop.

    Args:
        changes: commits of the data folder.
        work: a function that the thread runs after each commit, and that returns whether more work remains. Failed work
            is retried after pauses that double.
        report: a function that gets the error of each failure, and None after recovery.
    """

    def __init__(
        self,
        changes: Changes,
        work: Callable[[], bool] = lambda: False,
        report: Callable[[Exception | None], None] = lambda _: None,
    ) -> None:
        self._changes, self._work, self._report = changes, work, report
        self._due, self._failures = 0.0, 0
        self._loop = asyncio.get_running_loop()
        self._commit = asyncio.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="flowctl-sql-commits", daemon=True)
        self._thread.start()

    @property
    def next(self) -> asyncio.Event:
        """Return the event of the next commit.

        The caller gets the event first, and then checks whether it has to wait.
        """
        return self._commit

    def notify(self) -> None:
        """Notify the waiting tasks, from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._notify)

    async def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        self._changes.wake()
        await asyncio.to_thread(self._thread.join)

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                mark = self._changes.mark()
                has_more = self._attempt()
                self.notify()
                if not has_more:
                    self._changes.wait(mark, _SECONDS)
            except Exception as error:
                self._fail(error)
                self._closing.wait(_SECONDS)

    def _attempt(self) -> bool:
        """Run the work, except in a pause after a failure; return whether more work remains."""
        if time.monotonic() < self._due:
            return False
        try:
            has_more = self._work()
        except Exception as error:
            self._fail(error)
            return False
        if self._failures:
            self._failures = 0
            self._report(None)
        return has_more

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._due = time.monotonic() + _BACKOFF.pause(self._failures)
        self._report(error)

    def _notify(self) -> None:
        self._commit.set()
        self._commit = asyncio.Event()


_PATIENCE_SECONDS = 0.25

_MOST_AT_ONCE = 100
"""Number of rows that are written without a thread."""

_TICK = 1_000_000
"""Tick of collections that are not derived, in microseconds."""


class Certainty:
    """Certainty that no other server has begun, before a read from memory.

    A server with a late renewal asks the metadata database, which may be silent. A thread asks, so the event loop stays
    free. Reads that wait at the same time share a question that begins after each of them.

    Args:
        serving: the capability to serve.
        seconds: time limit of a read.
    """

    def __init__(self, serving: Serving, seconds: float = 5.0) -> None:
        self._serving, self._seconds = serving, seconds
        self._question: asyncio.Future[None] | None = None
        self._number = 0  # of the last question

    async def require(self) -> None:
        """Raise an error if another server may have begun.

        Raises:
            FencedError: another server has begun.
            SqlError: the metadata database does not answer.
        """
        if self._serving.is_certain:
            return
        least = self._number + 1
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    number, question = self._asked()
                    await asyncio.shield(question)
                    if number >= least:
                        return
        except TimeoutError:
            raise SqlError(
                "57P03",
                f"the metadata database has not answered for {self._seconds:g} s",
                hint="Try again when it answers.",
            ) from None

    def _asked(self) -> tuple[int, asyncio.Future[None]]:
        """Return the number and the result of the question that is asked now; begin another one if there is none."""
        if self._question is None or self._question.done():
            self._number += 1
            self._question = asyncio.ensure_future(asyncio.to_thread(self._serving.check))
            self._question.add_done_callback(_take_error)
        return self._number, self._question


def _take_error(question: asyncio.Future[None]) -> None:
    """Read the error of a question, whose reads may have ended at their time limit."""
    if not question.cancelled():
        question.exception()


MOST_ADVANCED = 40
"""Number of tables that each commit advances, also without changes, so that their readers need not seal them."""


class AdvancedTables:
    """The tables that a commit advances: of many, those that readers have sealed last, and those that dataflows read.

    Args:
        followed: returns the tables that dataflows read; any thread may call it.
    """

    def __init__(self, followed: Callable[[], frozenset[GlobalId]]) -> None:
        self._followed = followed
        self._sealed: dict[GlobalId, None] = {}

    def note_sealed(self, tables: Sequence[GlobalId]) -> None:
        """Note tables that readers have sealed."""
        for table in tables:
            self._sealed.pop(table, None)
            self._sealed[table] = None
        while len(self._sealed) > MOST_ADVANCED:
            del self._sealed[next(iter(self._sealed))]

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the tables and sources that a commit advances, of all tables and sources."""
        if len(items) <= MOST_ADVANCED:
            return items
        chosen = self._followed().union(self._sealed.copy())
        return [item for item in items if item.id in chosen]


class StoreClock:
    """Reads and writes in one data folder.

    Args:
        catalog: the catalog of `flow.yaml`, with the derivations.
        watcher: notifications of commits.
        objects: returns the current names.
        ownership: ownership of the data folder, which is read and written.
        followed: returns the tables that dataflows read; any thread may call it.
    """

    def __init__(
        self,
        catalog: CatalogSpec | None,
        watcher: CommitWatcher,
        objects: Callable[[], Objects],
        ownership: Ownership,
        followed: Callable[[], frozenset[GlobalId]] = frozenset,
    ) -> None:
        self._store, self._watcher = ownership.store, watcher
        self._advanced = AdvancedTables(followed)
        self._derived = dict(catalog.derivations) if catalog else {}
        self._objects, self._ownership = objects, ownership
        self._known: dict[GlobalId, tuple[int, int]] = {}  # frontiers of tables, valid until the next notification
        self._earlier: dict[GlobalId, tuple[int, int]] = {}  # the same, before it
        self._converters: dict[GlobalId, TableRows] = {}
        self._converted_from = 0
        self._heard = watcher.next
        self._certainty = Certainty(self._store.serving)

    async def present(self, *, is_exact: bool = True) -> int:
        """Return the present time."""
        timeline = self._store.timeline
        return timeline.present() if is_exact else timeline.estimate()

    async def horizon(self, ids: Collection[GlobalId]) -> int:
        """Return the latest time for which a read waits: two ticks of the relations after the present."""
        collections = self._objects().collections
        names = [spec.name for identifier in ids if (spec := collections.get(identifier))]
        ticks = [self._derived[name].tick for name in names if name in self._derived]
        return self._store.timeline.present() + 2 * max([_TICK, *ticks])

    async def append(
        self, time: int, writes: Sequence[Write], definitions: Definitions | None = None, *, is_estimate: bool = False
    ) -> None:
        """Define and write tables; few rows without a thread, if the disk is fast."""
        is_estimate = is_estimate and self._store.timeline.can_estimate
        is_short = definitions is None and len(writes) <= _MOST_AT_ONCE
        if not (is_short and self._append(time, writes, None, is_estimate=is_estimate, at_once=True)):
            await asyncio.to_thread(self._append, time, writes, definitions, is_estimate=is_estimate, at_once=False)

    def _append(
        self,
        time: int,
        writes: Sequence[Write],
        definitions: Definitions | None,
        *,
        is_estimate: bool,
        at_once: bool,
    ) -> bool:
        """Define and write tables; if only at once, return False without an effect if the commit would take longer."""
        changes: dict[GlobalId, Sequence[Change] | BulkChanges] = {}
        created = {table.id: table for table in definitions.created} if definitions else {}
        for identifier, (rows, diffs) in by_table(writes).items():
            new = created.get(identifier)
            converter = self._converter(identifier) if new is None else rows_of(new.begun_at(time))
            bulk = converter.bulk(rows, diffs) if len(rows) >= BULK_ROWS else None
            changes[identifier] = bulk or converter.changes(zip(rows, diffs or repeat(1), strict=False))
        dropped = definitions.dropped if definitions else ()
        if definitions is not None and definitions.items is not None:
            definitions = replace(definitions, items=at_commit(definitions.items, time))
        items = self._advanced.of(
            [item for item in self._objects().items.values() if item.is_written and item.id not in dropped]
        )
        idle = [*(item.id for item in items), *(item.position for item in items if item.position is not None)]
        idle += [table.id for table in created.values() if table.inputs is None]
        try:
            is_written = self._store.tables.append(
                time, changes, idle, definitions, is_estimate=is_estimate, at_once=at_once
            )
        except BaseException:
            self._known.clear()  # the commit may have happened
            self._earlier.clear()
            self._converters.clear()
            raise
        if not is_written:
            return False
        for identifier in (*dropped, *(definitions.altered if definitions else ())):
            self._converters.pop(identifier, None)
        for identifier in dropped:
            self.forget(identifier)
        for identifier in (*idle, *changes):
            self._note(identifier, time + 1)
        return True

    def _converter(self, identifier: GlobalId) -> TableRows:
        """Return the converter of a table's rows; only definitions of this process change it, while it is the owner."""
        if self._converted_from != self._ownership.begun:
            self._converted_from = self._ownership.begun
            self._converters.clear()
        converter = self._converters.get(identifier)
        if converter is None:
            table = self._store.tables.table(identifier)
            if table is None or table.upper >= END_OF_TIME:
                raise SqlError("42P01", f"table {dropped_name(self._store, identifier)} was dropped")
            converter = self._converters[identifier] = rows_of(table)
        return converter

    async def seal(self, ids: Collection[GlobalId], time: int) -> None:
        """Move the `upper` of relations above a time, except of relations that are derived or maintained.

        A process that cannot write moves nothing.
        """
        if not self._store.metadata.can_write:
            return
        objects = self._objects()
        by_hand = [id_ for id_ in ids if objects.is_sealed_by_hand(id_) and self.frontiers_of(id_)[1] <= time]
        names = [spec.name for id_ in by_hand if (spec := objects.collections.get(id_))]
        tables = [id_ for id_ in by_hand if id_ in objects.items]
        if names or tables:
            self._advanced.note_sealed(tables)
            uppers, bound = await asyncio.to_thread(self._seal, names, tables, time + 1)
            for id_, name in bound.items():
                self._note(id_, uppers[name])

    def _seal(
        self, names: Sequence[str], tables: Sequence[GlobalId], upper: int
    ) -> tuple[Mapping[str, int], Mapping[GlobalId, str]]:
        bound = {id_: name for id_ in tables if (name := self._store.tables.name_of(id_))}
        return self._store.seal([*names, *bound.values()], upper), bound

    async def frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """Return the greatest `since` and the least `upper`.

        Raises:
            SqlError: a table was dropped, in a commit that this process may not have observed yet; or the metadata
                database does not answer whether another server has begun, so that tables may have unknown rows.
        """
        await self._certainty.require()
        since, upper = self._bounds(ids)
        if since >= END_OF_TIME:
            dropped = next(identifier for identifier in ids if self.frontiers_of(identifier)[0] >= END_OF_TIME)
            raise SqlError("42P01", f"relation {dropped_name(self._store, dropped)} was dropped")
        return since, upper

    def bounds(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """Return `frontiers(ids)` without awaiting.

        Raises:
            SqlError: the metadata database must be asked before, because another server may have begun.
        """
        if not self._store.serving.is_certain:
            raise SqlError("57P03", "the metadata database must be asked whether another server has begun")
        return self._bounds(ids)

    def _bounds(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        since, upper = BEGINNING, END_OF_TIME
        for identifier in ids:
            begin, end = self.frontiers_of(identifier)
            since, upper = max(since, begin), min(upper, end)
        return since, upper

    def frontiers_of(self, identifier: GlobalId) -> tuple[int, int]:
        """Return the `since` and `upper` of one relation."""
        objects = self._objects()
        spec = objects.collections.get(identifier)
        if spec is not None:
            known = self._store.collection(spec.name)
            return (known.since, known.upper) if known else (BEGINNING, BEGINNING)
        if self._heard is not self._watcher.next:  # another process may have sealed the table or compacted history
            self._heard = self._watcher.next
            self._earlier |= self._known
            self._known.clear()
        frontiers = self._known.get(identifier)
        if frontiers is None:
            try:
                table = self._store.tables.table(identifier)
            except BusyError:  # rows in memory are known up to the earlier frontier, too
                if identifier in self._earlier:
                    return self._earlier[identifier]
                raise
            frontiers = (table.since, table.upper) if table else (BEGINNING, BEGINNING)
            item = objects.items.get(identifier)
            frontiers = max(frontiers[0], item.known_from if item else BEGINNING), frontiers[1]
            if table and objects.is_sealed_by_hand(identifier):
                self._known[identifier] = frontiers
        return frontiers

    def forget(self, identifier: GlobalId) -> None:
        """Forget the frontiers of a table that was dropped or altered."""
        self._known.pop(identifier, None)
        self._earlier.pop(identifier, None)

    def _note(self, identifier: GlobalId, upper: int) -> None:
        """Note the `upper` of a table that only this process writes, unless a greater value or none is cached."""
        known = self._known.get(identifier)
        if known is not None:
            self._known[identifier] = known[0], max(known[1], upper)

    async def changed(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait for a commit, if the `upper` of some relation is not above a time."""
        commit = self._watcher.next
        behind = self._behind(ids, time + 1)
        if behind and not self._store.metadata.can_write:
            self._require_advance(behind)
        for identifier in behind:
            await asyncio.to_thread(self._check_at_work, identifier)
        if behind:
            self._store.changes.hurry()
            with suppress(TimeoutError):
                await asyncio.wait_for(commit.wait(), _PATIENCE_SECONDS)

    def _require_advance(self, behind: Collection[GlobalId]) -> None:
        """Raise an error if only this process, which cannot write, would advance some relations.

        Raises:
            SqlError: a relation is sealed by its readers (25006).
        """
        if any(map(self._objects().is_sealed_by_hand, behind)):
            raise SqlError(
                "25006",
                "the relations of the query have no common time at which they are known, and this user may only read"
                " the metadata, so the query cannot record that they are known now",
                hint="Read the rows that are known now (SET transaction_isolation = serializable), or query fewer"
                " relations at once; a run that reads them, or a query of a user who may write, records a common time.",
            )

    def written_by_others(self, basis: Basis) -> frozenset[GlobalId]:
        """Return the relations of a basis that other processes may have written: collections and tables."""
        items, is_ours = self._objects().items, basis.time >= self._ownership.begun
        return frozenset(
            id_
            for id_ in basis.ids
            if (basis.is_strict if id_ not in items or not items[id_].is_written else not is_ours)
        )

    async def is_unchanged(
        self, ids: Collection[GlobalId], after: int, before: int, writing: Collection[GlobalId]
    ) -> bool:
        """Return whether collections have no change after one time and before another.

        The call waits for a tick or two, but not for a running ingestion, because this will write.

        Args:
            ids: the collections.
            after: the first time.
            before: the second time.
            writing: tables to be written at the second time; they must not be sealed before.
        """
        await self.seal(ids, before - 1)
        if self._behind(ids, before):
            capabilities = await asyncio.to_thread(self._acquire, writing)
            try:
                if not await self._become_known(ids, before):
                    return False
            finally:
                await asyncio.to_thread(self._store.capabilities.release, *capabilities)
        return not await asyncio.to_thread(self._has_changed, ids, after, before)

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """Return the histories of collections and tables, without dropped ones."""
        objects, histories = self._objects(), {}
        for identifier in ids:
            spec = objects.collections.get(identifier)
            relation = self._store.relation(spec.name) if spec else identifier if identifier in objects.items else None
            if relation is not None:
                histories[identifier] = relation, BEGINNING if spec else objects.items[identifier].known_from
        return histories

    def _behind(self, ids: Collection[GlobalId], frontier: int) -> list[GlobalId]:
        return [identifier for identifier in ids if self.frontiers_of(identifier)[1] < frontier]

    def _acquire(self, tables: Collection[GlobalId]) -> list[Capability]:
        acquire = self._store.capabilities.acquire_write
        return [acquire(table, purpose="a transaction of SQL") for table in tables]

    async def _become_known(self, ids: Collection[GlobalId], frontier: int) -> bool:
        """Wait until collections are complete up to a frontier; return False during ingestion, or after a long wait."""
        horizon, is_sealed_by_hand = await self.horizon(ids), self._objects().is_sealed_by_hand
        while behind := self._behind(ids, frontier):
            if any(map(is_sealed_by_hand, behind)) or await self.present() > horizon:
                return False
            await self.changed(behind, frontier - 1)
        return True

    def _has_changed(self, ids: Collection[GlobalId], after: int, before: int) -> bool:
        """Return whether collections may have changed between two times; a segment may span more than these times."""
        for identifier in ids:
            spec = self._objects().collections.get(identifier)
            if spec is not None:
                if any(after < version.begins < before for version in self._store.history.versions(spec.name)):
                    return True
                if any(segment.clock_min < before for segment in self._store.segments(spec, begin=after + 1)):
                    return True
                continue
            read = self._store.tables.read(identifier, after + 1, before)
            if read.appended or read.segments:
                return True
        return False

    def require_maintained(self, ids: Collection[GlobalId], begin: int, end: int) -> None:
        """Check that the materialized views which a subscription reads become known up to its end.

        Raises:
            SqlError: no process maintains a view that is not known up to the end, and that has no error before, which
                would end the subscription (55000).
        """
        items = self._objects().items
        for identifier in self._behind(ids, end):
            item, upper = items.get(identifier), self.frontiers_of(identifier)[1]
            if item is None or item.kind is not ObjectKind.MATERIALIZED_VIEW or self._ownership.is_somebodys():
                continue
            name = self._store.tables.name_of(identifier)
            if name is None or self._store.tables.first_error(name, begin, upper) is None:
                raise SqlError(
                    "55000",
                    f"the subscription cannot advance, because no server maintains '{item.name}'",
                    hint=f"Start: {self._missing(identifier)}; or end the subscription: UP TO {upper}",
                )

    def _check_at_work(self, identifier: GlobalId) -> None:
        item = self._objects().items.get(identifier)
        if item is not None and item.kind is ObjectKind.MATERIALIZED_VIEW:
            self._objects().meaning(item)  # raises an error if the view no longer fits its inputs
        if item is not None and item.kind is ObjectKind.MATERIALIZED_VIEW and not self._ownership.is_somebodys():
            raise SqlError(
                "55000",
                f"the rows of '{item.name}' at that time are not known, because no server maintains the view",
                hint=self._ways(identifier),
            )
        spec = self._objects().collections.get(identifier)
        if spec is None or spec.name not in self._derived:
            return
        if self._store.task_capabilities.is_running(spec.name):
            self._store.changes.wake_others()  # an idle task is seldom woken
            return
        since, upper = self.frontiers_of(identifier)
        if upper <= since:
            raise SqlError(
                "55000",
                f"nothing is derived in '{spec.name}' yet, and no run derives the collection",
                hint="Derive it: flowctl run --until-idle; or derive it from now on: flowctl run.",
            )
        raise SqlError(
            "55000",
            f"the present documents of '{spec.name}' are not known, because no run derives the collection",
            hint=self._ways(identifier),
        )

    def _missing(self, identifier: GlobalId) -> str:
        """Return the commands that start the programs without which a relation stays as it is."""
        is_running = self._store.task_capabilities.is_running
        return as_commands(programs_of(self._objects(), [identifier], is_running))

    def _ways(self, identifier: GlobalId) -> str:
        """Return the hint for a reader of a relation that no program advances."""
        since, upper = self.frontiers_of(identifier)
        newest = "; or read the rows that are known now: SET transaction_isolation = serializable, and no AS OF"
        return f"Start: {self._missing(identifier)}{newest if upper > since else ''}."


def dropped_name(store: Store, identifier: GlobalId) -> str:
    """Return the name that a table had when it was dropped; its identifier if the name is unknown."""
    name = store.tables.name_of(identifier)
    return f'"{intended_name(name).removeprefix(SQL_PREFIX)}"' if name else str(identifier)
