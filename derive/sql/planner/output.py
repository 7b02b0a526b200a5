"""ORDER BY, and references to result columns by name or number."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression
from derive.algebra.relation import Order
from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, NullLiteral, NumberLiteral, SortItem, StringLiteral, SyntaxNode
from derive.sql.planner.interfaces import Expressions


def ordinal_of(node: SyntaxNode, count: int, clause: str) -> int | None:
    """Return the index of the result column of a number; None if the expression is no constant.

    Raises:
        SqlError: 42P10, there are fewer columns; 42601, the constant is no integer.
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
        SqlError: 42702, several different columns have the name.
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


def orders_of(items: Sequence[SortItem], expressions: Expressions) -> tuple[Order, ...]:
    """Plan the order of an aggregate's arguments, or of a window."""
    return tuple(sorted_by(expressions.known(item.expression), item) for item in items)
