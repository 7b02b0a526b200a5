"""The catalog of SQL: names and items, and changes of them.

Storage keeps the items and the rows of their tables, and changes both in one commit. The names in a view's
text are bound to identifiers when the view is created, so a later rename of a relation changes no view.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import orjson

from derive.algebra.relation import GlobalId
from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.document.pointer import JSON
from derive.functions.scalar.text import quoted_name
from derive.sql.parser.sequences import Identity
from derive.sql.parser.statement import ConstraintKind, ObjectKind
from derive.sql.planner import sequences as counting
from derive.sql.planner.interfaces import Constraint, Domain, NamedColumn, Numbering, Reference
from derive.storage.metadata.definitions import ItemChanges, StoredItem

LOCAL = "local"
"""Name of the instance in the server's process."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """The place of a replica.

    Attributes:
        name: name, unique in the controller.
        address: `host:port`; empty for a process that the server starts.
    """

    name: str
    address: str = ""


def is_replica_name(name: str) -> bool:
    """Return whether a name is valid for a replica; the folder of a replica's process has this name."""
    return name != LOCAL and _NAME.fullmatch(name) is not None


PROVISIONAL: GlobalId = 1 << 30
"""The least provisional identifier. Items of an uncommitted transaction have provisional identifiers."""

Bindings: TypeAlias = Mapping[str, GlobalId]
"""Identifiers by name in a view's text, as of the view's creation."""


KNOWN_FROM = "known from"
"""Name in an item's `origin` of the time from which the rows of an altered table have its present columns."""

NAMED = "named"
"""Name in a view's `origin` of whether a list of names was given for its columns."""

AT_COMMIT = -1
"""The time of the commit of an item, which is assigned later."""

ON_COMMIT = "on commit"
"""Name in an item's `origin` of the effect of COMMIT on a temporary table: `drop`, or `delete` for its rows."""


@dataclass(frozen=True, slots=True)
class Item:
    """A named object of the catalog.

    Attributes:
        id: permanent identifier.
        kind: kind of the object.
        schema: schema of the name.
        name: name, unique in the schema.
        columns: columns of a relation; none for an index.
        definition: text of a view's query.
        bindings: identifiers of the names in the definition.
        read: for each of these names that is a table, or a collection of `flow.yaml`, its columns when the view was
            created.
        on: for an index, the indexed relation.
        indexed: for an index, names of its columns, and of the columns in its expressions and its condition.
        origin: for a source, where its rows come from; for a table, the time from which its rows have its columns;
            for a sequence, its numbers.
        alters: for a table altered by an uncommitted transaction, the identifier of the original table; else None.
        constraints: constraints of a table.
        comment: text of COMMENT ON; None without one.
        parts: texts of the parts of an index with expressions or a condition; empty for an index on columns.
        condition: text of the condition of an index; None for all rows.
    """

    id: GlobalId
    kind: ObjectKind
    schema: str
    name: str
    columns: tuple[NamedColumn, ...] = ()
    definition: str | None = None
    bindings: Bindings = field(default_factory=dict)
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on: GlobalId | None = None
    indexed: tuple[str, ...] = ()
    origin: Mapping[str, JSON] = field(default_factory=dict)
    alters: GlobalId | None = None
    constraints: tuple[Constraint, ...] = ()
    comment: str | None = None
    parts: tuple[str, ...] = ()
    condition: str | None = None

    def rebound(self, ids: Mapping[GlobalId, GlobalId]) -> Item:
        """Return this item with some identifiers replaced."""
        origin = self.origin
        if self.position is not None:
            origin = {**origin, "position": ids.get(self.position, self.position)}
        columns = tuple(
            replace(one, domain=replace(one.domain, id=ids.get(one.domain.id, one.domain.id))) if one.domain else one
            for one in self.columns
        )
        return replace(
            self,
            id=ids.get(self.id, self.id),
            columns=columns,
            constraints=tuple(_rebound(one, ids) for one in self.constraints),
            bindings={name: ids.get(bound, bound) for name, bound in self.bindings.items()},
            on=None if self.on is None else ids.get(self.on, self.on),
            origin=origin,
        )

    @property
    def uses(self) -> frozenset[GlobalId]:
        """Return the identifiers of the relations, functions and domains that the item depends on."""
        domains = (column.domain.id for column in self.columns if column.domain and column.domain.id != self.id)
        others = () if self.on is None else (self.on,)
        return frozenset((*self.bindings.values(), *domains, *others))

    @property
    def shown_definition(self) -> str | None:
        """Return a query with the rows and the column names of a view; None for other items.

        >>> from derive.algebra.types import Type
        >>> from derive.sql.parser.statement import ObjectKind
        >>> columns = (NamedColumn("b", Type.INTEGER),)
        >>> Item(1, ObjectKind.VIEW, "public", "v", columns, "SELECT 1", origin={NAMED: True}).shown_definition
        'SELECT * FROM (SELECT 1) AS v (b)'
        """
        if self.definition is None or not self.origin.get(NAMED):
            return self.definition
        return with_names(self.definition, self.name, [column.name for column in self.columns])

    @property
    def position(self) -> GlobalId | None:
        """Return the table that records the position of a source in its input; None if missing."""
        place = self.origin.get("position")
        return place if isinstance(place, int) else None

    @property
    def counters(self) -> list[int]:
        """Return the counters of identity columns, or of a sequence."""
        own = self.origin.get("counter")
        return [column.counter for column in self.columns] + ([own] if isinstance(own, int) else [])

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Return the names of the columns of the primary key; empty without one."""
        keys = (one.columns for one in self.constraints if one.kind is ConstraintKind.PRIMARY_KEY)
        return next(keys, ())

    @property
    def known_from(self) -> int:
        """Return the time from which the rows of a table have its present columns; 0 for all times."""
        time = self.origin.get(KNOWN_FROM)
        return time if isinstance(time, int) else 0

    @property
    def is_written(self) -> bool:
        """Return whether SQL writes the item's rows into a table of Storage, at times of the timeline."""
        return self.kind is ObjectKind.TABLE or (self.kind is ObjectKind.SOURCE and "collection" not in self.origin)

    @property
    def is_stored(self) -> bool:
        """Return whether the item has a table in Storage."""
        return self.is_written or self.kind is ObjectKind.MATERIALIZED_VIEW


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the catalog.

    Attributes:
        added: new items; their names are free after the removals and renames.
        removed: identifiers of dropped items.
        renamed: new names by identifier.
        altered: items with changed columns.
    """

    added: tuple[Item, ...] = ()
    removed: tuple[GlobalId, ...] = ()
    renamed: Mapping[GlobalId, str] = field(default_factory=dict)
    altered: tuple[Item, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the change is empty."""
        return not (self.added or self.removed or self.renamed or self.altered)


