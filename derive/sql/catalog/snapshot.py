"""A snapshot of all names in the catalog of SQL and in `flow.yaml`; and the names of a DDL transaction.

An item of SQL keeps the columns of its creation, because its readers and its table in Storage rely on them. If the
collections no longer have these columns, reading fails with an error and a hint.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property

from derive.algebra.expression import Call, Expression, Literal
from derive.algebra.relation import Constant, Get, GlobalId, Project, Relation
from derive.algebra.rewrite import mentions, with_gets
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_function
from derive.functions.scalar.text import quoted_name
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.relations.columns import columns_of
from derive.sql.catalog.fit import as_recorded, disagreement, relation_of_source, require_compatible
from derive.sql.catalog.items import (
    FIRST_HASHED,
    PROVISIONAL,
    Change,
    IdentitySequence,
    Item,
    identity_sequences,
    is_provisional,
    item_of,
)
from derive.sql.catalog.system_relations import system_relation
from derive.sql.parser.ast import CommonTable, RelationReference
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import TEMPORARY, ObjectKind, SelectStatement
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.functions import chosen, plan_body
from derive.sql.planner.interfaces import (
    FIRST_SYSTEM_ID,
    Constraint,
    NamedColumn,
    NamedFunction,
    NamedRelation,
    Names,
    RelationKind,
)
from derive.sql.planner.plan import plan_view
from derive.sql.planner.planned import is_read_time, of_read
from derive.storage.metadata.definitions import StoredItem
from derive.storage.tables import Tables


def is_temporary(schema: str) -> bool:
    """Return whether a schema is that of a session's temporary relations."""
    return schema.startswith(TEMPORARY)


PUBLIC = "public"
FIRST_OID = 16_384
"""First oid of user objects, as in PostgreSQL; types and system objects have lower oids."""
_SCHEMAS = ""
"""The name of no schema, under which the names of schemas are kept."""

_VERSIONS = itertools.count(-2, -1)

_KINDS = {
    ObjectKind.TABLE: RelationKind.TABLE,
    ObjectKind.SOURCE: RelationKind.SOURCE,
    ObjectKind.VIEW: RelationKind.VIEW,
    ObjectKind.MATERIALIZED_VIEW: RelationKind.MATERIALIZED_VIEW,
}


