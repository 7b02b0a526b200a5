"""The state of maintained relations: their dataflows, readable times, and sources."""

from __future__ import annotations

from collections.abc import Callable, Collection

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import with_gets
from derive.compute.protocol.messages import Query
from derive.errors import FlowError, SqlError
from derive.relations.columns import Source
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.desired_dataflows import NOTHING, DesiredDataflows
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import has_recursion, ids_of
from derive.storage.store import Store
from derive.time import BEGINNING, END_OF_TIME


class Maintained:
    """Maintained relations, for their readers. `Maintenance` sets the desired dataflows.

    Args:
        store: the data folder.
        objects: returns the current names.
        computing: the controller and its instances.

    Attributes:
        desired: the desired dataflows.
    """

    def __init__(self, store: Store, objects: Callable[[], Objects], computing: ComputeInstances) -> None:
        self._store, self._objects, self._computing = store, objects, computing
        self.desired: DesiredDataflows = NOTHING

    # Sources

    def sources(self, ids: Collection[GlobalId], objects: Objects | None = None) -> frozenset[GlobalId]:
        """Return the stored relations from which relations derive, through views."""
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
        """Return a relation over stored relations, with all views expanded."""
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
        """Return the collection of an identifier in Storage; None if there is none."""
        return self._objects().collections.get(identifier) or self._store.tables.table(identifier)

    def stored_frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """Return the readable times of stored relations, a half-open interval; both are 0 if a relation is missing."""
        since, upper = BEGINNING, END_OF_TIME
        for identifier in ids:
            source = self.source(identifier)
            if source is None:
                return BEGINNING, BEGINNING
            known = self._store.collection(source.name)
            since = max(since, known.since if known else BEGINNING)
            upper = min(upper, known.upper if known else BEGINNING)
        return since, upper

    # Readable times

    def since(self, relation: Relation) -> int | None:
        """Return the time from which all relations of a query are maintained; None if one is not maintained yet."""
        ids, places = ids_of(relation), self.desired.places
        return self.since_of([places[identifier] for identifier in ids]) if ids <= places.keys() else None

    def since_of(self, places: Collection[GlobalId]) -> int | None:
        """Return the time from which dataflows are readable; None if a dataflow is not readable yet."""
        frontiers = self.frontiers_of(places)
        return frontiers[0] if frontiers else None

    def frontiers_of(self, places: Collection[GlobalId]) -> tuple[int, int] | None:
        """Return the readable times of dataflows, a half-open interval; None if a dataflow is not readable."""
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
        """Return the time before which all dataflows are complete.

        Raises:
            FlowError: a dataflow cannot be maintained.
        """
        return min(self._computing.controller.frontiers(place)[1] for place in places)

    # Queries

    def stored_error(self, error: SqlError, places: Collection[GlobalId], time: int) -> SqlError:
        """Return the error of a view with the time of its begin, if Storage has the error; else the given error."""
        for place in places:
            name = self._store.tables.name_of(place)
            failure = self._store.tables.first_error(name, time, time + 1) if name else None
            if failure is not None and (failure[1].sqlstate, failure[1].message) == (error.sqlstate, error.message):
                return failure[1]
        return error

    def query(self, relation: Relation, finishing: Finishing) -> Query | None:
        """Return a query over dataflows; None if one of its relations is not maintained."""
        moved = self._moved(relation, finishing)
        return Query(*moved) if moved else None

    def _moved(self, relation: Relation, finishing: Finishing) -> tuple[Relation, Finishing] | None:
        """Return a query over dataflows; None if a relation has no dataflow, or the query reads no relation."""
        places = self.desired.places
        if not self._computing.is_owner or not (ids := ids_of(relation)) or not ids <= places.keys():
            return None
        if has_recursion((relation, finishing)):
            return None

        def moved(get: Get) -> Relation:
            return Get(places[get.id], get.types)

        return with_gets(relation, moved), with_gets(finishing, moved)