def with_names(definition: str, relation: str, columns: Iterable[str]) -> str:
    """Return a query whose columns have other names, in a relation of that name."""
    listed = ", ".join(map(quoted_name, columns))
    return f"SELECT * FROM ({definition}) AS {quoted_name(relation)} ({listed})"


def _rebound(constraint: Constraint, ids: Mapping[GlobalId, GlobalId]) -> Constraint:
    to = constraint.reference
    return constraint if to is None else replace(constraint, reference=replace(to, table=ids.get(to.table, to.table)))


FIRST_HASHED = 1 << 31
"""First number of objects without an identifier in the catalog: keys, constraints, defaults and identity sequences."""


def hashed(relation: int, what: str, name: str) -> int:
    """Return a number for an object of a relation without an identifier in the catalog: a 30-bit hash of its name."""
    return FIRST_HASHED + (zlib.crc32(f"{what} {relation} {name}".encode()) >> 2)


@dataclass(frozen=True, slots=True)
class IdentitySequence:
    """The sequence of an identity column.

    Attributes:
        id: number of the sequence, apart from the identifiers of the catalog.
        name: name, in the schema of the table.
        table: the table.
        column: the column.
    """

    id: int
    name: str
    table: Item
    column: NamedColumn

    @property
    def sequence(self) -> counting.Sequence:
        """Return the numbers."""
        return counting.sequence_of_column(self.table.name, self.column)


def identity_sequences(items: Iterable[Item]) -> Mapping[tuple[str, str], IdentitySequence]:
    """Return the sequences of all identity columns by schema and name."""
    sequences: dict[tuple[str, str], IdentitySequence] = {}
    for item in items:
        for column in item.columns:
            if column.identity is not None:
                name = counting.numbering_of(item.name, column).name
                number = hashed(item.id, "sequence", column.name)
                sequences[item.schema, name] = IdentitySequence(number, name, item, column)
    return sequences


def is_provisional(identifier: GlobalId) -> bool:
    """Return whether an identifier belongs to an uncommitted transaction."""
    return identifier >= PROVISIONAL


def stored_name(schema: str, name: str) -> str:
    """Return the name of an item's table in Storage, and in catalogs that read the table."""
    return f"sql/{schema}/{name}"


def position_name(schema: str, name: str) -> str:
    """Return the name in Storage of the table that records the position of a source in its input."""
    return f"sql@position/{schema}/{name}"


def items_change(change: Change) -> ItemChanges:
    """Return a change of the catalog in the form of Storage."""
    added = (StoredItem(item.id, item.kind.value, item.schema, item.name, _description(item)) for item in change.added)
    described = {item.id: _description(item) for item in change.altered}
    return ItemChanges(tuple(added), change.removed, change.renamed, described)


