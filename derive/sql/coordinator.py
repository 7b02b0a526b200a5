"""The coordinator: the state that all sessions of a process share, in one event loop."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.compute.oneshot import size_of
from derive.contents.rows import last_rows, table_at
from derive.errors import FencedError, FlowError, SqlError
from derive.protocol.collection import is_of_sql
from derive.protocol.specs import CatalogSpec
from derive.relations.columns import Source
from derive.sql.catalog.items import ReplicaPlace
from derive.sql.catalog.snapshot import Objects, stored_objects
from derive.sql.maintenance.controller.remote import HERE, Instances
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.maintenance.recording import LOG, Described, Recording, described
from derive.sql.maintenance.view_maintenance import Maintenance
from derive.sql.maintenance.view_state import Maintained
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.preparation import Lookups, Plans
from derive.sql.sources.followed_file import ALL_FILES, FileAccess
from derive.sql.sources.source_feeder import SourceFeeder
from derive.sql.transactions.advisory_locks import AdvisoryLocks
from derive.sql.transactions.altered_table import stored_column
from derive.sql.transactions.counters import Counters
from derive.sql.transactions.group_commit import GroupCommit, Shape, is_same_shape, shape_of
from derive.sql.transactions.key_index import KeyIndexes
from derive.sql.transactions.key_lookup import KeyLookups
from derive.sql.transactions.ownership import Ownership
from derive.sql.transactions.read_capabilities import MaintenanceThread, ReadCapabilities
from derive.sql.transactions.resident_tables import MOST_BYTES, ResidentTables
from derive.sql.transactions.storage_clock import CommitWatcher, StoreClock, dropped_name
from derive.sql.transactions.timeline import Timeline
from derive.storage.store import Store
from derive.storage.table_types import Table
from derive.storage.task_log import TaskLog
from derive.time import BEGINNING, END_OF_TIME

RETENTION = 60_000_000
"""Retention of history, in microseconds."""


class OpenSession(Protocol):
    """A session that the coordinator closes at its end."""

    async def close(self) -> None:
        """Close the session."""
        ...


class Coordinator:
    """SQL over one data folder.

    The constructor runs in the event loop that uses the coordinator.

    Attributes:
        store: the data folder.
        timeline: timeline that assigns times.
        commits: group commit.
        counters: counters of identity columns.
        capabilities: read capabilities of transactions.
        storage_clock: reads and writes of Storage.
        ownership: ownership of the data folder.
        computing: controller and compute instances.
        maintained: state of maintained views, for their readers.
        maintenance: view maintenance.
        source_feeder: feeders of sources.
        files: files that sources may read.
        lookups: cache of point lookups.
        key_lookups: cache of lookups by keys.
        plans: cache of plans.
        watcher: notifications of commits.
        objects: the current names.
        recording: record of instances, for other processes.
        sessions: open sessions.
        stopped: event that is set when another process has fenced this process, or when it can no longer commit.
    """

    def __init__(
        self,
        root: Path,
        catalog: CatalogSpec | None,
        retention: int = RETENTION,
        instances: Instances = HERE,
        files: FileAccess = ALL_FILES,
        table_memory: int = MOST_BYTES,
        ownership: Ownership | None = None,
    ) -> None:
        self.ownership = ownership or Ownership(Store(root))
        self.store = self.ownership.store
        self._flow = catalog
        if catalog and self.store.metadata.can_write:
            # A collection of the catalog may declare a SQL table for tasks; a task reports a declaration that does not
            # fit.
            self.store.create(*(spec for name, spec in catalog.collections.items() if not is_of_sql(name)))
        self.objects = Objects(-1, (), {})
        self.computing = ComputeInstances(
            self.store, root, instances, self._notify_progress, self.name_of, self._report
        )
        self.maintained = Maintained(self.store, lambda: self.objects, self.computing)
        self.maintenance = Maintenance(self.store, lambda: self.objects, self.maintained, self.computing)
        self.lookups = Lookups(self.maintained)
        self.key_lookups = KeyLookups()
        self.plans = Plans()
        self.refresh()
        self.capabilities = ReadCapabilities(
            self.store, self._readable, lambda: retention if self.ownership.is_held else None
        )
        self.watcher = CommitWatcher(self.store.changes, self._work, self._report)
        followed = self.maintenance.followed
        self.storage_clock = StoreClock(catalog, self.watcher, lambda: self.objects, self.ownership, followed)
        self.timeline = Timeline(self.storage_clock, self.store.timeline.present() - 1)
        keys = KeyIndexes(self._keyed, self._stored_rows)
        residents = ResidentTables(self._table, self._few_rows, table_memory)
        self.commits = GroupCommit(self.timeline, self._dropped, self.storage_clock, self._altered, keys, residents)
        numbers = self.store.sql_catalog
        self.counters = Counters(numbers.reserve_numbers, numbers.next_number, numbers.restart_counter)
        self.files = files
        self.source_feeder = SourceFeeder(self.store, self.commits, files)
        self.maintenance_thread = MaintenanceThread(self.store, self.capabilities)
        self.recording = Recording(root, self.describe_instances, self.store.fence.is_superseded)
        self.advisory_locks = AdvisoryLocks()
        self.definitions = asyncio.Lock()
        self.temporary: set[str] = set()
        self.sessions: set[OpenSession] = set()
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _notify_progress(self) -> None:
        self.watcher.notify()

    def name_of(self, identifier: GlobalId) -> str | None:
        """Return the name of an identifier with its schema; None if there is none."""
        return self.objects.name_of(identifier)

    async def close(self) -> None:
        """Close all sessions, and release all resources."""
        for session in list(self.sessions):
            await session.close()
        await self.source_feeder.close()
        await self.watcher.close()
        await asyncio.to_thread(self.recording.close)
        await asyncio.to_thread(self.maintenance_thread.close)
        await asyncio.to_thread(self.computing.close)
        self.ownership.release()
        self.store.close()

    def own(self) -> None:
        """Become the owner of the data folder.

        Raises:
            SqlError: another process is the owner.
        """
        if not self.ownership.is_held:
            epoch = self.ownership.require()
            try:
                self._begin(epoch)
            except BaseException:
                self.ownership.release()
                raise

    def _begin(self, epoch: int) -> None:
        """Begin the work of the owner."""
        self.ownership.begun = self.store.timeline.read()
        self.store.tables.begin_ended_views()
        self.look()
        self.computing.add(*(ReplicaPlace(*place) for place in self.store.sql_catalog.replicas()))
        self.maintenance.begin(epoch)
        self.source_feeder.begin(self.objects.items)
        items = self.objects.items.values()
        self.store.sql_catalog.forget_counters({counter for item in items for counter in item.counters})
        self.recording.begin()

    def refresh(self) -> Objects:
        """Return the current names; a process that is not the owner reads them again."""
        if not self.ownership.is_held:
            self.look()
        return self.objects

    def _dropped(self, identifier: GlobalId) -> str | None:
        """Return the name of a dropped table; None if the table exists."""
        return None if identifier in self.objects.items else self.dropped(identifier)

    def dropped(self, identifier: GlobalId) -> str | None:
        """Return the name of a relation of SQL that was dropped, even if this process has not observed the commit."""
        table = self.store.tables.table(identifier)
        if table is None or table.upper >= END_OF_TIME:
            return dropped_name(self.store, identifier)
        return None

    def _altered(self, identifier: GlobalId, shape: Shape) -> str | None:
        """Return the name of a table whose name, columns or constraints are not the expected ones, or None."""
        item = self.objects.items.get(identifier)
        named = None if item is None else self.objects.described(identifier)
        if named is None:
            return None
        present = shape_of(named, self.objects.references.get(identifier, ()))
        return None if is_same_shape(present, shape) else named.name

    def _keyed(self, identifier: GlobalId) -> NamedRelation | None:
        """Return a table with keys; None for other identifiers."""
        item = self.objects.items.get(identifier)
        return self.objects.described(identifier) if item is not None and item.constraints else None

    def _stored_rows(self, table: NamedRelation) -> tuple[int, Iterator[Sequence[Row]]]:
        """Return the last stored rows of a table in batches, with their time, while no writer commits."""
        source = self.source(table.id)
        assert isinstance(source, Table)
        return source.upper - 1, last_rows(self.store, source)

    def _table(self, identifier: GlobalId) -> Table | None:
        """Return a table with its present columns; None for a dropped table or another relation."""
        with suppress(SqlError):
            source = self.source(identifier)
            return source if isinstance(source, Table) else None
        return None

    def _few_rows(self, table: Table, time: int, most_rows: int, most_bytes: int) -> list[Row] | None:
        """Return the rows of a table at a time; None if they are too many or too large."""
        known = self.store.tables.read(table.id, BEGINNING, time + 1)
        if len(known.appended) + sum(segment.documents for segment in known.segments) > 2 * most_rows:
            return None
        rows: list[Row] = []
        size = 0
        for batch in table_at(self.store, table, time):
            size += sum(map(size_of, batch))
            if size > most_bytes or len(rows) > most_rows:
                return None
            rows += batch
        return rows

    def _work(self) -> bool:
        return self.maintenance.work()

    def _report(self, failure: Exception | None) -> None:
        """Log a failure of view maintenance, or its recovery."""
        is_fenced = isinstance(failure, FencedError) and self.store.fence.is_superseded()
        if is_fenced or self.store.metadata.lost is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.stopped.set)
        self.maintenance.failure = failure
        log = TaskLog(self.store.root, LOG)
        if failure is None:
            log.write("info", "view maintenance resumed")
        else:
            reason = failure if isinstance(failure, FlowError) else "".join(traceback.format_exception(failure))
            log.write("error", f"view maintenance failed; retrying: {reason}")

    def describe_instances(self) -> list[Described]:
        """Return the status of the instances, as `flowctl status` shows it; any thread may ask."""
        unfit = self.maintenance.unfit
        return [described(state, self.objects.items, unfit) for state in self.computing.replicas()]

    def source(self, identifier: GlobalId, names: Objects | None = None) -> Source:
        """Return the relation of an identifier in Storage; a table has the columns of some names, or the current ones.

        Raises:
            SqlError: the relation was dropped.
        """
        names = names or self.objects
        spec = names.collections.get(identifier)
        if spec is not None:
            return spec
        table, item = self.store.tables.table(identifier), names.items.get(identifier)
        if table is None:
            raise SqlError("42P01", f"relation {dropped_name(self.store, identifier)} was dropped")
        if item is None or item.kind is not ObjectKind.TABLE:
            return table
        return replace(table, columns=tuple(map(stored_column, item.columns)))

    def look(self) -> None:
        """Read the current names."""
        if self.store.sql_catalog.version() != self.objects.version:
            version, stored = self.store.sql_catalog.read()
            objects = stored_objects(version, stored, self.store.tables, self._flow)
            objects.inherit(self.objects)
            self.objects = objects
            if self.ownership.is_held:
                self.source_feeder.reconcile(self.objects.items)

    def _readable(self) -> list[GlobalId]:
        """Return the identifiers of all readable relations in Storage."""
        objects = self.objects
        return [*objects.collections, *(item.id for item in objects.items.values() if item.is_stored)]
