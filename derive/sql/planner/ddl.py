"""Planner of CREATE TABLE: columns and constraints; and look-ups of relations and columns in statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from derive.algebra.relation import Finishing
from derive.algebra.types import CATALOG_TYPES, Type
from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import (
    ColumnDefinition,
    CreateTable,
)
from derive.sql.planner.coercion import ParameterTypes, modifier_of_type, type_of
from derive.sql.planner.constraints import check_generation, with_constraints
from derive.sql.planner.dependencies import needs_context
from derive.sql.planner.dml import default_text, writable_table
from derive.sql.planner.expressions import domain_of
from derive.sql.planner.from_clause import TablePlanner
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.plan import PlannedView, with_names
from derive.sql.planner.planned import PlannedColumn, PlannedQuery
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.row_expressions import column_named
from derive.sql.planner.sequences import with_sequence

MOST_COLUMNS = 1600
"""Greatest number of columns of a relation, as in PostgreSQL.

SQLite allows 2,000 columns, of which view maintenance needs a few.
"""


def require_narrow(count: int) -> None:
    """Check that a relation has no more than `MOST_COLUMNS` columns.

    Raises:
        SqlError: there are too many columns (54011).
    """
    if count > MOST_COLUMNS:
        what = f"tables can have at most {MOST_COLUMNS} columns"
        raise SqlError("54011", what, hint="Combine columns that are read together in a jsonb.")


def require_stored(types: Iterable[Type]) -> None:
    """Check that columns of these types can be stored; columns with types of the system catalogs cannot.

    Raises:
        SqlError: a type is a type of the system catalogs (0A000).
    """
    for kind in types:
        if kind in CATALOG_TYPES:
            hint = "Store an oid as bigint, and a name as text."
            raise SqlError("0A000", f"columns of type {kind.value} cannot be stored", hint=hint)


def columns_of_definitions(definitions: Sequence[ColumnDefinition], names: Names) -> tuple[NamedColumn, ...]:
    """Plan the columns of a new table, without their constraints.

    Raises:
        SqlError: 42701, two columns have one name; 42704 or 0A000, a type is unknown or not supported; 54011, there are
            too many columns; 22023, an identity column has no integers; 42601, two clauses give values to a column.
    """
    require_narrow(len(definitions))
    columns: list[NamedColumn] = []
    for definition in definitions:
        if any(column.name == definition.name for column in columns):
            message = f'column "{definition.name}" specified more than once'
            raise SqlError("42701", message, offset=definition.offset)
        columns.append(_column(definition, names))
    return tuple(columns)


def _column(definition: ColumnDefinition, names: Names) -> NamedColumn:
    of_domain = domain_of(definition.type, names)
    kind = of_domain.type if of_domain else type_of(definition.type)
    modifier = of_domain.modifier if of_domain else modifier_of_type(definition.type)
    require_stored([kind])
    if definition.type.fields or (definition.type.modifiers and modifier is None):
        hint = f"Write {kind.value}: values are stored as they are."
        message = f"type modifiers of columns are not supported, as of {definition.type.name}"
        raise SqlError("0A000", message, offset=definition.type.offset, hint=hint)
    default, generated, identity = definition.default, definition.generated, definition.identity
    text = default.text if default else None
    if of_domain is not None and default is None and generated is None:
        text = of_domain.default
    if identity is not None:
        require_integer(kind, definition.type.offset)
    clauses = {"default": default, "identity": identity, "generation expression": generated}
    if len(given := [name for name, clause in clauses.items() if clause is not None]) > 1:
        message = f'both {given[0]} and {given[1]} specified for column "{definition.name}"'
        raise SqlError("42601", message, offset=definition.offset)
    column = NamedColumn(
        definition.name,
        kind,
        definition.is_nullable,
        modifier,
        text,
        identity,
        generated=generated.text if generated else None,
        domain=of_domain.domain if of_domain else None,
    )
    if default is not None:
        column = replace(column, default=default_text(default.expression, default.text, column, names))
    return column


_INTEGERS = (Type.SMALLINT, Type.INTEGER, Type.BIGINT)


def require_integer(kind: Type, offset: int) -> None:
    """Check that an identity column has an integer type (22023)."""
    if kind not in _INTEGERS:
        raise SqlError("22023", "identity column type must be smallint, integer, or bigint", offset=offset)


def plan_table(statement: CreateTable, names: Names, is_taken: Callable[[str], bool]) -> NamedRelation:
    """Plan a new table with its constraints; its identifier is 0, and its identity columns have no counters yet.

    Args:
        statement: CREATE TABLE with columns.
        names: names of relations.
        is_taken: whether a relation has a name.

    Raises:
        SqlError: as for `columns_of_definitions` and `with_constraints`; 42P17, a generation expression is invalid.
    """
    columns = columns_of_definitions(statement.columns, names)
    name = statement.name.name
    columns = tuple(
        with_sequence(name, column, definition.numbering, lambda other: other == name or is_taken(other))
        for definition, column in zip(statement.columns, columns, strict=True)
    )
    schema = statement.name.schema or "public"
    table = NamedRelation(0, name, columns, RelationKind.TABLE, schema=schema)
    for definition, column in zip(statement.columns, columns, strict=True):
        if definition.generated is not None:
            check_generation(definition.generated.expression, column, table, names)
    own = [constraint for definition in statement.columns for constraint in definition.constraints]

    def is_used(name: str) -> bool:
        return name == table.name or is_taken(name)

    return with_constraints(table, (*own, *statement.constraints), names, is_used)


def refuse_constraints(definitions: Sequence[ColumnDefinition]) -> None:
    """Check that columns of a source have no constraints, no identity and no generation expression.

    Raises:
        SqlError: a column has one of these (0A000).
    """
    for definition in definitions:
        if definition.constraints or definition.identity or definition.generated:
            message = f'column "{definition.name}" of a source can only be NOT NULL'
            raise SqlError("0A000", message, offset=definition.offset)


def relation_named(name: QualifiedName, names: Names) -> NamedRelation:
    """Return the relation of a name in a statement.

    Raises:
        SqlError: the relation does not exist (42P01).
    """
    return TablePlanner(QueryPlanner(names, ParameterTypes())).named(name)


def indexes_of(table: NamedRelation, columns: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return the indexes of named columns, each with its offset in the statement; without names, the indexes of all.

    Raises:
        SqlError: 42703, the column does not exist; 42701, a column is named twice.
    """
    indexes: list[int] = []
    for name, offset in columns:
        index = column_named(table, name, offset)
        if index in indexes:
            raise SqlError("42701", f'column "{name}" specified more than once', offset=offset)
        indexes.append(index)
    return tuple(indexes) or tuple(range(len(table.columns)))


