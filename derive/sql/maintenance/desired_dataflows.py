"""The desired dataflows of a catalog: one for each materialized view and index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from derive.algebra.relation import Get, GlobalId, Relation
from derive.algebra.rewrite import with_gets
from derive.compute.protocol.messages import Export, Index, Materialized
from derive.errors import FlowError, SqlError
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import ids_of


@dataclass(frozen=True, slots=True)
class DesiredDataflows:
    """The desired dataflows of one version of the catalog.

    Attributes:
        version: version of the catalog.
        dataflows: for each identifier, the relation over stored collections and other dataflows, and the export; inputs
            come first.
        places: for each relation, the dataflow with its rows.
        unfit: for each relation that should be maintained but no longer fits its inputs, the error.
    """

    version: int
    dataflows: Mapping[GlobalId, tuple[Relation, Export]]
    places: Mapping[GlobalId, GlobalId]
    unfit: Mapping[GlobalId, FlowError] = field(default_factory=dict)

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


NOTHING = DesiredDataflows(-1, {}, {})


def desired_dataflows(objects: Objects) -> DesiredDataflows:
    """Return the desired dataflows, without dataflows whose inputs are missing."""
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
            dataflow = (plans.view(item, item.id), Materialized()) if is_view else plans.index(item, subject)
            _require_fit(objects.items.get(subject, item), dataflow[0], unfit)
        except FlowError as error:
            unfit.setdefault(subject, error)
        else:
            dataflows[item.id] = dataflow
            places.setdefault(subject, item.id)
    order = TopologicalSorter({id_: ids_of(relation) & dataflows.keys() for id_, (relation, _) in dataflows.items()})
    return DesiredDataflows(objects.version, {id_: dataflows[id_] for id_ in order.static_order()}, places, unfit)


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
        """Return the relation of an index, and its indexed columns."""
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
        export = Index(tuple(names.index(name) for name in index.indexed))
        item = self._objects.items.get(subject)
        if item is not None and item.kind is ObjectKind.VIEW:
            return self.view(item, index.id), export
        return named.relation, export
