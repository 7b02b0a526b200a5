"""Planner of CREATE and ALTER TABLE: the columns of relations, and a table's rows with new columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Finishing
from derive.algebra.rewrite import mentions
from derive.algebra.types import CATALOG_TYPES, Type
from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import (
    AddColumn,
    ColumnDefinition,
    DropColumn,
    RenameColumn,
    SetDefault,
    SetNullable,
    TableAction,
)
from derive.sql.planner.building import projected
from derive.sql.planner.coercion import ParameterTypes, modifier_of_type, type_of
from derive.sql.planner.dependencies import needs_context
from derive.sql.planner.dml import column_named, default_of, plan_default, writable_table
from derive.sql.planner.from_clause import TablePlanner
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.plan import PlannedView, with_names
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, is_of_session
from derive.sql.planner.queries import QueryPlanner

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
        raise SqlError("54011", what, hint="combine columns that are read together in a jsonb")


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
    """Plan the columns of a new table.

    Raises:
        SqlError: 42701, two columns have one name; 42704 or 0A000, a type is unknown or not supported; 54011, there are
            too many columns.
    """
    require_narrow(len(definitions))
    require_stored([type_of(definition.type) for definition in definitions])
    columns: list[NamedColumn] = []
    for definition in definitions:
        if any(column.name == definition.name for column in columns):
            message = f'column "{definition.name}" specified more than once'
            raise SqlError("42701", message, offset=definition.offset)
        kind, modifier = type_of(definition.type), modifier_of_type(definition.type)
        if definition.type.modifiers and modifier is None:
            hint = f"Write {kind.value}: values are stored as they are."
            message = f"type modifiers of columns are not supported, as of {definition.type.name}"
            raise SqlError("0A000", message, offset=definition.type.offset, hint=hint)
        default = definition.default
        column = NamedColumn(definition.name, kind, definition.is_nullable, modifier, default.text if default else None)
        if default is not None:
            plan_default(default.expression, column, names)
        columns.append(column)
    return tuple(columns)


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


def plan_altered(
    table: NamedRelation, actions: Sequence[TableAction], names: Names
) -> tuple[tuple[NamedColumn, ...], PlannedQuery]:
    """Plan ALTER TABLE.

    Args:
        table: the table before.
        actions: changes of its columns, in order.
        names: names of relations.

    Returns:
        The new columns, and a query of the rows in which a new column has its default.

    Raises:
        SqlError: 42701, a column exists already; 42703, the column does not exist; 54011, the columns are too many.
    """
    columns: list[tuple[NamedColumn, Expression]] = [
        (column, Column(index, column.type)) for index, column in enumerate(table.columns)
    ]
    for action in actions:
        now = NamedRelation(table.id, table.name, tuple(column for column, _ in columns), table.kind)
        known = {column.name for column in now.columns}
        match action:
            case AddColumn(definition, if_not_exists):
                if definition.name not in known:
                    (column,) = columns_of_definitions([definition], names)
                    columns.append((column, default_of(column, names)))
                elif not if_not_exists:
                    raise _exists(definition.name, table, definition.offset)
            case DropColumn(name, offset, if_exists):
                if name in known or not if_exists:
                    del columns[column_named(now, name, offset)]
            case RenameColumn(name, offset, new_name, new_offset):
                index = column_named(now, name, offset)
                if new_name in known:
                    raise _exists(new_name, table, new_offset)
                columns[index] = (replace(now.columns[index], name=new_name), columns[index][1])
            case SetDefault(name, offset, default):
                index = column_named(now, name, offset)
                column = replace(now.columns[index], default=default.text if default else None)
                if default is not None:
                    plan_default(default.expression, column, names)
                columns[index] = (column, columns[index][1])
            case SetNullable(name, offset, is_nullable):
                index = column_named(now, name, offset)
                columns[index] = (replace(now.columns[index], is_nullable=is_nullable), columns[index][1])
    require_narrow(len(columns))
    relation = projected(table.relation, [value for _, value in columns])
    shown = tuple(PlannedColumn(column.name, column.type) for column, _ in columns)
    finishing = Finishing((), None, 0, tuple(range(len(columns))))
    of_session, context = mentions(relation, is_of_session), needs_context(relation)
    query = PlannedQuery(relation, finishing, shown, is_of_session=of_session, needs_context=context)
    return tuple(column for column, _ in columns), query


def _exists(name: str, table: NamedRelation, offset: int) -> SqlError:
    return SqlError("42701", f'column "{name}" of relation "{table.name}" already exists', offset=offset)