def copied_columns(table: NamedRelation, columns: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return the indexes of the columns that COPY reads or writes: named columns, or all that are not generated.

    Raises:
        SqlError: 42703, the column does not exist; 42701, a column is named twice; 42P10, a column is generated.
    """
    indexes = indexes_of(table, columns)
    if not columns:
        return tuple(index for index in indexes if table.columns[index].generated is None)
    for index, (name, offset) in zip(indexes, columns, strict=True):
        if table.columns[index].generated is not None:
            detail = "Generated columns cannot be used in COPY."
            raise SqlError("42P10", f'column "{name}" is a generated column', offset=offset, detail=detail)
    return indexes


def copied_table(name: QualifiedName, names: Names) -> NamedRelation:
    """Return the table that COPY … FROM writes.

    Raises:
        SqlError: 42P01, the table does not exist; 42809, the relation is not a table.
    """
    return writable_table(QueryPlanner(names, ParameterTypes()), name)


def plan_relation(name: QualifiedName, names: Names, columns: Sequence[tuple[str, int]] = ()) -> PlannedQuery:
    """Plan a query of all rows of a relation, for `TABLE name` or `COPY name (columns) TO`.

    Raises:
        SqlError: the relation does not exist or column (42P01 or 42703).
    """
    named = relation_named(name, names)
    relation, places = with_names(named.relation, len(named.columns))
    if named.kind is RelationKind.SYSTEM:
        named = replace(named, columns=named.columns[:-1])  # without the hidden column
    indexes = indexes_of(named, columns)
    shown = tuple(
        PlannedColumn(named.columns[index].name, relation.types[places[index]], named.columns[index].modifier)
        for index in indexes
    )
    finishing = Finishing((), None, 0, tuple(places[index] for index in indexes))
    return PlannedQuery(relation, finishing, shown, needs_context=needs_context(relation))


def plan_subscribed(name: QualifiedName, names: Names) -> PlannedView:
    """Plan a relation as the target of a subscription.

    Raises:
        SqlError: the relation does not exist (42P01).
    """
    named = relation_named(name, names)
    columns = tuple(PlannedColumn(column.name, column.type, column.modifier) for column in named.columns)
    return PlannedView(named.relation, columns)