class Objects:
    """A snapshot of all names.

    Args:
        version: version of the catalog of SQL.
        items: items of the catalog of SQL.
        collections: collections of `flow.yaml`, by identifier.
        derived: names of the derived collections.
        path: schemas of names without a schema, in order.
        zone: time zone of the session; None for UTC.

    Attributes:
        version: version of the catalog of SQL, or a negative number for an uncommitted transaction or another path.
        items: items by identifier.
        collections: collections by identifier.
        maintained: identifiers of indexed views, whose rows are read from an instance.
    """

    def __init__(
        self,
        version: int,
        items: Iterable[Item],
        collections: Mapping[GlobalId, CollectionSpec],
        derived: Collection[str] = (),
        path: tuple[str, ...] = (PUBLIC,),
        zone: str | None = None,
    ) -> None:
        self.version = version
        self.path = path
        self._zone = zone
        self._seen: dict[tuple[tuple[str, ...], str | None], Objects] = {}
        self.items = {item.id: item for item in items}
        self.collections = collections
        self._derived = frozenset(derived)
        self.maintained = frozenset(
            item.on
            for item in self.items.values()
            if item.kind is ObjectKind.INDEX and item.on and not is_provisional(item.id)
        )
        self._ids = {(PUBLIC, spec.name): id_ for id_, spec in collections.items()}
        self._ids.update({(item.schema, item.name): item.id for item in self.items.values()})
        self._views: dict[GlobalId, Relation] = {}
        self._timed: dict[GlobalId, bool] = {}
        self._functions: dict[GlobalId, NamedFunction] = {}

    def with_items(self, items: Iterable[Item]) -> Objects:
        """Return a snapshot with other items and a new version, for an uncommitted transaction."""
        return Objects(next(_VERSIONS), items, self.collections, self._derived, self.path, self.zone)

    def with_later(self, now: Objects) -> Objects:
        """Return these names with the items that were created later, unless these read items that have changed."""
        names = {(item.schema, item.name) for item in self.items.values()}
        later = {
            id_: item
            for id_, item in now.items.items()
            if id_ not in self.items and (item.schema, item.name) not in names
        }
        known = self.collections.keys() | {id_ for id_, item in self.items.items() if now.items.get(id_) == item}
        before = -1
        while len(later) != before:
            before = len(later)
            later = {id_: item for id_, item in later.items() if item.uses <= known | later.keys()}
        return self.with_items([*self.items.values(), *later.values()]) if later else self

    @property
    def zone(self) -> str | None:
        """Return the time zone of the session; None for UTC."""
        return self._zone

    def seen_by(self, path: tuple[str, ...], zone: str | None) -> Objects:
        """Return a snapshot of the same items for a session with another path or another time zone."""
        if path == self.path and zone == self.zone:
            return self
        if (path, zone) not in self._seen:
            items, version = self.items.values(), next(_VERSIONS)
            self._seen[path, zone] = Objects(version, items, self.collections, self._derived, path, zone)
        return self._seen[path, zone]

    @property
    def schemas(self) -> list[str]:
        """Return the names of the schemas, `public` first."""
        return [PUBLIC, *(item.name for item in self.items.values() if item.kind is ObjectKind.SCHEMA)]

    @property
    def path_schemas(self) -> tuple[str, ...]:
        """Return the schemas of the path that exist; the first one is that of new relations."""
        known = self.schemas
        return tuple(schema for schema in self.path if schema in known)

    def schema(self, name: str) -> Item | None:
        """Return a schema that CREATE SCHEMA has made; None if there is none."""
        return self.items.get(self._ids.get((_SCHEMAS, name), -1))

    @property
    def temporary(self) -> str | None:
        """Return the schema of the session's temporary relations; None if it has none."""
        return next(filter(is_temporary, self.path), None)

    def _identifier(self, schema: str | None, name: str) -> GlobalId | None:
        if schema is not None and is_temporary(schema):
            schema = self.temporary if schema in {TEMPORARY, self.temporary} else None
            return None if schema is None else self._ids.get((schema, name))
        schemas = self.path if schema is None else (schema,)
        return next((id_ for own in schemas if (id_ := self._ids.get((own, name))) is not None), None)

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return the relation of a name; None if no relation has the name.

        A name without a schema stands for a system relation before a table, as in PostgreSQL.
        """
        if schema is None and (system := system_relation(None, name)) is not None:
            return system
        identifier = self._identifier(schema, name)
        if identifier is not None:
            return self.relation(identifier)
        numbered = self.identity_sequence(schema, name)
        if numbered is not None:
            return _sequence_relation(numbered.id, name, numbered.table.schema, numbered.sequence.start)
        return system_relation(schema, name)

    @cached_property
    def identity_sequences(self) -> Mapping[tuple[str, str], IdentitySequence]:
        """Return the sequences of all identity columns by schema and name."""
        return identity_sequences(self.items.values())

    def identity_sequence(self, schema: str | None, name: str) -> IdentitySequence | None:
        """Return the sequence of an identity column by its name; None if no column has such a sequence."""
        own = self.temporary if schema is not None and is_temporary(schema) else schema
        schemas = self.path if schema is None else (own or "",)
        return next((one for place in schemas if (one := self.identity_sequences.get((place, name)))), None)

    def is_written_by_others(self, ids: Collection[GlobalId]) -> bool:
        """Return whether writers other than SQL statements and source feeders write some of the relations."""
        return any(identifier not in self.items or not self.items[identifier].is_written for identifier in ids)

    def candidates(self) -> Iterable[str]:
        """Return the names of all relations."""
        others = {ObjectKind.INDEX, ObjectKind.SCHEMA, ObjectKind.FUNCTION, ObjectKind.DOMAIN}
        return [name for (_, name), id_ in self._ids.items() if self._kind(id_) not in others]

    def find(self, schema: str | None, name: str) -> Item | None:
        """Return the item of a name, also an index; None if there is none."""
        identifier = self._identifier(schema, name)
        return None if identifier is None else self.items.get(identifier)

    def functions(self, schema: str | None, name: str) -> list[Item]:
        """Return the functions of a name in a schema, or in the schemas of the path: one for each signature."""
        schemas = self.path if schema is None else (schema,)
        by_signature: dict[str, Item] = {}
        for own in reversed(schemas):
            of_schema = (item for item in self.items.values() if item.schema == own)
            by_signature |= {item.name: item for item in of_schema if is_function(item, name)}
        return list(by_signature.values())

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> NamedFunction | None:
        """Return the function in SQL that takes arguments of these types; None if there is none."""
        return self.chosen(self.functions(schema, name), types)

    @cached_property
    def references(self) -> Mapping[GlobalId, Sequence[tuple[NamedRelation, Constraint]]]:
        """Return the foreign keys by the table that they refer to, each with its own table."""
        keys: dict[GlobalId, list[tuple[NamedRelation, Constraint]]] = {}
        for item in self.items.values():
            table = self.described(item.id) if item.constraints else None
            for one in table.foreign_keys if table else ():
                if table is not None and one.reference is not None:
                    keys.setdefault(one.reference.table or item.id, []).append((table, one))
        return keys

    def referring(self, identifier: GlobalId) -> list[tuple[NamedRelation, Constraint]]:
        """Return the foreign keys that refer to a table, each with its table; those of the table itself are first."""
        return sorted(self.references.get(identifier, ()), key=lambda pair: pair[0].id != identifier)

    def domain(self, name: str) -> NamedColumn | None:
        """Return a column of a domain in the schemas of the path; None if the domain does not exist.

        Raises:
            SqlError: the name is that of a relation, whose rows are no values of a type (0A000).
        """
        item = self.find(None, name)
        if item is not None and item.kind in _OF_ROWS:
            hint = "Use jsonb, and to_jsonb(…) for its rows."
            raise SqlError("0A000", f'the row type of {item.kind.value} "{name}" is not supported as a type', hint=hint)
        return item.columns[0] if item is not None and item.kind is ObjectKind.DOMAIN else None

    def chosen(self, functions: Iterable[Item], types: Sequence[Type]) -> NamedFunction | None:
        """Return the function, of some, that takes arguments of these types; None if none does."""
        return chosen([self.resolved_function(item) for item in functions], types)

    def resolved_function(self, item: Item) -> NamedFunction:
        """Return the function of an item.

        Raises:
            SqlError: a relation that the function reads does not exist.
        """
        if item.id not in self._functions:
            self._functions[item.id] = _function_of(item, BoundNames(self, item))
        return self._functions[item.id]

    def name_of(self, identifier: GlobalId) -> str | None:
        """Return an item's name with its schema, for messages; None if there is no such item."""
        item = self.items.get(identifier)
        return None if item is None else f"{item.schema}.{item.name}"

    def is_taken(self, name: str, schema: str) -> bool:
        """Return whether a name is in use in a schema, also by the index of a key or the sequence of a column."""
        items = (item for item in self.items.values() if item.schema == schema)
        keys = (one for item in items for one in item.constraints if one.is_key)
        is_known = (schema, name) in self._ids or (schema, name) in self.identity_sequences
        return is_known or any(key.name == name for key in keys)

    def relation(self, identifier: GlobalId) -> NamedRelation | None:
        """Return the relation of an identifier; None if there is none, or if it is an index."""
        spec = self.collections.get(identifier)
        if spec is not None:
            columns = tuple(NamedColumn(column.name, column.type, column.nullable) for column in columns_of(spec))
            return NamedRelation(identifier, spec.name, columns, RelationKind.COLLECTION)
        item = self.items.get(identifier)
        if item is not None and item.kind is ObjectKind.SEQUENCE:
            start = item.origin["start"]
            assert isinstance(start, int)
            return _sequence_relation(item.id, item.name, item.schema, start)
        named = self.described(identifier)
        return replace(named, definition=self._definition(item)) if named and item else named

    def described(self, identifier: GlobalId) -> NamedRelation | None:
        """Return the relation of an identifier without its definition, which may no longer fit its inputs."""
        if identifier in self.collections:
            return self.relation(identifier)
        item = self.items.get(identifier)
        kind = None if item is None else _KINDS.get(item.kind)
        if item is None or kind is None:
            return None
        return NamedRelation(
            identifier, item.name, item.columns, kind, constraints=item.constraints, schema=item.schema
        )

    def is_sealed_by_hand(self, identifier: GlobalId) -> bool:
        """Return whether SQL advances the `upper` of a stored relation, because no task advances it."""
        spec = self.collections.get(identifier)
        if spec is not None:
            return spec.name not in self._derived
        return identifier in self.items and self.items[identifier].is_written

    def users(self, identifiers: Iterable[GlobalId]) -> list[Item]:
        """Return the items that depend on some identifiers, directly or not, the oldest first."""
        used = set(identifiers)
        users: dict[GlobalId, Item] = {}
        known = -1
        while len(users) > known:  # an altered table is newer than its views
            known = len(users)
            for item in self.items.values():
                if item.id not in used and not item.uses.isdisjoint(used):
                    users[item.id] = item
                    used.add(item.id)
        return [users[identifier] for identifier in sorted(users)]

    def meaning(self, item: Item) -> Relation:
        """Return the definition of a view over stored and maintained relations; `now()` is the time of the read.

        Raises:
            SqlError: a relation that the view reads does not exist.
        """
        if item.id not in self._views:
            assert item.definition is not None
            statement = parse(item.definition)
            assert isinstance(statement, SelectStatement)
            names = tuple(column.name for column in item.columns)
            try:
                view = plan_view(statement.query, BoundNames(self, item), names)
            except SqlError as error:
                if error.sqlstate == "54001":
                    raise  # the limit on nested views is exceeded
                raise disagreement(item, error.sqlstate, error.message, tuple(item.bindings)) from error
            require_compatible(item, view)
            self._views[item.id] = of_read(view.relation)
        return self._views[item.id]

    def inherit(self, before: Objects) -> None:
        """Take the definitions of views from an earlier snapshot, as far as all that they read is unchanged."""
        same: dict[GlobalId, bool] = {}

        def is_same(identifier: GlobalId) -> bool:
            if identifier not in same:
                same[identifier] = identifier in self.collections
                item = self.items.get(identifier)
                # Views over an indexed view read its rows, and not its definition.
                is_equally_read = (identifier in self.maintained) is (identifier in before.maintained)
                if item is not None and is_equally_read and item == before.items.get(identifier):
                    same[identifier] = all(map(is_same, item.bindings.values()))
            return same[identifier]

        if self.collections == before.collections:
            self._views |= {id_: relation for id_, relation in before._views.copy().items() if is_same(id_)}

    def has_same_items(self, ids: Collection[GlobalId], others: Objects) -> bool:
        """Return whether some items, and all items that they use, are the same in other objects."""
        if self.version == others.version:
            return True
        pending, seen = set(ids), set[GlobalId]()
        while pending:
            identifier = pending.pop()
            seen.add(identifier)
            item = self.items.get(identifier)
            if item != others.items.get(identifier):
                return False
            if item is not None:
                pending |= item.uses - seen
        return True

    def are_timed(self, ids: Collection[GlobalId]) -> bool:
        """Return whether rows of some relations depend on the time of the read, directly or through views."""
        return any(self._is_timed(item) for id_ in ids if (item := self.items.get(id_)) and item.definition is not None)

    def _is_timed(self, item: Item) -> bool:
        if item.id not in self._timed:
            try:
                relation = self.meaning(item)
                is_timed = mentions(relation, is_read_time) or self.are_timed(ids_of(relation))
            except SqlError:  # the view does not fit its inputs; its rows are not read
                is_timed = False
            self._timed[item.id] = is_timed
        return self._timed[item.id]

    def expanded(self, relation: Relation) -> Relation:
        """Return a relation over stored and maintained relations, with views expanded."""

        def stored(get: Get) -> Relation:
            item = self.items.get(get.id)
            is_view = item is not None and item.kind is ObjectKind.VIEW
            return self.expanded(self.meaning(item)) if item is not None and is_view else get

        return with_gets(relation, stored)

    def _definition(self, item: Item) -> Relation | None:
        is_maintained = item.kind is ObjectKind.MATERIALIZED_VIEW and not is_provisional(item.id)
        if item.definition is not None and not is_maintained and item.id not in self.maintained:
            return self.meaning(item)
        if item.kind is ObjectKind.SOURCE and not item.is_written:
            return relation_of_source(item, self.relation(min(item.uses)))
        return None

    def are_maintained(self, ids: Collection[GlobalId]) -> bool:
        """Return whether instances maintain the rows of all these relations."""
        return all(id_ in self.maintained or self._kind(id_) is ObjectKind.MATERIALIZED_VIEW for id_ in ids)

    def _kind(self, identifier: GlobalId) -> ObjectKind | None:
        item = self.items.get(identifier)
        return item.kind if item else None


