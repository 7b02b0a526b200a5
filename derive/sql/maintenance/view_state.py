"""What is maintained: where it is, from when on it is known, and what it is worked out of."""

from __future__ import annotations

from collections.abc import Callable, Collection

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.compute.protocol.messages import Query
from derive.errors import FlowError, SqlError
from derive.relations.columns import Source
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.desired_dataflows import NOTHING, Wanted
from derive.sql.maintenance.instances import Computing
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import has_recursion, ids_of, with_gets
from derive.storage.store import Store
from derive.time.frontier import BEGINNING, END_OF_TIME


class Maintained:
    """What is maintained, for those who read it. `Maintenance` says what there is.

    Args:
        store: of the data folder.
        objects: what there is now.
        computing: maintains.

    Attributes:
        wanted: what is to be maintained.
    """

    def __init__(self, store: Store, objects: Callable[[], Objects], computing: Computing) -> None:
        self._store, self._objects, self._computing = store, objects, computing
        self.wanted: Wanted = NOTHING

    # What it is worked out of

    def sources(self, ids: Collection[GlobalId], objects: Objects | None = None) -> frozenset[GlobalId]:
        """What is stored, of what views that are kept up to date here are worked out."""
        objects = objects or self._objects()
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

    def expanded(self, relation: Relation) -> Relation:
        """A relation over what is stored."""
        objects = self._objects()

        def stored(get: Get) -> Relation:
            item = objects.items.get(get.id)
            if item is not None and self._is_worked_out(item):
                return self.expanded(objects.meaning(item))
            return get

        return with_gets(relation, stored)

    def _is_worked_out(self, item: Item) -> bool:
        return item.kind is ObjectKind.VIEW or (item.kind is ObjectKind.MATERIALIZED_VIEW and self._computing.is_owner)

    def source(self, identifier: GlobalId) -> Source | None:
        """What Storage has under an identifier; None if nothing any more."""
        return self._objects().collections.get(identifier) or self._store.tables.table(identifier)

    def stored_frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """From which time on, and before which, everything is known of what is stored; both 0 if some of it is not."""
        since, upper = BEGINNING, END_OF_TIME
        for identifier in ids:
            source = self.source(identifier)
            if source is None:
                return BEGINNING, BEGINNING
            known = self._store.collection(source.name)
            since = max(since, known.since if known else BEGINNING)
            upper = min(upper, known.upper if known else BEGINNING)
        return since, upper

    def source_names(self, relation: Relation, objects: Objects | None = None) -> list[str]:
        """Names of what is stored, of what a view is worked out."""
        sources = [self.source(identifier) for identifier in self.sources(ids_of(relation), objects)]
        return [source.name for source in sources if source is not None]

    def first_time(self, relation: Relation, objects: Objects) -> int:
        """The first time of a view: the newest at which all is known that it is made of."""
        since, upper = self.stored_frontiers(self.sources(ids_of(relation), objects))
        return max(since, upper - 1, BEGINNING + 1) if upper < END_OF_TIME else self._store.timeline.present()

    # Where it is

    def since(self, relation: Relation) -> int | None:
        """The time from which on all is maintained that a query reads; None if some of it is not, or not known yet."""
        ids, places = ids_of(relation), self.wanted.places
        return self.since_of([places[identifier] for identifier in ids]) if ids <= places.keys() else None

    def since_of(self, places: Collection[GlobalId]) -> int | None:
        """The time from which on some places of the instance can be asked; None if they cannot be, or not yet."""
        frontiers = self.frontiers_of(places)
        return frontiers[0] if frontiers else None

    def frontiers_of(self, places: Collection[GlobalId]) -> tuple[int, int] | None:
        """From which time on, and before which, some places can be asked; None if they cannot be, or not yet."""
        if not self._computing.is_owner or not places:
            return None
        latest, earliest, frontiers = 0, END_OF_TIME, self._computing.controller.frontiers
        for place in places:
            try:
                since, upper = frontiers(place)
            except FlowError:
                return None
            if upper <= since:
                return None
            latest, earliest = max(latest, since), min(earliest, upper)
        return latest, earliest

    def upper_of(self, places: Collection[GlobalId]) -> int:
        """The time before which everything is known of some places of the instance.

        Raises:
            FlowError: something of it cannot be maintained.
        """
        return min(self._computing.controller.frontiers(place)[1] for place in places)

    # Asking

    def stored_error(self, error: SqlError, places: Collection[GlobalId], time: int) -> SqlError:
        """The error as a materialized view has it in Storage at a time, which says since when; else as it is."""
        for place in places:
            name = self._store.tables.name_of(place)
            failure = self._store.tables.first_error(name, time, time + 1) if name else None
            if failure is not None and (failure[1].sqlstate, failure[1].message) == (error.sqlstate, error.message):
                return failure[1]
        return error

    def query(self, relation: Relation, finishing: Finishing) -> Query | None:
        """A query of dataflows; None if it reads something that is not maintained here."""
        moved = self._moved(relation, finishing)
        return Query(*moved) if moved else None

    def _moved(self, relation: Relation, finishing: Finishing) -> tuple[Relation, Finishing] | None:
        """A query over places in the instance; None if it reads something that has none, or nothing."""
        places = self.wanted.places
        if not self._computing.is_owner or not (ids := ids_of(relation)) or not ids <= places.keys():
            return None
        if has_recursion((relation, finishing)):
            return None

        def moved(get: Get) -> Relation:
            return Get(places[get.id], get.types)

        return with_gets(relation, moved), with_gets(finishing, moved)
