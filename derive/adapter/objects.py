"""What names stand for at one moment: items of the catalog of SQL, and the collections of `flow.yaml`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from derive.adapter.catalog import Item, stored_name
from derive.adapter.parser.definition import ObjectKind
from derive.adapter.parser.parse import parse
from derive.adapter.parser.statement import SelectStatement
from derive.adapter.planner.names import NamedColumn, NamedRelation, Names, RelationKind
from derive.adapter.planner.plan import plan_view
from derive.compute.algebra.relation import Get, GlobalId, Relation
from derive.compute.relations.columns import columns_of
from derive.protocol.specs import CollectionSpec

PUBLIC = "public"

_KINDS = {
    ObjectKind.TABLE: RelationKind.TABLE,
    ObjectKind.SOURCE: RelationKind.SOURCE,
    ObjectKind.VIEW: RelationKind.VIEW,
    ObjectKind.MATERIALIZED_VIEW: RelationKind.MATERIALIZED_VIEW,
}


class Objects:
    """What names stand for.

    Args:
        version: of the catalog of SQL.
        items: of the catalog of SQL.
        collections: of `flow.yaml`, by identifier.
        derived: names of the collections that a derivation fills.

    Attributes:
        version: of the catalog of SQL.
        items: by identifier.
        collections: by identifier.
        maintained: views with an index, whose rows are read instead of worked out.
    """

    def __init__(
        self,
        version: int,
        items: Iterable[Item],
        collections: Mapping[GlobalId, CollectionSpec],
        derived: Collection[str] = (),
    ) -> None:
        self.version = version
        self.items = {item.id: item for item in items}
        self.collections = collections
        self._derived = frozenset(derived)
        self.maintained = frozenset(
            item.on for item in self.items.values() if item.kind is ObjectKind.INDEX and item.on
        )
        self._ids = {(PUBLIC, spec.name): id_ for id_, spec in collections.items()}
        self._ids.update({(item.schema, item.name): item.id for item in self.items.values()})
        self._views: dict[GlobalId, Relation] = {}

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """What a name stands for; None if no relation has it."""
        identifier = self._ids.get((schema or PUBLIC, name))
        return None if identifier is None else self.relation(identifier)

    def candidates(self) -> Iterable[str]:
        """Names of all relations."""
        return [name for (_, name), id_ in self._ids.items() if self._kind(id_) is not ObjectKind.INDEX]

    def find(self, schema: str | None, name: str) -> Item | None:
        """The item of a name, which may be an index; None if there is none."""
        identifier = self._ids.get((schema or PUBLIC, name))
        return None if identifier is None else self.items.get(identifier)

    def is_taken(self, name: str) -> bool:
        """Whether something has a name."""
        return (PUBLIC, name) in self._ids

    def relation(self, identifier: GlobalId) -> NamedRelation | None:
        """The relation of an identifier; None if nothing has it, or an index."""
        spec = self.collections.get(identifier)
        if spec is not None:
            columns = tuple(NamedColumn(column.name, column.type, column.nullable) for column in columns_of(spec))
            return NamedRelation(identifier, spec.name, columns, RelationKind.COLLECTION)
        item = self.items.get(identifier)
        if item is None or item.kind is ObjectKind.INDEX:
            return None
        return NamedRelation(identifier, item.name, item.columns, _KINDS[item.kind], self._definition(item))

    def is_sealed_by_hand(self, identifier: GlobalId) -> bool:
        """Whether the adapter lets time pass for something that is stored, since no task does."""
        spec = self.collections.get(identifier)
        if spec is not None:
            return spec.name not in self._derived
        return identifier in self.items and self.items[identifier].is_written

    def users(self, identifiers: Iterable[GlobalId]) -> list[Item]:
        """Items that cannot do without some others, directly or not, the oldest first."""
        used = set(identifiers)
        users = []
        for item in sorted(self.items.values(), key=lambda item: item.id):
            if item.id not in used and not item.uses.isdisjoint(used):
                users.append(item)
                used.add(item.id)
        return users

    def meaning(self, item: Item) -> Relation:
        """What a view is, in terms of what has rows of its own.

        Raises:
            SqlError: something that it needs is no more.
        """
        if item.id not in self._views:
            assert item.definition is not None
            statement = parse(item.definition)
            assert isinstance(statement, SelectStatement)
            names = tuple(column.name for column in item.columns)
            self._views[item.id] = plan_view(statement.query, BoundNames(self, item.bindings), names).relation
        return self._views[item.id]

    def stored(self, item: Item) -> str:
        """What the table of an item is called in Storage."""
        return stored_name(item.schema, item.name)

    def _definition(self, item: Item) -> Relation | None:
        if item.kind is ObjectKind.VIEW and item.id not in self.maintained:
            return self.meaning(item)
        if item.kind is ObjectKind.SOURCE and not item.is_written:
            return Get(min(item.uses), tuple(column.type for column in item.columns))
        return None

    def _kind(self, identifier: GlobalId) -> ObjectKind | None:
        item = self.items.get(identifier)
        return item.kind if item else None


class BoundNames:
    """Names as they were when a view was created.

    Args:
        objects: what there is now.
        bindings: identifiers by name.
    """

    def __init__(self, objects: Objects, bindings: Mapping[str, GlobalId]) -> None:
        self._objects = objects
        self._bindings = bindings

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """What a name stood for."""
        identifier = self._bindings.get(bound_name(schema, name))
        return None if identifier is None else self._objects.relation(identifier)

    def candidates(self) -> Iterable[str]:
        """Names that were known."""
        return self._bindings


class RecordedNames:
    """Names that remember what they were asked for.

    Args:
        names: who knows.

    Attributes:
        bindings: what was asked for, and what it stood for.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.bindings: dict[str, GlobalId] = {}

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """What a name stands for."""
        named = self._names.lookup(schema, name)
        if named is not None:
            self.bindings[bound_name(schema, name)] = named.id
        return named

    def candidates(self) -> Iterable[str]:
        """Names that may have been meant."""
        return self._names.candidates()


def bound_name(schema: str | None, name: str) -> str:
    """A name as bindings have it."""
    return name if schema in {None, PUBLIC} else f"{schema}.{name}"


def listing(objects: Objects) -> Sequence[NamedRelation]:
    """All relations, by name."""
    ids = [*objects.collections, *(item.id for item in objects.items.values() if item.kind is not ObjectKind.INDEX)]
    return sorted((named for id_ in ids if (named := objects.relation(id_))), key=lambda named: named.name)
