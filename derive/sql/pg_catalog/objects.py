"""Relations, indexes and functions of types in the form of PostgreSQL's catalogs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from derive.algebra.types import Type
from derive.document.pointer import JSON
from derive.functions.types.pg_type import PG_TYPES, PgType
from derive.sql.backends import Backend
from derive.sql.catalog.items import IdentitySequence, Item, hashed
from derive.sql.catalog.snapshot import Objects, function_types, is_seen, listing
from derive.sql.parser import statement
from derive.sql.parser.statement import ConstraintKind
from derive.sql.pg_catalog.object_index import ObjectIndex, object_index, plain_name
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation, Reference, RelationKind

CatalogValue: TypeAlias = str | int | bool | list[int] | list[str] | None
CatalogRow: TypeAlias = dict[str, CatalogValue]
"""Values by column name; for columns of types other than text, a text value is parsed."""

_FIRST_PROCEDURE = 6_000
_UNDERSCORED = frozenset(
    "numeric date time timestamp timestamptz interval json jsonb uuid inet cidr macaddr".split()  # noqa: SIM905
)
"""Types whose functions have an underscore before their suffix."""
_KNOWN = {"array_in": 750, "array_out": 751, "array_recv": 2400, "array_send": 2401}


def procedure_name(pg_type: PgType, suffix: str) -> str:
    """Return the name of a type's function.

    Args:
        pg_type: the type.
        suffix: `in`, `out`, `recv` or `send`.
    """
    if pg_type.element and pg_type.name not in {"int2vector", "oidvector"}:
        return f"array_{suffix}"
    return f"{pg_type.name}{'_' if pg_type.name in _UNDERSCORED else ''}{suffix}"


def _numbered() -> dict[str, int]:
    suffixes = ("in", "out", "recv", "send")
    names = {procedure_name(pg_type, suffix) for pg_type in PG_TYPES.values() for suffix in suffixes}
    others = (name for name in sorted(names) if name not in _KNOWN)
    return _KNOWN | {name: oid for oid, name in enumerate(others, start=_FIRST_PROCEDURE)}


PROCEDURES: Mapping[str, int] = _numbered()
"""Oids of functions by name."""


class ObjectKind(Enum):
    """The kind of a relation; the value is its `relkind`."""

    TABLE = "r"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"
    SEQUENCE = "S"


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """The key that a foreign key refers to.

    Attributes:
        table: identifier of the table.
        columns: indexes of the columns of the key.
        reference: the reference with its effects.
    """

    table: int
    columns: tuple[int, ...]
    reference: Reference


@dataclass(frozen=True, slots=True)
class ObjectConstraint:
    """A constraint of a table.

    Attributes:
        id: number of the constraint, apart from the identifiers of the catalog.
        name: name, unique in the table.
        kind: kind of the constraint.
        columns: indexes of the table's columns, from 0.
        definition: clause of CREATE TABLE.
        condition: condition of a check.
        index: number of the index of a key; None for a check.
        foreign: for a foreign key, the key that it refers to.
    """

    id: int
    name: str
    kind: ConstraintKind
    columns: tuple[int, ...]
    definition: str
    condition: str | None = None
    index: int | None = None
    foreign: ForeignTable | None = None


@dataclass(frozen=True, slots=True)
class SequenceOwner:
    """The column that a sequence belongs to.

    Attributes:
        table: identifier of the table.
        number: number of the column, from 1 on.
        column: the column.
    """

    table: int
    number: int
    column: NamedColumn


@dataclass(frozen=True, slots=True)
class ObjectRelation:
    """A relation: clients see tables, sources and collections as tables.

    Attributes:
        id: identifier in the catalog.
        schema: schema.
        name: name, unique in the schema.
        kind: kind of the relation.
        columns: columns, in order.
        definition: text of a view's query, which ends with a semicolon, as clients expect.
        indexes: indexes of the relation.
        comment: description for people.
        uses: identifiers of the relations that a view reads.
        constraints: constraints of a table.
        numbers: start, increment and bounds of a sequence.
        owner: the column that a sequence belongs to; None for other sequences.
    """

    id: int
    schema: str
    name: str
    kind: ObjectKind
    columns: tuple[NamedColumn, ...]
    definition: str | None = None
    indexes: tuple[ObjectIndex, ...] = ()
    comment: str | None = None
    uses: tuple[int, ...] = ()
    constraints: tuple[ObjectConstraint, ...] = ()
    numbers: Mapping[str, JSON] = field(default_factory=dict)
    owner: SequenceOwner | None = None


@dataclass(frozen=True, slots=True)
class ObjectFunction:
    """A function in SQL.

    Attributes:
        id: identifier in the catalog.
        schema: schema.
        name: name, without the types of the arguments.
        arguments: name (None without one) and type of each argument.
        result: type of the value.
        body: text of the body.
        volatility: `i`, `s` or `v`.
        is_strict: whether the value is NULL if an argument is.
    """

    id: int
    schema: str
    name: str
    arguments: tuple[tuple[str | None, Type], ...]
    result: Type
    body: str
    volatility: str
    is_strict: bool

    @property
    def argument_list(self) -> str:
        """Return the arguments in SQL syntax."""
        return ", ".join(f"{plain_name(name)} {kind.value}" if name else kind.value for name, kind in self.arguments)

    @property
    def definition(self) -> str:
        """Return the statement that creates the function, in the form of PostgreSQL."""
        options = {"i": " IMMUTABLE", "s": " STABLE"}.get(self.volatility, "") + (" STRICT" if self.is_strict else "")
        lines = (
            f"CREATE OR REPLACE FUNCTION {plain_name(self.schema)}.{plain_name(self.name)}({self.argument_list})",
            f" RETURNS {self.result.value}",
            " LANGUAGE sql",
            *((options,) if options else ()),
            f"AS $function${self.body}$function$",
        )
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class ObjectDomain:
    """A domain.

    Attributes:
        id: identifier in the catalog.
        schema: schema.
        name: name.
        column: column of the domain, with its base type, default and conditions.
    """

    id: int
    schema: str
    name: str
    column: NamedColumn

    @property
    def checks(self) -> list[tuple[int, str, str]]:
        """Return number, name and text of each condition, without NOT NULL."""
        checks = self.column.domain.checks if self.column.domain else ()
        return [(hashed(self.id, "constraint", name), name, text) for name, text in checks]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about a session and the other sessions.

    Attributes:
        settings: settings by name.
        backends: all sessions of the server.
        user: user of the session.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    backends: Sequence[Backend] = ()
    user: str = "flow"


@dataclass(frozen=True, slots=True)
class CatalogObjects:
    """All objects that clients can see.

    Attributes:
        relations: relations, in any order.
        database: name of their database.
        owner: owner of all objects.
        schemas: names of the schemas.
        path: schemas of names without a schema, in order.
        functions: functions in SQL.
        domains: domains.
    """

    relations: tuple[ObjectRelation, ...] = ()
    database: str = "flow"
    owner: str = "flow"
    schemas: tuple[str, ...] = ("public",)
    path: tuple[str, ...] = ("public",)
    functions: tuple[ObjectFunction, ...] = ()
    domains: tuple[ObjectDomain, ...] = ()


_KINDS = {RelationKind.VIEW: ObjectKind.VIEW, RelationKind.MATERIALIZED_VIEW: ObjectKind.MATERIALIZED_VIEW}
_COMMENTS = {RelationKind.SOURCE: "a source", RelationKind.COLLECTION: "a collection of the catalog"}


def described(objects: Objects) -> CatalogObjects:
    """Return relations and indexes in PostgreSQL's form. Sources and collections become tables, which clients know."""
    indexes: dict[int, list[Item]] = {}
    for item in objects.items.values():
        if item.kind is statement.ObjectKind.INDEX and item.on is not None:
            indexes.setdefault(item.on, []).append(item)
    relations = (_relation(objects, named, indexes.get(named.id, [])) for named in listing(objects))
    sequences = (
        ObjectRelation(
            item.id, item.schema, item.name, ObjectKind.SEQUENCE, (), comment=item.comment, numbers=item.origin
        )
        for item in objects.items.values()
        if item.kind is statement.ObjectKind.SEQUENCE
    )
    of_columns = (_numbers(one) for one in objects.identity_sequences.values() if is_seen(objects, one.table.schema))
    functions = (
        ObjectFunction(
            item.id,
            item.schema,
            str(item.origin["name"]),
            *function_types(item),
            item.definition or "",
            str(item.origin["volatility"]),
            bool(item.origin["is_strict"]),
        )
        for item in objects.items.values()
        if item.kind is statement.ObjectKind.FUNCTION
    )
    domains = (
        ObjectDomain(item.id, item.schema, item.name, item.columns[0])
        for item in objects.items.values()
        if item.kind is statement.ObjectKind.DOMAIN
    )
    schemas, path = tuple(objects.schemas), objects.path
    return CatalogObjects(
        (*relations, *sequences, *of_columns),
        schemas=schemas,
        path=path,
        functions=tuple(functions),
        domains=tuple(domains),
    )