def _sequence_relation(identifier: int, name: str, schema: str, start: int) -> NamedRelation:
    """Return the one row of a sequence, as queries read it: the last number, and whether it was given."""
    function = resolve_function("pg_sequence_last_value", (Type.REGCLASS,)).function
    last = Call(function, (Literal(FIRST_OID + identifier, Type.REGCLASS),), Type.BIGINT)
    values: tuple[Expression, ...] = (
        Call("coalesce", (last, Literal(start, Type.BIGINT)), Type.BIGINT),
        Literal(0, Type.BIGINT),
        Call("is_not_null", (last,), Type.BOOLEAN),
    )
    names = ("last_value", "log_cnt", "is_called")
    columns = tuple(NamedColumn(own, value.type, False) for own, value in zip(names, values, strict=True))
    rows = Project(Constant(((),), ()), values)
    return NamedRelation(identifier, name, columns, RelationKind.VIEW, rows, schema=schema)


def is_function(item: Item, name: str) -> bool:
    """Return whether an item is a function of a name, with any arguments."""
    return item.kind is ObjectKind.FUNCTION and item.origin["name"] == name


def function_types(item: Item) -> tuple[tuple[tuple[str | None, Type], ...], Type]:
    """Return name and type of each argument of a function, and the type of its value."""
    described = item.origin["arguments"]
    assert isinstance(described, list)
    return tuple((name, Type(kind)) for name, kind in described), Type(item.origin["result"])