def at_commit(changes: ItemChanges, time: int) -> ItemChanges:
    """Return changes in which tables with the time `AT_COMMIT` have the time of the commit."""
    described = dict(changes.described)
    for identifier, text in described.items():
        description = orjson.loads(text)
        if description["origin"].get(KNOWN_FROM) == AT_COMMIT:
            description["origin"][KNOWN_FROM] = time
            described[identifier] = orjson.dumps(description).decode()
    return replace(changes, described=described)


def _description(item: Item) -> str:
    identities = {column.name: _identity_description(column) for column in item.columns if column.identity}
    generated = {column.name: column.generated for column in item.columns if column.generated is not None}
    constraints = [_constraint_description(one) for one in item.constraints]
    described: dict[str, Any] = {
        "columns": [_column_description(column) for column in item.columns],
        "defaults": {column.name: column.default for column in item.columns if column.default is not None},
        "definition": item.definition,
        "bindings": dict(item.bindings),
        "read": dict(item.read),
        "on": item.on,
        "indexed": item.indexed,
        "origin": dict(item.origin),
    }
    comments = {column.name: column.comment for column in item.columns if column.comment is not None}
    domains = {
        column.name: [column.domain.id, column.domain.name, column.domain.checks, column.domain.is_nullable]
        for column in item.columns
        if column.domain is not None
    }
    parts: dict[str, Any] = {"identities": identities, "generated": generated, "constraints": constraints}
    parts |= {"comments": comments, "domains": domains, "comment": item.comment}
    parts |= {"parts": item.parts, "condition": item.condition}
    described |= {name: part for name, part in parts.items() if part}
    return orjson.dumps(described).decode()


def _identity_description(column: NamedColumn) -> list[Any]:
    assert column.identity is not None
    own = column.numbering
    numbers = [] if own is None else [[own.name, own.start, own.increment, own.least, own.most]]
    return [column.identity.value, column.counter, *numbers]


def _constraint_description(one: Constraint) -> list[Any]:
    described = [one.name, one.kind.value, one.columns, one.condition]
    to = one.reference
    if to is None:
        return [*described, None, one.parts] if one.parts else described
    others = [to.on_update, to.deferral] if (to.on_update, to.deferral) != ("a", "") else []
    return [*described, [to.table, to.columns, to.on_delete, *others]]


def _column_description(column: NamedColumn) -> list[Any]:
    described = [column.name, column.type.value, column.is_nullable]
    return (
        [*described, column.modifier.name.name, column.modifier.size, column.modifier.scale]
        if column.modifier
        else described
    )


def _columns(described: Mapping[str, Any]) -> tuple[NamedColumn, ...]:
    defaults, generated = described.get("defaults", {}), described.get("generated", {})
    identities, comments = described.get("identities", {}), described.get("comments", {})
    domains = described.get("domains", {})
    columns = []
    for name, kind, is_nullable, *modifier in described["columns"]:
        identity, counter, *numbering = identities.get(name, (None, 0))
        columns.append(
            NamedColumn(
                name,
                Type(kind),
                is_nullable,
                TypeModifier(ModifiedType[modifier[0]], *modifier[1:]) if modifier else None,
                defaults.get(name),
                Identity(identity) if identity else None,
                counter,
                generated.get(name),
                comments.get(name),
                _domain(*domains[name]) if name in domains else None,
                Numbering(*numbering[0]) if numbering else None,
            )
        )
    return tuple(columns)


def _domain(identifier: GlobalId, name: str, checks: list[list[str]], is_nullable: bool) -> Domain:
    return Domain(identifier, name, tuple((check, text) for check, text in checks), is_nullable)


def _constraint(
    name: str,
    kind: str,
    columns: list[str],
    condition: str | None,
    reference: list[Any] | None = None,
    parts: Sequence[str] = (),
) -> Constraint:
    to = None
    if reference is not None:
        table, referenced, *effects = reference
        to = Reference(table, tuple(referenced), *effects)
    return Constraint(name, ConstraintKind(kind), tuple(columns), condition, reference=to, parts=tuple(parts))


def item_of(stored: StoredItem) -> Item:
    """Return an item of Storage.

    >>> item_of(items_change(Change(added=(Item(1, ObjectKind.INDEX, "public", "i", on=2),))).added[0]).on
    2
    """
    described = orjson.loads(stored.description)
    return Item(
        stored.id,
        ObjectKind(stored.kind),
        stored.schema,
        stored.name,
        _columns(described),
        described["definition"],
        described["bindings"],
        {name: tuple(columns) for name, columns in described.get("read", {}).items()},
        described["on"],
        tuple(described["indexed"]),
        described["origin"],
        constraints=tuple(_constraint(*constraint) for constraint in described.get("constraints", ())),
        comment=described.get("comment"),
        parts=tuple(described.get("parts", ())),
        condition=described.get("condition"),
    )
