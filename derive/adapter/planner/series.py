"""Functions in FROM: `generate_series` of whole numbers that are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.adapter.parser.query_syntax import FunctionTable
from derive.adapter.planner.expression import ExpressionPlanner
from derive.adapter.planner.frame import NO_SOURCE, Clause, Frame
from derive.compute.algebra.expression import Literal
from derive.compute.algebra.relation import Constant, Relation
from derive.compute.algebra.types import Type
from derive.errors import SqlError

if TYPE_CHECKING:
    from derive.adapter.planner.query import QueryPlanner

_MOST_ROWS = 1_000_000


def series_of(queries: QueryPlanner, item: FunctionTable) -> tuple[Relation, tuple[str, ...]]:
    """The rows of a function in FROM, and the names of their columns.

    Raises:
        SqlError: 0A000, it is another function, or its arguments are not known.
    """
    call = item.call
    if call.name.name != "generate_series" or not 2 <= len(call.arguments) <= 3:
        hint = "The one function in FROM is generate_series of whole numbers."
        raise SqlError("0A000", f"{call.name} is not supported in FROM", offset=call.offset, hint=hint)
    expressions = ExpressionPlanner(queries, Frame(NO_SOURCE, None, Clause("functions in FROM")))
    numbers: list[int] = []
    kind = Type.INTEGER
    for argument in call.arguments:
        value = expressions.plan(argument)
        if not isinstance(value, Literal) or not isinstance(value.value, int):
            hint = "generate_series takes whole numbers, as they are written."
            raise SqlError("0A000", "these arguments are not supported in FROM", offset=argument.offset, hint=hint)
        numbers.append(value.value)
        kind = Type.BIGINT if value.type is Type.BIGINT else kind
    begin, end, step = (*numbers, 1)[:3]
    if step == 0:
        raise SqlError("22023", "step size cannot equal zero", offset=call.offset)
    series = range(begin, end + (1 if step > 0 else -1), step)
    if len(series) > _MOST_ROWS:
        raise SqlError("54000", f"generate_series has more than {_MOST_ROWS} rows", offset=call.offset)
    names = ("generate_series",) if item.alias is None else (item.alias.name,)
    if item.has_ordinality:
        rows = tuple((number, ordinal) for ordinal, number in enumerate(series, start=1))
        return Constant(rows, (kind, Type.BIGINT)), (*names, "ordinality")
    return Constant(tuple((number,) for number in series), (kind,)), names
