"""Set-returning functions in SELECT: each row of the query comes once for each of their rows, side by side.

While expressions are planned, a column from `ROWS` on stands for such a function. It is worked out after groups and
window functions, and before DISTINCT, unless rows are grouped by it. Where there are several, a row comes as often as
the longest of them has rows, and the others are NULL from their end on, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from derive.algebra.expression import Call, Column, Expression
from derive.algebra.relation import Relation, Unnest
from derive.algebra.rewrite import rewritten, with_columns
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_cast
from derive.functions.scalar.row_functions import ROW_FUNCTIONS
from derive.sql.parser.ast import FunctionCall
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.scope import ROWS, Clause, Frame, RowTarget
from derive.sql.planner.table_functions import array_of_call, array_of_unnest, zipped, zipped_elements


def is_row_function(name: str) -> bool:
    """Whether a function of a name returns rows."""
    return name in ROW_FUNCTIONS or name == "unnest"


def row_target(expressions: Expressions, node: FunctionCall) -> Expression:
    """Return what stands for a set-returning function until its rows are worked out.

    Raises:
        SqlError: 0A000, it is in a clause or an expression where there can be none; 42883, there is no such function.
    """
    frame, name = expressions.frame, node.name.name
    if not frame.clause.has_rows:
        raise _refusal(frame.clause, node.offset)
    before = len(frame.rows)
    if name == "unnest":
        if len(node.arguments) != 1:
            hint = "Several arrays side by side stand in FROM."
            raise SqlError("42883", "function unnest takes one argument here", offset=node.offset, hint=hint)
        array = array_of_unnest(expressions, node.arguments[0], node.offset)
    else:
        array = array_of_call(expressions, node)
    if len(frame.rows) > before:
        hint = "Put the inner one in FROM."
        raise SqlError("0A000", "nested set-returning functions are not supported", offset=node.offset, hint=hint)
    assert array.type.element is not None
    kind = ROW_FUNCTIONS[name].type if name in ROW_FUNCTIONS else None
    target = RowTarget(array, kind or array.type.element, node.offset)
    frame.rows.append(target)
    # Equal calls give equal rows, so that ORDER BY and GROUP BY may repeat what is selected.
    index = next(at for at, other in enumerate(frame.rows) if (other.array, other.type) == (array, target.type))
    return Column(ROWS + index, target.type)


def _refusal(clause: Clause, offset: int) -> SqlError:
    if clause.is_aggregate:
        message = "aggregate function calls cannot contain set-returning function calls"
    elif clause.name == "functions in FROM":
        message = "set-returning functions must appear at top level of FROM"
    else:
        message = f"set-returning functions are not allowed in {clause.name}"
    hint = "You might be able to move the set-returning function into a LATERAL FROM item."
    return SqlError("0A000", message, offset=offset, hint=hint)


def check_no_rows(frame: Frame, before: int, construct: str) -> None:
    """Check that nothing returns rows of what was planned since there were so many of them.

    Raises:
        SqlError: 0A000, something does.
    """
    if len(frame.rows) > before:
        raise _refusal(Clause(construct), frame.rows[before].offset)


def rows_within(expressions: Sequence[Expression]) -> list[int]:
    """Return the indexes of the set-returning functions that expressions have, in their order."""
    indexes: dict[int, None] = {}

    def note(part: Expression, depth: int) -> Expression | None:
        if depth == 0 and isinstance(part, Column) and part.index >= ROWS:
            indexes[part.index - ROWS] = None
        return None

    for expression in expressions:
        rewritten(expression, note)
    return list(indexes)


def with_rows(relation: Relation, frame: Frame, indexes: Sequence[int]) -> tuple[Relation, Mapping[int, Expression]]:
    """Return a relation's rows, once for each row of set-returning functions.

    Args:
        relation: whose columns come first.
        frame: the query.
        indexes: of the functions, at least one.

    Returns:
        The relation, and what stands for each function from then on.
    """
    targets = [frame.rows[index] for index in indexes]
    width = len(relation.types)
    if len(targets) == 1:
        element = targets[0].array.type.element
        assert element is not None
        relation = Unnest(relation, targets[0].array)
        return relation, {indexes[0]: _value(Column(width, element), targets[0])}
    arrays = tuple(target.array for target in targets)
    elements = zip(indexes, zipped_elements(arrays, Column(width, Type.BYTEA)), targets, strict=True)
    return Unnest(relation, zipped(arrays)), {index: _value(element, target) for index, element, target in elements}


def replaced_rows(expression: Expression, values: Mapping[int, Expression]) -> Expression:
    """Return an expression with values in place of set-returning functions."""

    def value(column: Column) -> Expression:
        return values.get(column.index - ROWS, column) if column.index >= ROWS else column

    return with_columns(expression, value)


def _value(element: Expression, target: RowTarget) -> Expression:
    """An element as a value of the function's type, of which it may be the text."""
    if element.type is target.type:
        return element
    name = resolve_cast(element.type, target.type, "explicit")
    assert name
    return Call(name, (element,), target.type)
