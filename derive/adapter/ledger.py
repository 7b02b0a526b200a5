"""Storage, as the timeline needs it: where times are given out, and what is written at them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from derive.adapter.news import News
from derive.adapter.objects import Objects
from derive.adapter.ownership import Ownership
from derive.adapter.parser.definition import ObjectKind
from derive.adapter.timeline import Write
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Row
from derive.compute.relations.table_rows import TableRows
from derive.errors import FlowError, SqlError, UsageError
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.capability import ReadCapability
from derive.storage.store import Store
from derive.time.frontier import BEGINNING, END_OF_TIME

_PATIENCE_SECONDS = 0.25


class StorageLedger:
    """Reads and writes in one data folder.

    Args:
        store: of the data folder.
        catalog: of `flow.yaml`, which says what is derived.
        news: tells of commits.
        objects: what there is now.
        ownership: tells whether views are kept up to date.
    """

    def __init__(
        self,
        store: Store,
        catalog: CatalogSpec | None,
        news: News,
        objects: Callable[[], Objects],
        ownership: Ownership,
    ) -> None:
        self._store, self._news = store, news
        self._derived = dict(catalog.derivations) if catalog else {}
        self._objects, self._ownership = objects, ownership
        self._known: dict[GlobalId, tuple[int, int]] = {}  # of tables, since the last news
        self._heard = news.next

    async def present(self) -> int:
        """What time it is."""
        return self._store.timeline.present()

    async def append(self, time: int, writes: Sequence[Write]) -> None:
        """Write into tables."""
        changed: dict[GlobalId, list[tuple[Row, int]]] = defaultdict(list)
        for table, row, diff in writes:
            changed[table].append((row, diff))
        await asyncio.to_thread(self._append, time, changed)

    def _append(self, time: int, changed: Mapping[GlobalId, list[tuple[Row, int]]]) -> None:
        changes = {}
        for identifier, rows in changed.items():
            table = self._store.tables.table(identifier)
            if table is None or table.upper >= END_OF_TIME:
                raise SqlError("42P01", f"table {identifier} was dropped")
            changes[identifier] = TableRows(table).changes(rows)
        items = [item for item in self._objects().items.values() if item.is_written]
        idle = [*(item.id for item in items), *(item.position for item in items if item.position is not None)]
        self._store.tables.append(time, changes, idle)
        for identifier in (*idle, *changes):
            self._note(identifier, time + 1)

    async def seal(self, ids: Collection[GlobalId], time: int) -> None:
        """Move `upper` of what nobody derives or maintains above a time."""
        objects = self._objects()
        by_hand = [id_ for id_ in ids if objects.is_sealed_by_hand(id_)]
        names = [spec.name for id_ in by_hand if (spec := objects.collections.get(id_))]
        names += [objects.stored(item) for id_ in by_hand if (item := objects.items.get(id_))]
        if names:
            uppers = await asyncio.to_thread(self._store.seal, names, time + 1)
            for id_ in by_hand:
                if (item := objects.items.get(id_)) is not None:
                    self._note(id_, uppers[objects.stored(item)])

    async def frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """The greatest `since` and the least `upper`."""
        since, upper = BEGINNING, END_OF_TIME
        for identifier in ids:
            begin, end = self.frontiers_of(identifier)
            since, upper = max(since, begin), min(upper, end)
        return since, upper

    def frontiers_of(self, identifier: GlobalId) -> tuple[int, int]:
        """The `since` and `upper` of one."""
        objects = self._objects()
        spec = objects.collections.get(identifier)
        if spec is not None:
            known = self._store.collection(spec.name)
            return (known.since, known.upper) if known else (BEGINNING, BEGINNING)
        if self._heard is not self._news.next:  # somebody may have let time pass, or forgotten history
            self._heard = self._news.next
            self._known.clear()
        frontiers = self._known.get(identifier)
        if frontiers is None:
            table = self._store.tables.table(identifier)
            frontiers = (table.since, table.upper) if table else (BEGINNING, BEGINNING)
            if table and objects.is_sealed_by_hand(identifier):
                self._known[identifier] = frontiers
        return frontiers

    def _note(self, identifier: GlobalId, upper: int) -> None:
        """Remember how far a table is that nobody else writes; somebody else may have let more time pass for it."""
        known = self._known.get(identifier)
        if known is None:
            table = self._store.tables.table(identifier)
            known = (table.since, table.upper) if table else (BEGINNING, BEGINNING)
        self._known[identifier] = known[0], max(known[1], upper)

    async def changed(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait for news, if there may be some."""
        news = self._news.next
        behind = [identifier for identifier in ids if self.frontiers_of(identifier)[1] <= time]
        for identifier in behind:
            await asyncio.to_thread(self._check_at_work, identifier)
        if behind:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _PATIENCE_SECONDS)

    def _check_at_work(self, identifier: GlobalId) -> None:
        item = self._objects().items.get(identifier)
        if item is not None and item.kind is ObjectKind.MATERIALIZED_VIEW and not self._ownership.is_somebodys():
            raise SqlError(
                "55000",
                f"what '{item.name}' holds at that time is not known, as nothing keeps it up to date",
                hint="start `flowctl sql serve`; or read the newest time at which all that is read is known, if there"
                " is one: SET transaction_isolation = serializable",
            )
        spec = self._objects().collections.get(identifier)
        if spec is None or spec.name not in self._derived:
            return
        if self._store.rights.is_at_work(spec.name):
            self._store.changes.call_others()  # a task that has nothing to do is seldom looked at
            return
        raise SqlError(
            "55000",
            f"what '{spec.name}' holds at the present is not known, as nothing derives it",
            hint="start `flowctl run`; or read the newest time at which all that is read is known, if there is one:"
            " SET transaction_isolation = serializable",
        )


class StorageHolds:
    """Holds on everything that can be read in a data folder, for transactions."""

    def __init__(self, store: Store, names: Callable[[], Sequence[str]]) -> None:
        self._store, self._names = store, names
        self._holds: dict[int, list[ReadCapability]] = {}
        self._count = 0

    async def hold(self, time: int) -> int:
        """Hold everything that can be read at a time."""
        self._count += 1
        self._holds[self._count] = await asyncio.to_thread(self._lease, time)
        return self._count

    async def release(self, hold: int) -> None:
        """Give a hold back."""
        for capability in self._holds.pop(hold, []):
            await asyncio.to_thread(self._store.leases.drop, capability)

    def renew(self) -> None:
        """Extend all holds, which else run out; from any thread."""
        for hold, capabilities in list(self._holds.items()):
            with suppress(FlowError):  # it ran out, or the collection was reset: who reads it is told
                renewed = [self._store.leases.downgrade(held, held.frontier) for held in capabilities]
                if hold in self._holds:
                    self._holds[hold] = renewed

    def _lease(self, time: int) -> list[ReadCapability]:
        leased = []
        for name in self._names():
            with suppress(UsageError):
                known = self._store.collection(name)
                if known and known.since <= time:
                    leased.append(self._store.leases.lease(name, time))
        return leased
