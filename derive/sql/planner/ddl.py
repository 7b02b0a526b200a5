"""Relations that statements name or define: their columns."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.relation import Finishing
from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.definition import ColumnDefinition
from derive.sql.planner.defaults import plan_default
from derive.sql.planner.dml import column_named, writable_table
from derive.sql.planner.from_clause import TablePlanner
from derive.sql.planner.names import NamedColumn, NamedRelation, Names
from derive.sql.planner.parameters import ParameterTypes
from derive.sql.planner.plan import PlannedView
from derive.sql.planner.planned import PlannedColumn, PlannedQuery
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.type_names import form_of_type, type_of

MOST_COLUMNS = 1600
"""Of a relation, as PostgreSQL has it. SQLite takes 2,000, and what maintains a view has some of its own."""


def require_narrow(count: int) -> None:
    """Check that a relation may have so many columns.

    Raises:
        SqlError: 54011, it may not.
    """
    if count > MOST_COLUMNS:
        what = f"tables can have at most {MOST_COLUMNS} columns"
        raise SqlError("54011", what, hint="make a jsonb of those that are read together")


def columns_of_definitions(definitions: Sequence[ColumnDefinition], names: Names) -> tuple[NamedColumn, ...]:
    """The columns of a new table.

    Raises:
        SqlError: 42701, two have one name; 42704 or 0A000, a type is not known or not supported; 54011, too many.
    """
    require_narrow(len(definitions))
    columns: list[NamedColumn] = []
    for definition in definitions:
        if any(column.name == definition.name for column in columns):
            message = f'column "{definition.name}" specified more than once'
            raise SqlError("42701", message, offset=definition.offset)
        kind, form = type_of(definition.type), form_of_type(definition.type)
        if definition.type.modifiers and form is None:
            hint = f"Write {kind.value}: values are stored as they are."
            message = f"type modifiers of columns are not supported, as of {definition.type.name}"
            raise SqlError("0A000", message, offset=definition.type.offset, hint=hint)
        default = definition.default
        column = NamedColumn(definition.name, kind, definition.is_nullable, form, default.text if default else None)
        if default is not None:
            plan_default(default.expression, column, names)
        columns.append(column)
    return tuple(columns)


def relation_named(name: QualifiedName, names: Names) -> NamedRelation:
    """What a name in a statement stands for.

    Raises:
        SqlError: 42P01, nothing has it.
    """
    return TablePlanner(QueryPlanner(names, ParameterTypes())).named(name)


def indexes_of(table: NamedRelation, columns: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Where columns are in a relation that a statement names, each with its offset; all of them if it names none.

    Raises:
        SqlError: 42703, there is none of a name; 42701, one is named twice.
    """
    indexes: list[int] = []
    for name, offset in columns:
        index = column_named(table, name, offset)
        if index in indexes:
            raise SqlError("42701", f'column "{name}" specified more than once', offset=offset)
        indexes.append(index)
    return tuple(indexes) or tuple(range(len(table.columns)))


def copied_table(name: QualifiedName, names: Names) -> NamedRelation:
    """The table that COPY … FROM writes.

    Raises:
        SqlError: 42P01, there is none; 42809, it is something else.
    """
    return writable_table(QueryPlanner(names, ParameterTypes()), name)


def plan_relation(name: QualifiedName, names: Names, columns: Sequence[tuple[str, int]] = ()) -> PlannedQuery:
    """All rows of a relation, as `TABLE name` or `COPY name (columns) TO` ask for them.

    Raises:
        SqlError: 42P01 or 42703, there is no such relation or column.
    """
    named = relation_named(name, names)
    indexes = indexes_of(named, columns)
    columns_shown = [named.columns[index] for index in indexes]
    shown = tuple(PlannedColumn(column.name, column.type, column.form) for column in columns_shown)
    return PlannedQuery(named.relation, Finishing((), None, 0, indexes), shown)


def plan_subscribed(name: QualifiedName, names: Names) -> PlannedView:
    """A relation by its name, as what is subscribed to.

    Raises:
        SqlError: 42P01, there is none.
    """
    named = relation_named(name, names)
    columns = tuple(PlannedColumn(column.name, column.type, column.form) for column in named.columns)
    return PlannedView(named.relation, columns)