def _numbers(numbered: IdentitySequence) -> ObjectRelation:
    """Return the sequence of an identity column."""
    table, column = numbered.table, numbered.column
    owner = SequenceOwner(table.id, table.columns.index(column) + 1, column)
    numbers = numbered.sequence.origin
    return ObjectRelation(
        numbered.id, table.schema, numbered.name, ObjectKind.SEQUENCE, (), numbers=numbers, owner=owner
    )


def _relation(objects: Objects, named: NamedRelation, indexes: list[Item]) -> ObjectRelation:
    item = objects.items.get(named.id)
    schema = item.schema if item else "public"
    keys = tuple(_key_index(named, schema, key) for key in named.keys)
    return ObjectRelation(
        named.id,
        schema,
        named.name,
        _KINDS.get(named.kind, ObjectKind.TABLE),
        named.columns,
        f"{item.shown_definition};" if item and item.definition else None,
        keys + tuple(object_index(named, index) for index in indexes),
        (item and item.comment) or _COMMENTS.get(named.kind),
        tuple(sorted(id_ for id_ in item.uses if objects.described(id_))) if item and item.definition else (),
        tuple(
            _constraint(objects, named, constraint)
            for constraint in named.constraints
            if constraint.kind is not ConstraintKind.UNIQUE_INDEX
        ),
    )


