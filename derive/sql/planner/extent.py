"""Offsets of expressions, and default names of result columns."""

from __future__ import annotations

from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    Between,
    CaseExpression,
    Collation,
    ColumnReference,
    DistinctTest,
    Exists,
    FunctionCall,
    InList,
    Logical,
    Operation,
    Quantified,
    Query,
    RowValue,
    ScalarQuery,
    Select,
    SetQuery,
    Star,
    Subscript,
    SyntaxNode,
    Test,
    TypeCast,
    Values,
)

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
    """Return a name, and whether the name is stronger than that of a type or a keyword."""
    match node:
        case ColumnReference(parts):
            return parts[-1], True
        case FunctionCall(called):
            return called.name, True
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
