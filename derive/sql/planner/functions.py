"""Planner of functions in SQL: the expression of a function's body, which takes the place of each call."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression, Literal, Subquery, SubqueryKind
from derive.algebra.relation import Constant, Project, Reduce, Relation
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Function
from derive.functions.resolve import ambiguous_function, choose
from derive.sql.parser.ast import Query
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.interfaces import Body, NamedFunction, Names, limited
from derive.sql.planner.queries import QueryPlanner

_ONE_ROW = Constant(((),), ())


def plan_body(
    query: Query, names: Names, name: str, arguments: Sequence[tuple[str | None, Type]], result: Type
) -> Expression:
    """Plan the body of a function: an expression in which the arguments are parameters.

    Args:
        query: the query of the body; the value of the function is the first column of its first row.
        names: names of relations and of other functions.
        name: name of the function, which may qualify the names of its arguments.
        arguments: names and types of the arguments.
        result: type of the value.

    Raises:
        SqlError: the query is invalid; 42P02, it has more parameters than the function has arguments; 42P13, its
            column is not of the type of the result.
    """
    parameters = ParameterTypes([kind for _, kind in arguments])
    queries = QueryPlanner(names, parameters)
    own = {argument: index for index, (argument, _) in enumerate(arguments) if argument is not None}
    queries.arguments = {**own, **{f"{name}.{argument}": index for argument, index in own.items()}}
    body = queries.plan(query, None)
    if len(parameters.known()) > len(arguments):
        raise SqlError("42P02", f"there is no parameter ${len(arguments) + 1}")
    message = f"return type mismatch in function declared to return {result.value}"
    if len(body.names) != 1:
        raise SqlError("42P13", message, detail="Final statement must return exactly one column.")
    value = _value_of(body)
    cast = queries.coercion.cast(value, result, 0, "assignment")
    if cast is None:
        raise SqlError("42P13", message, detail=f"Actual return type is {value.type.value}.")
    return cast


def _value_of(body: Body) -> Expression:
    """Return the first column of the first row of a query as an expression."""
    relation = body.relation
    if body.limit is None and body.offset is None:
        if isinstance(relation, Project) and relation.input == _ONE_ROW:
            return relation.expressions[0]
        if isinstance(relation, Constant) and len(relation.rows) == 1:
            return Literal(relation.rows[0][0], relation.types[0])
    else:
        relation = limited(relation, body.order, body.limit, body.offset)
    if not _has_one_row(relation):
        relation = limited(relation, body.order, Literal(1, Type.BIGINT), None)
    relation = projected(relation, columns_of(relation)[:1])
    return Subquery(SubqueryKind.SCALAR, relation, (), relation.types[0])


def _has_one_row(relation: Relation) -> bool:
    while isinstance(relation, Project):
        relation = relation.input
    return isinstance(relation, Reduce) and not relation.keys


def chosen(functions: Sequence[NamedFunction], types: Sequence[Type]) -> NamedFunction | None:
    """Return the function that takes arguments of these types; None if there is none.

    Raises:
        SqlError: several functions take these arguments (42725).
    """
    own = [
        Function(str(number), function.name, tuple(kind for _, kind in function.arguments), function.result)
        for number, function in enumerate(functions)
    ]
    fitting = choose(own, types)
    if len(fitting) > 1:
        raise ambiguous_function(functions[0].name, types, None)
    return functions[int(fitting[0].function)] if fitting else None
