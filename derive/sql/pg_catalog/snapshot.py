"""A snapshot of PostgreSQL's catalogs: rows of their relations, and look-ups of objects by name and by oid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.scalar.text import quoted_name
from derive.functions.statement_context import CatalogObject
from derive.functions.types.array import array_of
from derive.functions.types.pg_type import NAMES_OF_TYPES, OIDS_OF_TYPES, PG_TYPES
from derive.functions.types.type_info import datum_of_text
from derive.sql.catalog.snapshot import FIRST_OID, PUBLIC, Objects
from derive.sql.catalog.system_relations import PG_CATALOG, system_name, system_oids, system_relations
from derive.sql.parser.tokens import TokenReader
from derive.sql.parser.type_names import parse_type
from derive.sql.pg_catalog.contents import (
    activity_of,
    keyword_rows,
    oid_of_user,
    roles_of,
    rows_of,
    schemas_of,
    settings_of,
    users_of,
    views_of,
)
from derive.sql.pg_catalog.objects import (
    PROCEDURES,
    CatalogObjects,
    CatalogRow,
    CatalogValue,
    SessionFacts,
    described,
)
from derive.sql.planner.interfaces import FUNCTIONS, NamedColumn

_FLOATS = frozenset({Type.REAL, Type.DOUBLE})
_NUMBERS = _FLOATS | {Type.BOOLEAN, Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.OID, Type.REGPROC}
"""Types of columns whose value is 0 if a row has none."""
_MOST = 4
"""Number of cached snapshots: of the committed names, and of the latest transactions with definitions."""


class CatalogSnapshot:
    """The catalogs of a snapshot of all names, for the sessions of all users.

    Args:
        objects: relations and indexes.

    Attributes:
        owner: owner of all objects.
    """

    def __init__(self, objects: CatalogObjects) -> None:
        self.owner = objects.owner
        self._schemas, self._path = schemas_of(objects), objects.path
        tables = rows_of(objects)
        own = {f"pg_catalog.{name}": rows for name, rows in tables.items()}
        self._makers: Mapping[str, Callable[[], Iterable[CatalogRow]]] = {
            **own,
            **views_of(objects, self._schemas),
            f"{FUNCTIONS}.pg_get_keywords": keyword_rows,
        }
        self._tables = own.keys()
        self._rows: dict[str, list[Row]] = {}
        self._objects: dict[int, CatalogObject] = {}
        self._names: dict[int, str] = {}
        self._oids: dict[tuple[str, str], int] = {}
        hidden = _hidden(objects)
        numbers = _sequences_of_columns(objects)
        for relation in objects.relations:
            columns = tuple(column.name for column in relation.columns)
            is_visible, comments = relation.id not in hidden, tuple(column.comment for column in relation.columns)
            sequences = tuple(numbers.get((relation.id, number)) for number in range(1, len(columns) + 1))
            target = CatalogObject(columns, relation.definition, relation.comment, is_visible, comments, sequences)
            self._add(FIRST_OID + relation.id, relation.schema, relation.name, target)
            for index in relation.indexes:
                target = CatalogObject(index.texts, index.definition, index.comment, is_visible)
                self._add(FIRST_OID + index.id, relation.schema, index.name, target)
            for constraint in relation.constraints:
                self._objects[FIRST_OID + constraint.id] = CatalogObject((), constraint.definition)

        self._domains = {(one.schema, one.name): FIRST_OID + one.id for one in objects.domains}
        for domain in objects.domains:
            first = next((schema for schema in self._path if (schema, domain.name) in self._domains), None)
            self._objects[FIRST_OID + domain.id] = CatalogObject(is_visible=first == domain.schema)
            for number, _, text in domain.checks:
                self._objects[FIRST_OID + number] = CatalogObject(definition=f"CHECK (({text}))")
        self._functions = {(one.schema, one.name): FIRST_OID + one.id for one in reversed(objects.functions)}
        for function in objects.functions:
            self._objects[FIRST_OID + function.id] = CatalogObject(
                definition=function.definition, arguments=function.argument_list, result=function.result.value
            )

    def _add(self, oid: int, schema: str, name: str, target: CatalogObject) -> None:
        quoted, full = quoted_name(name), f"{quoted_name(schema)}.{quoted_name(name)}"
        self._objects[oid] = target
        self._names[oid] = quoted if target.is_visible else full
        self._oids[schema, name] = oid

    def rows(self, identifier: GlobalId, facts: Callable[[], SessionFacts]) -> list[Row]:
        """Return the rows of a system relation.

        Args:
            identifier: identifier of the relation.
            facts: returns facts about the session and the other sessions.
        """
        name = system_name(identifier)
        of_session = _OF_SESSION.get(name)
        if of_session is not None:
            return _tuples(name, of_session(facts(), self.owner), has_defaults=True)
        if name not in self._rows:
            maker = self._makers.get(name)
            self._rows[name] = _tuples(name, maker(), has_defaults=name in self._tables) if maker else []
        return self._rows[name]

    def oid_of(self, kind: str, name: str) -> int | None:
        """Return the oid of the name of an object other than a role; None without such an object.

        Raises:
            SqlError: the text is not a name (42602 or 42601).
        """
        if kind == "regtype":
            return _oid_of_type(name) or self._oid_of_domain(name)
        *schemas, short = name_parts(name.partition("(")[0] if kind == "regproc" else name)
        if kind == "regclass":
            return self._oid_of_relation(schemas, short) or self._oid_of_collection(name)
        if kind == "regproc":
            own = (self._functions.get((schema, short)) for schema in (schemas[-1:] or self._path))
            built_in = PROCEDURES.get(short) if schemas in ([], [PG_CATALOG]) else None
            return built_in or next(filter(None, own), None)
        if schemas:
            raise SqlError("42602", "invalid name syntax")
        return self._schemas.get(short)

    def _oid_of_relation(self, schemas: Sequence[str], name: str) -> int | None:
        """Return the oid of a relation, an index or a system relation.

        A name without a schema is looked up in both schemas.
        """
        if not schemas:
            own = (oid for schema in self._path if (oid := self._oids.get((schema, name))))
            return system_oids().get(name) or next(own, None)
        return system_oids().get(name) if schemas[-1] == PG_CATALOG else self._oids.get((schemas[-1], name))

    def _oid_of_collection(self, name: str) -> int | None:
        """Return the oid of a collection; its name needs no quotes, because no other name has a slash."""
        return self._oids.get((PUBLIC, name.removeprefix(f"{PUBLIC}."))) if "/" in name else None

    def name_of(self, kind: str, oid: int) -> str | None:
        """Return the quoted name of an object other than a role; None without such an object."""
        match kind:
            case "regclass":
                return self._names.get(oid) or next(
                    (name for name, known in system_oids().items() if known == oid), None
                )
            case "regtype":
                return NAMES_OF_TYPES.get(oid) or self._name_of_domain(oid)
            case "regproc":
                own = (quoted_name(name) for (_, name), known in self._functions.items() if known == oid)
                return _PROCEDURE_NAMES.get(oid) or next(own, None)
        name = _name_of(self._schemas, oid)
        return name and quoted_name(name)

    def _oid_of_domain(self, name: str) -> int | None:
        *schemas, short = name_parts(name)
        own = (self._domains.get((schema, short)) for schema in (schemas[-1:] or self._path))
        return next(filter(None, own), None)

    def _name_of_domain(self, oid: int) -> str | None:
        names = (
            f"{quoted_name(schema)}." * (not self._objects[oid].is_visible) + quoted_name(name)
            for (schema, name), known in self._domains.items()
            if known == oid
        )
        return next(names, None)

    def object_of(self, oid: int) -> CatalogObject | None:
        """Return an object other than a type or a schema; None if missing."""
        return self._objects.get(oid)


class UserCatalog:
    """The objects of a snapshot by name and by oid, with the roles that a user sees.

    Args:
        snapshot: the snapshot.
        user: the user.
    """

    def __init__(self, snapshot: CatalogSnapshot, user: str) -> None:
        self._snapshot = snapshot
        self._roles = {name: oid_of_user(name, snapshot.owner) for name in (snapshot.owner, user)}

    def oid_of(self, kind: str, name: str) -> int | None:
        """Return the oid of a name; None without such an object.

        Raises:
            SqlError: the text is not a name (42602 or 42601).
        """
        if kind != "regrole":
            return self._snapshot.oid_of(kind, name)
        parts = name_parts(name)
        if len(parts) > 1:
            raise SqlError("42602", "invalid name syntax")
        return self._roles.get(parts[0])

    def name_of(self, kind: str, oid: int) -> str | None:
        """Return the quoted name of an object, or the plain name of a `role`; None without such an object."""
        if kind not in {"regrole", "role"}:
            return self._snapshot.name_of(kind, oid)
        name = _name_of(self._roles, oid)
        return quoted_name(name) if name and kind == "regrole" else name

    def object_of(self, oid: int) -> CatalogObject | None:
        """Return a relation or an index; None if missing."""
        return self._snapshot.object_of(oid)


@lru_cache(maxsize=_MOST)
def snapshot_of(objects: Objects) -> CatalogSnapshot:
    """Return the catalogs of all names."""
    return CatalogSnapshot(described(objects))


_PROCEDURE_NAMES = {oid: name for name, oid in PROCEDURES.items()}
_OF_SESSION: Mapping[str, Callable[[SessionFacts, str], Iterable[CatalogRow]]] = {
    "pg_catalog.pg_roles": lambda facts, owner: roles_of(owner, facts.user),
    "pg_catalog.pg_user": lambda facts, owner: users_of(owner, facts.user),
    "pg_catalog.pg_settings": lambda facts, _: settings_of(facts.settings),
    f"{FUNCTIONS}.pg_show_all_settings": lambda facts, _: settings_of(facts.settings),
    "pg_catalog.pg_stat_activity": lambda facts, owner: activity_of(facts.backends, owner),
}


def _sequences_of_columns(objects: CatalogObjects) -> dict[tuple[int, int], str]:
    """Return the names of sequences with their schemas, by table and number of the column that they belong to."""
    return {
        (one.owner.table, one.owner.number): f"{quoted_name(one.schema)}.{quoted_name(one.name)}"
        for one in objects.relations
        if one.owner is not None
    }


def _hidden(objects: CatalogObjects) -> set[int]:
    """Return the relations whose names need a schema."""
    ids = {(relation.schema, relation.name): relation.id for relation in objects.relations}
    first: dict[str, int] = {}
    for schema in reversed(objects.path):
        first |= {name: identifier for (own, name), identifier in ids.items() if own == schema}
    return set(ids.values()) - set(first.values())


def _name_of(oids: Mapping[str, int], oid: int) -> str | None:
    return next((name for name, known in oids.items() if known == oid), None)


def name_parts(text: str) -> list[str]:
    """Return the parts of a name with dots, without quotes; parts without quotes become lower case.

    >>> name_parts('Public . "A ""b"" c"')
    ['public', 'A "b" c']

    Raises:
        SqlError: the text is not a name (42602 or 42601).
    """
    parts, offset = [], 0
    while True:
        match = _PART.match(text, offset)
        if match is None:
            raise SqlError("42602", "invalid name syntax")
        quoted, plain, dot = match.groups()
        parts.append(plain.lower() if quoted is None else quoted.replace('""', '"'))
        if not dot:
            break
        offset = match.end()
    if len(parts) > _MOST_PARTS:
        raise SqlError("42601", f"improper relation name (too many dotted names): {text}")
    return parts


_PART = re.compile(r"""\s*(?:"((?:[^"]|"")*)"|([^\s."][^\s.]*))\s*(\.|\Z)""")
_MOST_PARTS = 3


def _oid_of_type(name: str) -> int | None:
    """Return the oid of a type's name, whose modifiers have no meaning; None without such a type."""
    reader = TokenReader(name)
    parsed = parse_type(reader)
    if not reader.is_end():
        raise reader.error()
    is_char = parsed.name == "char"  # the type "char" has quotes, and bpchar is parsed as such
    oid = OIDS_OF_TYPES.get('"char"' if is_char else parsed.name)
    return PG_TYPES[oid].array or None if oid and parsed.is_array else oid


def _tuples(name: str, rows: Iterable[CatalogRow], *, has_defaults: bool) -> list[Row]:
    schema, _, short = name.rpartition(".")
    columns = system_relations()[schema, short].columns
    own = system_oids().get(short, 0) if schema == PG_CATALOG else 0
    rows = [{"tableoid": own, **row} for row in rows]
    defaults = {column.name: 0 if has_defaults and column.type in _NUMBERS else None for column in columns}
    return [tuple(_datum(column, row.get(column.name, defaults[column.name])) for column in columns) for row in rows]


def _datum(column: NamedColumn, value: CatalogValue) -> Datum:
    match value:
        case list():
            element = column.type.element
            assert element is not None
            return array_of(element, value)
        case str() if column.type is not Type.TEXT:
            return datum_of_text(column.type, value)
        case bool():
            return int(value)
        case int() if column.type in _FLOATS:
            return float(value)
    return value
