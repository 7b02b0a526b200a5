"""The coordinator: what all sessions of a process share, in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from derive.adapter.catalog import Catalog, Item, position_name
from derive.adapter.feeding import Feeding
from derive.adapter.group_commit import GroupCommit
from derive.adapter.ledger import StorageHolds, StorageLedger
from derive.adapter.lookups import Lookups
from derive.adapter.maintenance import Maintenance
from derive.adapter.news import News
from derive.adapter.objects import Objects
from derive.adapter.ownership import Ownership
from derive.adapter.timeline import Timeline
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Row
from derive.compute.relations.columns import Source
from derive.compute.relations.contents import contents_at
from derive.errors import SqlError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.store import Store
from derive.time.frontier import END_OF_TIME

if TYPE_CHECKING:
    from derive.adapter.session import SqlSession


_HOUSEKEEPING_SECONDS = 10.0
"""How often what was appended to tables becomes segments, and holds are renewed, which last for a minute."""

_MANY_UPDATES = 5_000
"""So many updates of a table become a segment."""


class Coordinator:
    """SQL over one data folder.

    Made by `open`, in the event loop in which it is used.

    Attributes:
        store: of the data folder.
        timeline: gives times.
        commits: writes.
        holds: keep what transactions read.
        ledger: knows frontiers.
        ownership: the right to write.
        maintenance: views that are kept up to date.
        feeding: of sources.
        lookups: of what is maintained.
        news: tells of commits.
        objects: what names stand for.
        sessions: that are open.
    """

    def __init__(self, root: Path, catalog: CatalogSpec | None) -> None:
        self.store = Store(root)
        self._kept_house = time.monotonic()
        self.ownership = Ownership(root)
        self._flow = catalog
        self._catalog = Catalog(root)
        if catalog:
            self.store.create(*(self.store.tables.as_stored(spec) for spec in catalog.collections.values()))
        self.objects = Objects(-1, (), {})
        self.maintenance = Maintenance(self.store, root, lambda: self.objects)
        self.lookups = Lookups(self.maintenance)
        self.refresh()
        self.holds = StorageHolds(self.store, self._stored_names)
        self.news = News(self.store.changes, self._work)
        self.ledger = StorageLedger(self.store, catalog, self.news, lambda: self.objects, self.ownership)
        self.timeline = Timeline(self.ledger, self.store.timeline.present() - 1)
        self.commits = GroupCommit(self.timeline, self._is_there)
        self.feeding = Feeding(self.store, self.commits, lambda: self.objects)
        self.definitions = asyncio.Lock()
        self.sessions: set[SqlSession] = set()

    def session(self, begun: Mapping[str, str] | None = None, most_bytes: int | None = None) -> SqlSession:
        """A new session.

        Args:
            begun: settings with which it begins, by name.
            most_bytes: so much may be in a result; None for any amount.
        """
        from derive.adapter.session import SqlSession

        return SqlSession(self, begun, most_bytes)

    async def close(self) -> None:
        """Give everything back; sessions that are open end."""
        for session in list(self.sessions):
            await session.close()
        await self.feeding.close()
        await self.news.close()
        self.maintenance.close()
        self._catalog.close()
        self.store.close()
        self.ownership.release()

    def own(self) -> None:
        """Be the process that writes.

        Raises:
            SqlError: another one is.
        """
        if not self.ownership.is_held:
            self.ownership.require()
            self._look()
            self._reconcile()
            self.maintenance.begin()
            self.feeding.begin()

    def refresh(self) -> Objects:
        """What names stand for now, also if another process has changed it, which only the one that writes can do."""
        if not self.ownership.is_held:
            self._look()
        return self.objects

    def change(
        self,
        statement: str,
        *,
        added: tuple[Item, ...] = (),
        removed: tuple[GlobalId, ...] = (),
        renamed: Mapping[GlobalId, str] | None = None,
    ) -> None:
        """Change what names stand for; durable when it returns."""
        self._catalog.change(statement, added=added, removed=removed, renamed=renamed)
        self._look()

    def _work(self) -> bool:
        """What the thread of news does after each; whether there is more to do."""
        now = time.monotonic()
        if now - self._kept_house >= _HOUSEKEEPING_SECONDS:
            self._kept_house = now
            self.holds.renew()
            if self.ownership.is_held:
                self.store.tables.flush(fewest=_MANY_UPDATES)
        return self.maintenance.work()

    def _is_there(self, identifier: GlobalId) -> bool:
        table = self.store.tables.table(identifier)
        return table is not None and table.upper < END_OF_TIME

    def source(self, identifier: GlobalId) -> Source:
        """What Storage has under an identifier.

        Raises:
            SqlError: nothing any more.
        """
        spec = self.objects.collections.get(identifier)
        source = spec or self.store.tables.table(identifier)
        if source is None:
            raise SqlError("42P01", "what is read was dropped")
        return source

    def contents(self, identifier: GlobalId, time: int) -> Iterator[list[Row]]:
        """The rows of a collection or table at a time."""
        return contents_at(self.store, self.source(identifier), time)

    def _look(self) -> None:
        """Look what names stand for."""
        version = self._catalog.version()
        if version != self.objects.version:
            derived = self._flow.derivations if self._flow else ()
            self.objects = Objects(version, self._catalog.items(), self._collections(), derived)

    def _collections(self) -> dict[GlobalId, CollectionSpec]:
        collections: dict[GlobalId, CollectionSpec] = {}
        for spec in self._flow.collections.values() if self._flow else ():
            identifier = self.store.tables.id_of(spec.name)
            if identifier is not None and self.store.tables.table(identifier) is None:
                collections[identifier] = spec
        return collections

    def _stored_names(self) -> list[str]:
        items = [item for item in self.objects.items.values() if item.is_stored]
        return [*(spec.name for spec in self.objects.collections.values()), *map(self.objects.stored, items)]

    def _reconcile(self) -> None:
        """Bring Storage in line with the catalog: whoever changed both may have been killed in between."""
        items = [item for item in self.objects.items.values() if item.is_stored]
        expected = {item.id: self.objects.stored(item) for item in items}
        expected |= {
            item.position: position_name(item.schema, item.name) for item in items if item.position is not None
        }
        for table in self.store.tables.all():
            if table.id not in expected and table.name.startswith("sql/"):
                self.store.tables.drop(table.id)
        for identifier, name in expected.items():
            if self.store.tables.name_of(identifier) not in {name, None}:
                self.store.tables.rename(identifier, name)
