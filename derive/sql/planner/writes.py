"""Planner of the statements that write a table: INSERT, UPDATE, DELETE and MERGE."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Type
from derive.sql.parser.parse import too_complex
from derive.sql.parser.statement import Delete, Insert, Merge, RowWrite, Update
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.dml import DeletePlanner, InsertPlanner, UpdatePlanner, Writer, writable_table
from derive.sql.planner.interfaces import Names
from derive.sql.planner.merge import MergePlanner
from derive.sql.planner.planned import PlannedWrite
from derive.sql.planner.queries import QueryPlanner


def plan_write(statement: RowWrite, names: Names, types: Sequence[Type | None] = ()) -> PlannedWrite:
    """Plan a statement that writes a table.

    Args:
        statement: the statement.
        names: names of relations.
        types: types of its parameters, as far as known.

    Raises:
        SqlError: the statement is invalid; the offset shows the cause.
    """
    parameters = ParameterTypes(types)
    try:
        return plan_write_of(statement, QueryPlanner(names, parameters), parameters)
    except RecursionError:
        raise too_complex() from None


def plan_write_of(statement: RowWrite, queries: QueryPlanner, parameters: ParameterTypes) -> PlannedWrite:
    """Plan a statement that writes a table, and that may refer to common table expressions of `queries`."""
    table = writable_table(queries, statement.relation)
    writer = Writer(queries, parameters, table, statement.relation.name)
    queries.define(statement.common, None)
    match statement:
        case Insert():
            return InsertPlanner(writer, statement).plan()
        case Update():
            return UpdatePlanner(writer, statement).plan()
        case Delete():
            return DeletePlanner(writer, statement).plan()
        case Merge():
            return MergePlanner(writer, statement).plan()