def _function_of(item: Item, names: BoundNames) -> NamedFunction:
    """Return a function of the catalog.

    Raises:
        SqlError: a relation that the function reads does not exist.
    """
    assert item.definition is not None
    statement = parse(item.definition)
    assert isinstance(statement, SelectStatement)
    arguments, result = function_types(item)
    name = str(item.origin["name"])
    try:
        body = plan_body(statement.query, names, name, arguments, result)
    except SqlError as error:
        raise disagreement(item, error.sqlstate, error.message, tuple(item.bindings)) from error
    return NamedFunction(item.id, item.schema, name, arguments, result, bool(item.origin["is_strict"]), body)


def stored_objects(version: int, items: Iterable[StoredItem], tables: Tables, catalog: CatalogSpec | None) -> Objects:
    """Return the names in a data folder.

    Args:
        version: version of the catalog of SQL.
        items: items of the catalog of SQL.
        tables: tables of the data folder.
        catalog: the catalog of `flow.yaml`; None if missing.
    """
    collections: dict[GlobalId, CollectionSpec] = {}
    for spec in catalog.collections.values() if catalog else ():
        identifier = tables.id_of(spec.name)
        if identifier is not None and tables.table(identifier) is None:
            collections[identifier] = spec
    return Objects(version, map(item_of, items), collections, catalog.derivations if catalog else ())


