"""Columns of a result, referred to by their names or numbers in GROUP BY, ORDER BY and DISTINCT ON."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression
from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, NullLiteral, NumberLiteral, StringLiteral, SyntaxNode


def ordinal_of(node: SyntaxNode, count: int, clause: str) -> int | None:
    """The index of the column of a result that a number stands for; None for what is no constant.

    Raises:
        SqlError: 42P10, there are fewer columns; 42601, it is another constant.
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
    """The index of the column of a result that has a name; None if none has.

    Raises:
        SqlError: 42702, several have it that are not equal.
    """
    if len(node.parts) != 1:
        return None
    indexes = [index for index, (name, _) in enumerate(outputs) if name == node.parts[0]]
    if len({outputs[index][1] for index in indexes}) > 1:
        raise SqlError("42702", f'{clause} "{node.parts[0]}" is ambiguous', offset=node.offset)
    return indexes[0] if indexes else None
