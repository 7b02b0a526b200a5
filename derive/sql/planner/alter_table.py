"""ALTER TABLE: the columns that a table has afterwards, and its rows with these, as a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Finishing
from derive.algebra.rewrite import mentions
from derive.errors import SqlError
from derive.sql.parser.definition import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SetDefault,
    SetNullable,
    TableAction,
)
from derive.sql.planner.building import projected
from derive.sql.planner.ddl import columns_of_definitions, require_narrow
from derive.sql.planner.defaults import default_of, plan_default
from derive.sql.planner.dml import column_named
from derive.sql.planner.names import NamedColumn, NamedRelation, Names
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, is_of_session


def plan_altered(
    table: NamedRelation, actions: Sequence[TableAction], names: Names
) -> tuple[tuple[NamedColumn, ...], PlannedQuery]:
    """What a table is to be.

    Args:
        table: as it is.
        actions: what is done to it, one after the other.
        names: what defaults may refer to.

    Returns:
        Its columns, and its rows, in which a new column has its default.

    Raises:
        SqlError: 42701, there is such a column; 42703, there is none; 54011, there are too many.
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
    query = PlannedQuery(relation, finishing, shown, is_of_session=mentions(relation, is_of_session))
    return tuple(column for column, _ in columns), query


def _exists(name: str, table: NamedRelation, offset: int) -> SqlError:
    return SqlError("42701", f'column "{name}" of relation "{table.name}" already exists', offset=offset)
