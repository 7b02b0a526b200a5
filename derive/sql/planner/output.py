"""Result columns: default names, references by name or number in ORDER BY, and offsets of expressions."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression
from derive.algebra.relation import Order
from derive.errors import SqlError
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    Between,
    CaseExpression,
    Collation,
    ColumnReference,
    Construct,
    DistinctTest,
    Exists,
    FieldSelection,
    FunctionCall,
    InList,
    JsonQuery,
    Logical,
    NullLiteral,
    NumberLiteral,
    Operation,
    Quantified,
    Query,
    RowValue,
    ScalarQuery,
    Select,
    SetQuery,
    SortItem,
    Star,
    StringLiteral,
    Subscript,
    SyntaxNode,
    Test,
    TypeCast,
    Values,
)
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.scope import VisibleColumn

UNNAMED = "?column?"
"""The name of a result column without a name."""


def start_of(node: SyntaxNode) -> int:
    """Return the offset of an expression's first character, without parentheses."""
    match node:
        case Operation(_, operands) | Logical(_, operands):
            return min(node.offset, start_of(operands[0]))
        case Test(operand) | Between(operand) | InList(operand) | Quantified(operand) | Subscript(operand):
            return start_of(operand)
        case Collation(operand):
            return start_of(operand)
        case TypeCast(operand):
            return min(node.offset, start_of(operand))
        case DistinctTest(left):
            return start_of(left)
    return node.offset


def name_of(node: SyntaxNode) -> str:
    """Return PostgreSQL's name for a result column without an alias."""
    return _figured(node)[0] or UNNAMED


def _figured(node: SyntaxNode) -> tuple[str | None, bool]:  # noqa: PLR0911 (one for each kind)
    """Return a name, and whether this name has priority over the name of a type or a keyword."""
    match node:
        case ColumnReference(parts):
            return parts[-1], True
        case FunctionCall(called):
            return called.name, True
        case FieldSelection(_, field):
            return field, True
        case Construct(construct) | JsonQuery(construct):
            return construct, True
        case TypeCast(operand, target):
            name, is_strong = _figured(operand)
            return (name, True) if is_strong else (target.name, False)
        case CaseExpression(_, _, otherwise):
            name, is_strong = _figured(otherwise) if otherwise else (None, False)
            return (name, True) if is_strong else ("case", False)
        case Collation(operand) | Subscript(operand):
            return _figured(operand)
        case ScalarQuery(query):
            return _name_of_query(query), True
        case Exists():
            return "exists", True
        case ArrayValue() | ArrayQuery():
            return "array", True
        case RowValue():
            return "row", True
    return None, False


def _name_of_query(query: Query) -> str | None:
    body = query.body
    while not isinstance(body, Select):
        if isinstance(body, Values):
            return "column1"
        body = body.left if isinstance(body, SetQuery) else body.body
    if not body.items or isinstance(body.items[0].expression, Star):
        return None
    return body.items[0].name or name_of(body.items[0].expression)


def ordinal_of(node: SyntaxNode, count: int, clause: str) -> int | None:
    """Return the index of a result column for a number; None if the expression is not a constant.

    Raises:
        SqlError: there are fewer columns (42P10), or the constant is not an integer (42601).
    """
    if isinstance(node, NumberLiteral) and node.text.isdigit():
        if not 1 <= int(node.text) <= count:
            raise SqlError("42P10", f"{clause} position {node.text} is not in select list", offset=node.offset)
        return int(node.text) - 1
    if isinstance(node, NumberLiteral | StringLiteral | NullLiteral):
        raise SqlError("42601", f"non-integer constant in {clause}", offset=node.offset)
    return None


def output_named(
    node: ColumnReference, outputs: Sequence[tuple[str, Expression]], clause: str = "ORDER BY"
) -> int | None:
    """Return the index of the result column with a name; None if there is none.

    Raises:
        SqlError: several different columns have the name (42702).
    """
    if len(node.parts) != 1:
        return None
    indexes = [index for index, (name, _) in enumerate(outputs) if name == node.parts[0]]
    if len({outputs[index][1] for index in indexes}) > 1:
        raise SqlError("42702", f'{clause} "{node.parts[0]}" is ambiguous', offset=node.offset)
    return indexes[0] if indexes else None


def sorted_by(expression: Expression, item: SortItem) -> Order:
    """Return the order by an expression, with the direction and the place of NULLs."""
    nulls_first = item.is_descending if item.nulls_first is None else item.nulls_first
    return Order(expression, item.is_descending, nulls_first)


def sorted_column(column: VisibleColumn, item: SortItem) -> list[Order]:
    """Return the order by a column; by the fields of a row, after or before which a missing row comes."""
    if not column.fields:
        return [sorted_by(column.expression, item)]
    is_first = sorted_by(column.expression, item).nulls_first
    fields = (Order(one.expression, item.is_descending, item.is_descending) for one in column.fields)
    return [Order(column.expression, not is_first, is_first), *fields]


def orders_of(items: Sequence[SortItem], expressions: Expressions) -> tuple[Order, ...]:
    """Plan the order of an aggregate's arguments, or of a window."""
    return tuple(sorted_by(expressions.known(item.expression), item) for item in items)
