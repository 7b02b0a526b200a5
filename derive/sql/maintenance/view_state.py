"""Maintained relations: the dataflows that a catalog desires, and their state: readable times, and sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import takewhile

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import with_gets
from derive.compute.protocol.messages import Export, Index, Materialized, Query
from derive.errors import FlowError, SqlError
from derive.functions.registry import can_fail
from derive.relations.columns import Source
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.building import columns_of
from derive.sql.planner.dependencies import has_recursion, ids_of, types_read
from derive.sql.planner.index_keys import expressions_of
from derive.storage.store import Store
from derive.time import BEGINNING, END_OF_TIME


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a dataflow.

    Attributes:
        relation: the relation.
        export: the export.
        columns: for each table from which the dataflow derives, the names of its columns: values are found by names,
            also in columns that only other dataflows of its group use.
    """

    relation: Relation
    export: Export
    columns: Mapping[GlobalId, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class DesiredDataflows:
    """The desired dataflows of one version of the catalog.

    Attributes:
        objects: the objects of this version of the catalog; None before the first.
        dataflows: for each identifier, the relation over stored collections and other dataflows, and the export; inputs
            come first.
        places: for each relation, the dataflow with its rows.
        unfit: for each relation that should be maintained but no longer fits its inputs, the error.
        definitions: for each dataflow, its definition; the dataflow is created again when it changes.
    """

    objects: Objects | None
    dataflows: Mapping[GlobalId, tuple[Relation, Export]]
    places: Mapping[GlobalId, GlobalId]
    unfit: Mapping[GlobalId, FlowError] = field(default_factory=dict)
    definitions: Mapping[GlobalId, Definition] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Return the version of the catalog; -1 before the first."""
        return -1 if self.objects is None else self.objects.version

    def are_current(self, places: Collection[GlobalId], objects: Objects) -> bool:
        """Return whether dataflows have the definitions of other objects, too."""
        return self.objects is not None and objects.has_same_items(places, self.objects)

    def sources(self, identifier: GlobalId) -> frozenset[GlobalId]:
        """Return the stored relations from which a dataflow derives, directly or indirectly."""
        read = ids_of(self.dataflows[identifier][0])
        below = (self.sources(id_) for id_ in read if id_ in self.dataflows)
        return frozenset(id_ for id_ in read if id_ not in self.dataflows).union(*below)

    @property
    def views(self) -> frozenset[GlobalId]:
        """Return the dataflows that are materialized views."""
        return frozenset(
            identifier for identifier, (_, export) in self.dataflows.items() if isinstance(export, Materialized)
        )


NOTHING = DesiredDataflows(None, {}, {})


def desired_dataflows(objects: Objects, definitions: Mapping[GlobalId, int]) -> DesiredDataflows:
    """Return the desired dataflows, without dataflows whose inputs are missing.

    Args:
        objects: the objects.
        definitions: numbers of the definitions of materialized views.
    """
    plans = _Plans(objects)
    dataflows: dict[GlobalId, tuple[Relation, Export]] = {}
    places: dict[GlobalId, GlobalId] = {}
    unfit: dict[GlobalId, FlowError] = {}
    for item in sorted(objects.items.values(), key=lambda item: item.id):
        is_view = item.kind is ObjectKind.MATERIALIZED_VIEW
        subject = item.id if is_view else item.on
        if subject is None or not (is_view or item.kind is ObjectKind.INDEX):
            continue
        try:
            export = Materialized(definitions.get(item.id, 0))
            dataflow = (plans.view(item, item.id), export) if is_view else plans.index(item, subject)
            _require_fit(objects.items.get(subject, item), dataflow[0], unfit)
        except FlowError as error:
            unfit.setdefault(subject, error)
        else:
            dataflows[item.id] = dataflow
            places.setdefault(subject, item.id)
    order = TopologicalSorter({id_: ids_of(relation) & dataflows.keys() for id_, (relation, _) in dataflows.items()})
    ordered = {id_: dataflows[id_] for id_ in order.static_order()}
    return DesiredDataflows(objects, ordered, places, unfit, _definitions(objects, ordered))


def _definitions(objects: Objects, dataflows: Mapping[GlobalId, tuple[Relation, Export]]) -> dict[GlobalId, Definition]:
    """Return the definitions of dataflows, which come after their inputs."""
    tables = {item.id: item for item in objects.items.values() if item.kind is ObjectKind.TABLE}
    definitions: dict[GlobalId, Definition] = {}
    for identifier, (relation, export) in dataflows.items():
        columns: dict[GlobalId, tuple[str, ...]] = {}
        for read in ids_of(relation):
            if read in definitions:
                columns |= definitions[read].columns
            elif read in tables:
                columns[read] = tuple(column.name for column in tables[read].columns)
        definitions[identifier] = Definition(relation, export, columns)
    return definitions


def _require_fit(item: Item, relation: Relation, unfit: Mapping[GlobalId, FlowError]) -> None:
    """Check that the inputs of an item are maintained.

    Raises:
        SqlError: an input does not fit its own inputs.
    """
    for identifier in sorted(ids_of(relation) & unfit.keys()):
        error = unfit[identifier]
        sqlstate = error.sqlstate if isinstance(error, SqlError) else "55000"
        message = f'{item.kind.value} "{item.name}" has an input that cannot be maintained: {error.message}'
        raise SqlError(sqlstate, message, hint=error.hint)


class _Plans:
    """Plans dataflows. A dataflow uses only older indexes, so a new index changes no other dataflow."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._indexes: dict[GlobalId, list[GlobalId]] = defaultdict(list)
        for item in objects.items.values():
            if item.kind is ObjectKind.INDEX and item.on is not None:
                self._indexes[item.on].append(item.id)

    def view(self, view: Item, before: GlobalId) -> Relation:
        """Return the relation of a view, over indexes older than `before`."""

        def kept(get: Get) -> Relation:
            item = self._objects.items.get(get.id)
            if item is None or item.kind is not ObjectKind.VIEW:
                return get
            oldest = min(self._indexes.get(get.id, ()), default=before)
            return Get(oldest, get.types) if oldest < before else self.view(item, before)

        return with_gets(self._objects.meaning(view), kept)

    def index(self, index: Item, subject: GlobalId) -> tuple[Relation, Index]:
        """Return the relation of an index, and the expressions by which its rows are looked up.

        Expressions that can fail, as sums that can be out of range, are evaluated only for the rows of a query.
        """
        named = self._objects.relation(subject)
        if named is None:
            raise SqlError("42P01", "the indexed relation was dropped", hint="DROP the index.")
        names = [column.name for column in named.columns]
        if not set(index.indexed) <= set(names):
            raise SqlError(
                "42703",
                "the indexed columns of the relation were dropped or renamed",
                hint="DROP the index, and CREATE it on present columns.",
            )
        if index.parts:
            key = tuple(takewhile(lambda part: not can_fail(part), expressions_of(named, index.parts)))
        else:
            columns = columns_of(named.relation)
            key = tuple(columns[names.index(name)] for name in index.indexed)
        export = Index(key)
        item = self._objects.items.get(subject)
        if item is not None and item.kind is ObjectKind.VIEW:
            return self.view(item, index.id), export
        return named.relation, export


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
        self._unwritten: set[GlobalId] = set()

    # Sources

    def sources(self, ids: Collection[GlobalId], objects: Objects | None = None) -> frozenset[GlobalId]:
        """Return the stored relations from which relations derive, through views."""
        objects = objects or self._objects()
        sources: set[GlobalId] = set()
        pending = list(ids)
        while pending:
            identifier = pending.pop()
            item = objects.items.get(identifier)
            if item is not None and self._is_evaluated(item):
                pending += ids_of(objects.meaning(item))
            else:
                sources.add(identifier)
        return frozenset(sources)

    def expanded(self, relation: Relation, objects: Objects) -> Relation:
        """Return a relation over stored relations, with all views expanded."""

        def stored(get: Get) -> Relation:
            item = objects.items.get(get.id)
            if item is not None and self._is_evaluated(item):
                return self.expanded(objects.meaning(item), objects)
            return get

        return with_gets(relation, stored)

    def _is_evaluated(self, item: Item) -> bool:
        """Return whether queries evaluate the definition of an item, and read no stored rows of it."""
        if item.kind is not ObjectKind.MATERIALIZED_VIEW:
            return item.kind is ObjectKind.VIEW
        return self._computing.is_owner or self._is_unwritten(item.id)

    def _is_unwritten(self, identifier: GlobalId) -> bool:
        """Return whether no process has stored rows of a materialized view yet.

        The answer is the same for all parts of a statement, because it remains true in this process.
        """
        if identifier not in self._unwritten:
            since, upper = self.stored_frontiers([identifier])
            if upper > since:
                return False
            self._unwritten.add(identifier)
        return True

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
        """Return the readable times of dataflows, a half-open interval; None if a dataflow is not readable.

        A dataflow whose definition has changed is not readable, because it finds values by their former names.
        """
        if not self._computing.is_owner or not places or not self.desired.are_current(places, self._objects()):
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
        """Return a query over dataflows; None if a relation has no dataflow, or the query reads no relation.

        The rows of a statement that writes have none. The dataflow of a dropped index is not read, because its table
        may have other columns since.
        """
        places = self.desired.places
        ids = types_read(relation).keys()
        if not self._computing.is_owner or not ids or not ids <= places.keys():
            return None
        if has_recursion((relation, finishing)) or not {places[one] for one in ids} <= self._objects().items.keys():
            return None

        def moved(get: Get) -> Relation:
            return Get(places[get.id], get.types)

        return with_gets(relation, moved), with_gets(finishing, moved)
