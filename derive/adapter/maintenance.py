"""Views that are kept up to date: what the catalog wants maintained, done by a compute instance.

One thread does the work: it tells the instance what is to be maintained, lets it go through what is new, and writes
materialized views back to Storage. Everybody else asks where views are, and reads them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TypeVar

from derive.adapter.catalog import Item
from derive.adapter.objects import Objects
from derive.adapter.parser.definition import ObjectKind
from derive.adapter.planner.reading import ids_of
from derive.adapter.view_holds import ViewHolds
from derive.adapter.writeback import write_back
from derive.compute.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.compute.algebra.types import Datum, Row
from derive.compute.instance import Instance, PreparedPeek
from derive.compute.relations.columns import Source
from derive.compute.relations.input import relation_input
from derive.errors import FencedError, FlowError
from derive.storage.store import Store
from derive.time.frontier import BEGINNING, END_OF_TIME

FOLDER = "sql-views"
RETENTION = 60_000_000
"""Microseconds for which maintained views remember what they were; what is older is worked out from Storage."""

SEAL = 500_000
"""Microseconds after which time passes for what is written by hand, if nobody reads it."""

T = TypeVar("T")


class Maintenance:
    """Views that are kept up to date by this process.

    Args:
        store: of the data folder.
        root: the data folder.
        objects: what there is now.
    """

    def __init__(self, store: Store, root: Path, objects: Callable[[], Objects]) -> None:
        self._store, self._root, self._objects = store, root, objects
        self._instance: Instance | None = None
        self._is_owner = False
        self._version = self._held = -1
        self._wanted: dict[GlobalId, Relation] = {}
        self._followed: Counter[GlobalId] = Counter()
        self._begun: set[GlobalId] = set()
        self._indexed: set[tuple[GlobalId, tuple[int, ...]]] = set()
        self._arranged: dict[GlobalId, GlobalId] = {}
        self._sealed = 0
        self._holds = ViewHolds(store)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """This process is the one that writes, and keeps views up to date."""
        with self._lock:
            if self._instance is not None:
                self._instance.close()
            self._begun.clear()
            self._instance = Instance(self._root / FOLDER)
            self._is_owner = True
        self._store.changes.nudge()

    def close(self) -> None:
        """Give everything back."""
        if self._instance is not None:
            self._instance.close()

    # What is where

    def sources(self, ids: Collection[GlobalId]) -> frozenset[GlobalId]:
        """What is stored, of what views that are kept up to date here are worked out."""
        objects = self._objects()
        sources: set[GlobalId] = set()
        pending = list(ids)
        while pending:
            identifier = pending.pop()
            item = objects.items.get(identifier)
            if item is not None and self._is_worked_out(item):
                pending += ids_of(objects.meaning(item))
            else:
                sources.add(identifier)
        return frozenset(sources)

    def _is_worked_out(self, item: Item) -> bool:
        return item.kind is ObjectKind.VIEW or (item.kind is ObjectKind.MATERIALIZED_VIEW and self._is_owner)

    def expanded(self, relation: Relation) -> Relation:
        """A relation over what is stored."""
        objects = self._objects()

        def stored(get: Get) -> Relation:
            item = objects.items.get(get.id)
            if item is not None and self._is_worked_out(item):
                return self.expanded(objects.meaning(item))
            return get

        return with_gets(relation, stored)

    def arranged(self, relation: Relation, finishing: Finishing, time: int) -> tuple[Relation, Finishing] | None:
        """A query over what is maintained here and known at a time, or soon; None if it is over something else."""
        instance = self._instance
        if instance is None or not (ids := ids_of(relation)):
            return None
        places = {}
        for identifier in ids:
            place = self._arranged.get(identifier)
            if place is None:
                return None
            try:
                since, upper = instance.frontiers(place)
            except FlowError:
                return None
            if since > time or upper <= since:
                return None
            places[identifier] = place

        def moved(get: Get) -> Relation:
            return Get(places[get.id], get.types)

        return with_gets(relation, moved), with_gets(finishing, moved)

    def since(self, relation: Relation) -> int:
        """The time from which on all is maintained that a query reads; 0 if some of it is not, or not known yet."""
        instance = self._instance
        places = [self._arranged.get(identifier) for identifier in ids_of(relation)]
        latest = 0
        for place in places:
            if instance is None or place is None:
                return 0
            try:
                since, upper = instance.frontiers(place)
            except FlowError:
                return 0
            if upper <= since:
                return 0
            latest = max(latest, since)
        return latest

    def upper(self, places: Collection[GlobalId]) -> int:
        """The time before which everything is known of what is maintained in some places of the instance.

        Raises:
            FlowError: something of it cannot be maintained.
        """
        assert self._instance is not None
        return min(self._instance.frontiers(place)[1] for place in places)

    def peek(
        self,
        relation: Relation,
        finishing: Finishing,
        time: int,
        *,
        most_bytes: int | None,
        cancelled: Callable[[], bool],
        arguments: Sequence[Datum] = (),
    ) -> Iterator[list[Row]]:
        """The rows of a query of maintained relations."""
        assert self._instance is not None
        return self._instance.peek(
            relation, finishing, time, arguments=arguments, most_bytes=most_bytes, cancelled=cancelled
        )

    def prepared(self, relation: Relation, finishing: Finishing) -> PreparedPeek | None:
        """A query to ask the instance again and again; None if it reads something that is not maintained here."""
        if self._instance is None or not (ids := ids_of(relation)) or not ids <= self._arranged.keys():
            return None

        def moved(get: Get) -> Relation:
            return Get(self._arranged[get.id], get.types)

        return self._instance.prepare(with_gets(relation, moved), with_gets(finishing, moved))

    def explain(self, relation: Relation, names: Mapping[GlobalId, str]) -> str:
        """How a relation would be maintained."""
        return self._open().explain(relation, names)

    def follow(self, ids: Collection[GlobalId]) -> None:
        """Let time pass for what is stored, as somebody follows it."""
        with self._lock:
            self._followed.update(ids)

    def unfollow(self, ids: Collection[GlobalId]) -> None:
        """Somebody follows it no more."""
        with self._lock:
            self._followed.subtract(ids)
            self._followed = +self._followed

    @property
    def instance(self) -> Instance:
        """What maintains."""
        return self._open()

    def _open(self) -> Instance:
        if self._instance is None:
            self._instance = Instance()
        return self._instance

    # Work

    def work(self) -> bool:
        """Bring views up to date; whether there is more to do."""
        with self._lock:
            instance = self._instance
            if self._is_owner:
                self._want(self._objects())
            followed = frozenset(self._followed)
        self._seal(followed)
        if instance is None or not self._is_owner:
            return False
        self._begin_anew(instance)
        wanted = self._wanted
        self._hold()
        for identifier in self._begun - wanted.keys():
            instance.drop(identifier)
            self._begun.discard(identifier)
            self._indexed = {index for index in self._indexed if index[0] != identifier}
        for identifier in set(instance.ids()) - wanted.keys():
            instance.drop(identifier)
        for identifier, relation in wanted.items():
            if identifier not in self._begun:
                self._begin(instance, identifier, relation)
        has_more = instance.step()
        self._write_back(instance)
        self._compact(instance)
        return has_more

    def _seal(self, followed: frozenset[GlobalId]) -> None:
        """Let time pass for what is written by hand, now and then, so that what follows from it gets on."""
        present = self._store.timeline.time()
        if (followed or self._wanted) and present - self._sealed >= SEAL:
            self._sealed = present
            objects = self._objects()
            ids = followed | self.sources(frozenset().union(*map(ids_of, self._wanted.values())))
            names = [source.name for id_ in ids if (source := self._source(id_)) and objects.is_sealed_by_hand(id_)]
            if names:
                self._store.seal_now(names)

    def _want(self, objects: Objects) -> None:
        """What is to be maintained, for what names stand for now."""
        if objects.version == self._version:
            return
        self._version = objects.version
        wanted: dict[GlobalId, Relation] = {}
        arranged: dict[GlobalId, GlobalId] = {}
        for item in sorted(objects.items.values(), key=lambda item: item.id):
            with suppress(FlowError):  # something that it needs is no more
                if item.kind is ObjectKind.MATERIALIZED_VIEW:
                    wanted[item.id] = objects.meaning(item)
                    arranged[item.id] = item.id
                elif item.kind is ObjectKind.INDEX and item.on is not None:
                    self._want_index(objects, item, wanted, arranged)
        self._wanted, self._arranged = wanted, arranged
        self._index(objects)

    @staticmethod
    def _want_index(
        objects: Objects, index: Item, wanted: dict[GlobalId, Relation], arranged: dict[GlobalId, GlobalId]
    ) -> None:
        assert index.on is not None
        subject = objects.items.get(index.on)
        if index.on in arranged:
            return
        if subject is not None and subject.kind in {ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW}:
            wanted[index.on] = objects.meaning(subject)
            arranged[index.on] = index.on
        elif named := objects.relation(index.on):
            wanted[index.id] = named.relation
            arranged[index.on] = index.id

    def _index(self, objects: Objects) -> None:
        assert self._instance is not None
        for item in objects.items.values():
            place = self._arranged.get(item.on) if item.on is not None else None
            if item.kind is not ObjectKind.INDEX or place is None or item.on is None:
                continue
            named = objects.relation(item.on)
            assert named is not None
            names = [column.name for column in named.columns]
            columns = tuple(names.index(name) for name in item.indexed)
            if (place, columns) not in self._indexed:
                self._indexed.add((place, columns))
                self._instance.index(place, columns)

    def _begin(self, instance: Instance, identifier: GlobalId, relation: Relation) -> None:
        inputs = {input_id for input_id in ids_of(relation) if input_id not in self._wanted}
        sources = {}
        for input_id in inputs:
            source = self._source(input_id)
            if source is None:
                return
            sources[input_id] = source
        time = self._time(identifier, relation)
        since, upper = self._frontiers(self.sources(ids_of(relation)))
        if upper <= max(time, since):
            return  # it is not known yet; the next time, perhaps
        opened = {
            input_id: relation_input(self._store, source, max(time, since)) for input_id, source in sources.items()
        }
        instance.maintain(identifier, relation, max(time, since), opened)
        self._begun.add(identifier)

    def _begin_anew(self, instance: Instance) -> None:
        """Begin everything anew once a collection was reset, or a lease ran out while this process slept."""
        if any(isinstance(instance.failure(identifier), FencedError) for identifier in self._begun):
            for identifier in self._begun:
                instance.drop(identifier)
            self._begun.clear()
            self._indexed.clear()
            self._index(self._objects())

    def _source(self, identifier: GlobalId) -> Source | None:
        return self._objects().collections.get(identifier) or self._store.tables.table(identifier)

    def _time(self, identifier: GlobalId, relation: Relation) -> int:
        """The time from which on something is to be maintained."""
        item = self._objects().items.get(identifier)
        if item is not None and item.kind is ObjectKind.MATERIALIZED_VIEW:
            table = self._store.tables.table(identifier)
            assert table is not None
            return max(table.since, table.upper - 1)
        since, upper = self._frontiers(self.sources(ids_of(relation)))
        return max(since, upper - 1)

    def first_time(self, ids: Collection[GlobalId]) -> int:
        """The first time of a view: the newest at which all is known that it is made of."""
        since, upper = self._frontiers(self.sources(ids))
        return max(since, upper - 1, BEGINNING + 1) if upper < END_OF_TIME else self._store.timeline.present()

    def _frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        since, upper = BEGINNING, END_OF_TIME
        for identifier in ids:
            source = self._source(identifier)
            if source is None:
                return BEGINNING, BEGINNING
            known = self._store.collection(source.name)
            since = max(since, known.since if known else BEGINNING)
            upper = min(upper, known.upper if known else BEGINNING)
        return since, upper

    def _write_back(self, instance: Instance) -> None:
        for identifier in self._begun & self._wanted.keys():
            item = self._objects().items.get(identifier)
            if item is not None and item.kind is ObjectKind.MATERIALIZED_VIEW:
                with suppress(FlowError):  # whoever reads it is told
                    write_back(self._store, instance, identifier)

    def _hold(self) -> None:
        """Have nothing forgotten that materialized views have yet to go through."""
        objects = self._objects()
        if self._version != self._held:
            self._holds.keep([item.id for item in objects.items.values() if item.kind is ObjectKind.MATERIALIZED_VIEW])
            self._held = self._version
        for identifier, relation in self._wanted.items():
            table = self._store.tables.table(identifier)
            if table is not None and table.upper < END_OF_TIME:
                sources = [self._source(input_id) for input_id in self.sources(ids_of(relation))]
                self._holds.follow(identifier, [source.name for source in sources if source], table.upper)

    def _compact(self, instance: Instance) -> None:
        for identifier in self._begun:
            with suppress(FlowError):
                since, upper = instance.frontiers(identifier)
                least = upper - 1 - RETENTION
                table = self._store.tables.table(identifier) if identifier in self._wanted else None
                if table is not None:
                    least = min(least, table.upper - 1)
                if least > since + RETENTION // 10:
                    instance.allow_compaction(identifier, least)


def with_gets(node: T, replacement: Callable[[Get], Relation]) -> T:
    """A relation, or what contains some, with others in the place of what it reads."""
    if isinstance(node, Get):
        return replacement(node)  # type: ignore[return-value]
    if isinstance(node, tuple):
        return tuple(with_gets(part, replacement) for part in node)  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {}
    for item in fields(node):
        part = getattr(node, item.name)
        other = with_gets(part, replacement)
        if other is not part:
            changed[item.name] = other
    return replace(node, **changed) if changed else node