class BoundNames:
    """The names of a view, as they were when the view was created; its time zone is UTC.

    Args:
        objects: the current names.
        view: the view with its bindings.
    """

    def __init__(self, objects: Objects, view: Item) -> None:
        self._objects = objects
        self._bindings, self._read = view.bindings, view.read
        self.zone = None

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return the relation that a name had; None if the view has no such name."""
        bound = bound_name(schema, name)
        if bound not in self._bindings and schema == PUBLIC:
            bound = name  # views of earlier versions bind names in public without the schema
        identifier = self._bindings.get(bound)
        if identifier is None:
            return system_relation(schema, name)
        named = self._objects.relation(identifier)
        return as_recorded(named, self._read[bound]) if named and bound in self._read else named

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> NamedFunction | None:
        """Return the function that a call had; None if the view has no such call."""
        items = (
            item
            for bound, identifier in self._bindings.items()
            if bound.startswith(f"{bound_name(schema, name)}(") and (item := self._objects.items.get(identifier))
        )
        return self._objects.chosen(items, types)

    def domain(self, name: str) -> NamedColumn | None:
        """Return a column of the domain that a name meant; None if the view has no such name."""
        item = self._objects.items.get(self._bindings.get(f"{name} domain", -1))
        return None if item is None else item.columns[0]

    def candidates(self) -> Iterable[str]:
        """Return the names that the view binds."""
        return self._bindings


_OF_ROWS = frozenset({ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.SOURCE})
"""Kinds of objects that are types of rows in PostgreSQL."""


class RecordedNames:
    """Names that record all look-ups; the time zone is UTC, which definitions have.

    Args:
        names: the names to look up.

    Attributes:
        bindings: identifiers of the names that were looked up.
        read: columns of the tables, and of the collections of `flow.yaml`, among them.
        schemas: for each name that was looked up without a schema, and is in another schema than `public`: its schema.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.zone = None
        self.bindings: dict[str, GlobalId] = {}
        self.read: dict[str, tuple[str, ...]] = {}
        self.schemas: dict[str, str] = {}

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return the relation of a name, and record the look-up.

        Raises:
            SqlError: the relation is the sequence of a column (0A000).
        """
        named = self._names.lookup(schema, name)
        if named is not None and FIRST_HASHED <= named.id < FIRST_SYSTEM_ID:
            message = "views and functions that read the sequence of a column are not supported"
            raise SqlError("0A000", message, hint="Read the sequence in a query.")
        if named is not None and named.kind is not RelationKind.SYSTEM:
            self.bindings[bound_name(schema, name)] = named.id
            if schema is None and named.schema != PUBLIC:
                self.schemas[name] = named.schema
            if named.kind in {RelationKind.COLLECTION, RelationKind.TABLE}:
                self.read[bound_name(schema, name)] = tuple(column.name for column in named.columns)
        return named

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> NamedFunction | None:
        """Return a function in SQL, and record the look-up."""
        named = self._names.function(schema, name, types)
        if named is not None:
            self.bindings[bound_name(schema, named.signature)] = named.id
        return named

    def domain(self, name: str) -> NamedColumn | None:
        """Return a column of a domain, and record the look-up."""
        named = self._names.domain(name)
        if named is not None and named.domain is not None:
            self.bindings[f"{name} domain"] = named.domain.id
        return named

    def candidates(self) -> Iterable[str]:
        """Return similar names for hints."""
        return self._names.candidates()


def with_schemas(definition: str, schemas: Mapping[str, str]) -> str:
    """Return the text of a query in which names of relations in other schemas than `public` have the schema."""
    statement = parse(definition)
    nodes = list(_nodes(statement))
    common = {node.name for node in nodes if isinstance(node, CommonTable)}
    references = [node.name for node in nodes if isinstance(node, RelationReference)]
    for name in sorted(references, key=lambda name: name.offset, reverse=True):
        if name.schema is None and name.name in schemas and name.name not in common:
            definition = f"{definition[: name.offset]}{quoted_name(schemas[name.name])}.{definition[name.offset :]}"
    return definition


def _nodes(node: object) -> Iterator[object]:
    """Yield all parts of a syntax tree."""
    if isinstance(node, tuple):
        for part in node:
            yield from _nodes(part)
    elif is_dataclass(node):
        yield node
        for item in fields(node):
            yield from _nodes(getattr(node, item.name))


def bound_name(schema: str | None, name: str) -> str:
    """Return a name in the form that bindings use."""
    return name if schema is None else f"{schema}.{name}"


def is_seen(objects: Objects, schema: str) -> bool:
    """Return whether a session sees the relations of a schema, which is not that of another session."""
    return not is_temporary(schema) or schema in objects.path


def listing(objects: Objects) -> Sequence[NamedRelation]:
    """Return all relations by name, without the temporary relations of other sessions."""
    items = (item for item in objects.items.values() if item.kind in _KINDS)
    seen = (item.id for item in items if is_seen(objects, item.schema))
    ids = [*objects.collections, *seen]
    return sorted((named for id_ in ids if (named := objects.described(id_))), key=lambda named: named.name)


_IDS = itertools.count(PROVISIONAL)


def provisional_id() -> GlobalId:
    """Return a new provisional identifier, above all earlier ones, so the oldest items come first."""
    return next(_IDS)


@dataclass(frozen=True, slots=True)
class DdlTransaction:
    """The names of a DDL transaction.

    Attributes:
        base: the names when the transaction began to define items.
        objects: the names with the transaction's changes.
    """

    base: Objects
    objects: Objects

    @property
    def alters(self) -> bool:
        """Return whether the transaction changes the columns or constraints of a table."""
        items = self.objects.items.values()
        return any(item.alters is not None for item in items) or bool(self._altered)

    @property
    def _altered(self) -> tuple[Item, ...]:
        """Return the items that were there before, and have changed."""
        after = self.objects.items
        ids = {item.id: item.alters for item in after.values() if item.alters is not None}
        return tuple(item for item in after.values() if _is_changed(item, self.base.items.get(item.id), ids))

    def changed(
        self,
        *,
        added: Iterable[Item] = (),
        removed: Iterable[GlobalId] = (),
        renamed: Mapping[GlobalId, str] | None = None,
    ) -> DdlTransaction:
        """Return this transaction with one more change.

        Args:
            added: new items with provisional identifiers.
            removed: identifiers of dropped items.
            renamed: new names by identifier.
        """
        new_names = renamed or {}
        items = {item.id: replace(item, name=new_names.get(item.id, item.name)) for item in self.objects.items.values()}
        for identifier in removed:
            del items[identifier]
        items |= {item.id: item for item in added}
        return DdlTransaction(self.base, self.objects.with_items(items.values()))

    def change(self, now: Objects) -> Change:
        """Return the change of the catalog; other sessions may have changed the catalog meanwhile.

        Args:
            now: the current names.

        Raises:
            SqlError: 42P07 if another session has taken a name; 40001 if another session has changed an item that the
                change depends on.
        """
        before, after = self.base.items, self.objects.items
        added = tuple(item for item in after.values() if is_provisional(item.id))
        removed = tuple(identifier for identifier in before if identifier not in after)
        renamed = {
            identifier: item.name
            for identifier, item in after.items()
            if identifier in before and before[identifier].name != item.name
        }
        change = Change(added, removed, renamed, self._altered)
        if now.version != self.base.version:
            self._check(change, now)
        return change

    def _check(self, change: Change, now: Objects) -> None:
        """Check that a change does not conflict with changes of other sessions."""
        needed = {*change.removed, *change.renamed}.union(*(item.uses for item in change.added))
        for identifier in needed:
            if not is_provisional(identifier) and identifier not in now.items and identifier not in now.collections:
                dropped = self.base.items.get(identifier)
                raise _conflict(
                    f'dropped "{dropped.name}"' if dropped else "dropped a relation that the transaction uses"
                )
        for identifier in change.renamed:
            if now.items[identifier].name != self.base.items[identifier].name:
                raise _conflict(f'renamed "{self.base.items[identifier].name}"')
        self._check_altered(change, now)
        for user in now.users(change.removed):
            if user.id not in change.removed and self.base.items.get(user.id) != user:
                raise _conflict(f'defined "{user.name}", which depends on a dropped relation')
        leaving = {*change.removed, *change.renamed}
        _check_schemas(change, now)
        taken = {(item.schema, item.name) for item in now.items.values() if item.id not in leaving}
        renamed = [(now.items[identifier].schema, name) for identifier, name in change.renamed.items()]
        for schema, name in (*renamed, *((item.schema, item.name) for item in change.added)):
            if (schema, name) in taken:
                hint = "Another session has created the relation and committed."
                raise SqlError("42P07", f'relation "{name}" already exists', hint=hint)

    def _check_altered(self, change: Change, now: Objects) -> None:
        """Check that nobody else has altered the items that a change alters, or that its new items read."""
        before = self.base.items
        altered = {item.id for item in change.altered}.union(item.alters for item in change.added if item.alters)
        for item in (before[identifier] for identifier in before.keys() & altered):
            if now.items.get(item.id) != item:
                raise _conflict(f'altered "{item.name}"')
        read = frozenset[GlobalId]().union(*(item.uses for item in change.added))
        for item in (before[identifier] for identifier in before.keys() & read):
            if replace(now.items[item.id], name=item.name, comment=item.comment) != item:
                raise _conflict(f'altered "{item.name}"')


def _check_schemas(change: Change, now: Objects) -> None:
    """Check that the schemas of new items exist, and that dropped schemas have no other items."""
    known = {_SCHEMAS, *now.schemas, *(item.name for item in change.added if item.kind is ObjectKind.SCHEMA)}
    for item in change.added:
        if item.schema not in known and not is_temporary(item.schema):
            raise _conflict(f'dropped schema "{item.schema}"')
    removed = [now.items[identifier] for identifier in change.removed]
    dropped = {item.name for item in removed if item.kind is ObjectKind.SCHEMA}
    for item in now.items.values():
        if item.schema in dropped and item not in removed:
            raise _conflict(f'defined "{item.name}" in a dropped schema')


def _is_changed(item: Item, before: Item | None, ids: Mapping[GlobalId, GlobalId]) -> bool:
    """Return whether an item has other parts than before, or a sequence other numbers.

    Args:
        item: the item.
        before: the item before; None for a new one.
        ids: identifiers of tables by the provisional ones of their altered forms, which readers have until COMMIT.
    """
    if before is None:
        return False
    if item.kind is ObjectKind.SEQUENCE and item.origin != before.origin:
        return True
    bindings = {name: ids.get(bound, bound) for name, bound in item.bindings.items()}
    parts = (item.columns, item.constraints, item.comment, item.definition, item.read, bindings)
    earlier = (before.columns, before.constraints, before.comment, before.definition, before.read, before.bindings)
    return parts != earlier


def _conflict(what: str) -> SqlError:
    message = f"could not serialize access: another session has {what}"
    return SqlError("40001", message, hint="Run the transaction again.")