_NEXT_NUMBER = re.compile(r"nextval\('[^']+'(::regclass|::text)?\)")


def is_next_number(default: str | None) -> bool:
    """Return whether the text of a default is the next number of a sequence.

    >>> is_next_number("nextval('public.t_id_seq'::regclass)"), is_next_number("nextval('s') + 1")
    (True, False)
    """
    return default is not None and _NEXT_NUMBER.fullmatch(default.strip()) is not None


_NEXTVAL = re.compile(r"""nextval\('(?:"?(\w+)"?\.)?"?(\w+)"?'""")


def sequences_of_default(default: str | None) -> list[tuple[str, str]]:
    """Return schema and name of the sequences that the text of a default names; the schema may be empty.

    >>> sequences_of_default("nextval('s.t'::regclass) + nextval('u')")
    [('s', 't'), ('', 'u')]
    """
    return _NEXTVAL.findall(default or "")


def _key_index(named: NamedRelation, schema: str, key: Constraint) -> ObjectIndex:
    identifier = hashed(named.id, "index", key.name)
    index = Item(identifier, statement.ObjectKind.INDEX, schema, key.name, indexed=key.columns)
    return object_index(named, replace(index, parts=key.parts, condition=key.condition), key.kind)


_CLAUSES = {ConstraintKind.PRIMARY_KEY: "PRIMARY KEY", ConstraintKind.UNIQUE: "UNIQUE"}


_EFFECTS = {"r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
_DEFERRALS = {"i": " DEFERRABLE", "d": " DEFERRABLE INITIALLY DEFERRED"}


def _target(objects: Objects, named: NamedRelation, constraint: Constraint) -> str:
    """Return the REFERENCES clause of a foreign key."""
    to = constraint.reference
    target = named if to is None or not to.table else objects.described(to.table)
    if to is None or target is None:
        return ""
    columns = ", ".join(map(plain_name, to.columns))
    schema = "" if target.schema in objects.path else f"{plain_name(target.schema)}."
    effects = (("UPDATE", to.on_update), ("DELETE", to.on_delete))
    shown = "".join(f" ON {event} {_EFFECTS[effect]}" for event, effect in effects if effect in _EFFECTS)
    return f"REFERENCES {schema}{plain_name(target.name)}({columns}){shown}{_DEFERRALS.get(to.deferral, '')}"


def _constraint(objects: Objects, named: NamedRelation, constraint: Constraint) -> ObjectConstraint:
    index = None
    if constraint.is_key:
        definition = f"{_CLAUSES[constraint.kind]} ({', '.join(map(plain_name, constraint.columns))})"
        index = hashed(named.id, "index", constraint.name)
    elif constraint.reference is not None:
        definition = (
            f"FOREIGN KEY ({', '.join(map(plain_name, constraint.columns))}) {_target(objects, named, constraint)}"
        )
    else:
        definition = f"CHECK (({constraint.condition}))"
    identifier, columns = hashed(named.id, "constraint", constraint.name), named.indexes(constraint.columns)
    foreign = None
    if constraint.reference is not None and (to := objects.described(constraint.reference.table or named.id)):
        foreign = ForeignTable(to.id, to.indexes(constraint.reference.columns), constraint.reference)
    return ObjectConstraint(
        identifier, constraint.name, constraint.kind, columns, definition, constraint.condition, index, foreign
    )
