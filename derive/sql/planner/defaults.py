"""Defaults of columns, which are evaluated for each new row."""

from __future__ import annotations

from derive.algebra.expression import Expression, Literal
from derive.errors import SqlError
from derive.sql.parser.ast import SyntaxNode
from derive.sql.parser.parse import parse_expression
from derive.sql.planner.building import has_subquery
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.extent import start_of
from derive.sql.planner.names import NamedColumn, Names
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame

_DEFAULT = Clause("DEFAULT expressions")


def plan_default(node: SyntaxNode, column: NamedColumn, names: Names) -> Expression:
    """Plan a DEFAULT expression.

    Args:
        node: the expression.
        column: the column.
        names: names of relations; a default may not refer to any.

    Raises:
        SqlError: 42804, the type does not fit; 0A000, the expression refers to columns or relations; and others.
    """
    parameters = ParameterTypes()
    queries = QueryPlanner(names, parameters)
    expressions = ExpressionPlanner(queries, Frame(NO_SOURCE, None, _DEFAULT))
    try:
        value = expressions.plan(node)
    except SqlError as error:
        if error.sqlstate != "42703":
            raise
        message = "cannot use column reference in DEFAULT expression"
        raise SqlError("0A000", message, offset=error.offset, hint="Quote texts as in 'text'.") from error
    if has_subquery(value):
        raise SqlError("0A000", "cannot use subquery in DEFAULT expression", offset=start_of(node))
    cast = queries.coercion.cast(value, column.type, start_of(node), "assignment")
    if parameters.finish():
        raise SqlError("42P02", "there is no parameter $1 in a default", offset=start_of(node))
    if cast is None:
        message = f'column "{column.name}" is of type {column.type.value}'
        message += f" but default expression is of type {value.type.value}"
        hint = "You will need to rewrite or cast the expression."
        raise SqlError("42804", message, offset=start_of(node), hint=hint)
    return queries.coercion.fitted(cast, column.modifier)


def default_of(column: NamedColumn, names: Names) -> Expression:
    """Return the default expression of a column; NULL without a default."""
    if column.default is None:
        return Literal(None, column.type)
    return plan_default(parse_expression(column.default), column, names)
