"""Aggregates behind WITHIN GROUP."""

from __future__ import annotations

from dataclasses import replace

from derive.algebra.expression import Expression, Literal, Parameter
from derive.algebra.relation import Aggregate
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.aggregates.ordered_sets import ORDERED_SETS
from derive.sql.parser.ast import FunctionCall, SyntaxNode
from derive.sql.planner.extent import start_of
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.output import orders_of


def ordered_set(expressions: Expressions, node: FunctionCall) -> Aggregate:
    """An aggregate of values in an order.

    Raises:
        SqlError: 42883, there is no such aggregate; 0A000, its fraction is no constant, or it is in a window.
    """
    name = node.name.name
    if name not in ORDERED_SETS:
        hint = f"Aggregates with WITHIN GROUP are {', '.join(ORDERED_SETS)}."
        message = f"function {name} does not exist for values WITHIN GROUP"
        raise SqlError("42883", message, offset=node.offset, hint=hint)
    if not node.is_within_group:
        hint = f"Write {name}(…) WITHIN GROUP (ORDER BY …)."
        raise SqlError("42883", f"WITHIN GROUP is required for {name}", offset=node.offset, hint=hint)
    if node.over is not None:
        raise SqlError("0A000", f"OVER is not supported for ordered-set aggregate {name}", offset=node.offset)
    if len(node.arguments) != ORDERED_SETS[name] or len(node.order) != 1:
        message = f"function {name} does not exist for so many arguments"
        raise SqlError("42883", message, offset=node.offset, hint="One expression stands behind ORDER BY.")
    fractions = [_fraction(expressions, argument, node) for argument in node.arguments]
    (order,) = orders_of(node.order, expressions)
    value, kind = order.expression, order.expression.type
    if name == "percentile_cont":
        kind = Type.DOUBLE
        as_double = expressions.coercion.cast(value, kind, start_of(node.order[0].expression))
        if as_double is None:
            what = f"percentiles of {value.type.value} are not supported"
            raise SqlError("0A000" if value.type is Type.INTERVAL else "42883", what, offset=node.offset)
        value = as_double
    condition = expressions.boolean(node.condition, "FILTER") if node.condition else None
    return Aggregate(name, (value, *fractions), kind, False, condition, (replace(order, expression=value),))


def _fraction(expressions: Expressions, argument: SyntaxNode, node: FunctionCall) -> Expression:
    value = expressions.plan(argument)
    cast = expressions.coercion.cast(value, Type.DOUBLE, start_of(argument))
    if cast is None:
        hint = "A percentile is a number from 0 to 1."
        raise SqlError("42883", f"function {node.name.name} takes no {value.type.value}", offset=node.offset, hint=hint)
    if not isinstance(cast, Literal | Parameter):
        what = f"the argument of {node.name.name} must be a constant"
        raise SqlError("0A000", what, offset=start_of(argument))
    return cast
