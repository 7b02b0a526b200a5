"""What rows are ordered by, and the windows of window functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.parser.ast import FrameBound, SortItem, SyntaxNode, WindowDefinition, WindowFrame
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind

if TYPE_CHECKING:
    from derive.sql.parser.expressions import ExpressionParser

_ORDERS = {"<": False, ">": True}


def parse_sort_items(reader: TokenReader, expressions: ExpressionParser) -> tuple[SortItem, ...]:
    """Read `ORDER BY` and what is behind it."""
    reader.expect_words("order", "by")
    return reader.list_of(lambda: _sort_item(reader, expressions))


def _sort_item(reader: TokenReader, expressions: ExpressionParser) -> SortItem:
    offset = reader.offset
    expression = expressions.parse()
    if reader.accept_word("using"):
        if not reader.is_symbol(*_ORDERS):
            raise reader.error()
        is_descending = _ORDERS[reader.next().value]
    else:
        is_descending = reader.accept_word("asc", "desc") == "desc"
    nulls_first = None
    if reader.accept_word("nulls"):
        nulls_first = reader.expect_word("first", "last").value == "first"
    return SortItem(expression, is_descending, nulls_first, offset)


def parse_window(reader: TokenReader, expressions: ExpressionParser) -> WindowDefinition:
    """Read a window's definition in parentheses."""
    offset = reader.expect_symbol("(").offset
    base = None
    is_clause = reader.is_words("partition", "by") or reader.is_words("order", "by") or _begins_frame(reader)
    if not reader.is_symbol(")") and not is_clause:
        base = reader.name()
    partition: tuple[SyntaxNode, ...] = ()
    if reader.accept_words("partition", "by"):
        partition = reader.list_of(expressions.parse)
    order = parse_sort_items(reader, expressions) if reader.is_words("order", "by") else ()
    frame = _frame(reader, expressions) if _begins_frame(reader) else None
    reader.expect_symbol(")")
    return WindowDefinition(base, partition, order, frame, offset)


def _begins_frame(reader: TokenReader) -> bool:
    behind = reader.ahead()
    return reader.is_word("rows", "range", "groups") and not (behind.kind is TokenKind.SYMBOL and behind.value == ")")


def _frame(reader: TokenReader, expressions: ExpressionParser) -> WindowFrame:
    offset = reader.offset
    unit = reader.next().value
    if reader.accept_word("between"):
        begin = _bound(reader, expressions)
        reader.expect_word("and")
        end = _bound(reader, expressions)
    else:
        begin = _bound(reader, expressions)
        end = FrameBound("current row", None, offset)
    _check_bounds(begin, end)
    exclusion = None
    if reader.accept_word("exclude"):
        exclusion = _exclusion(reader)
    return WindowFrame(unit, begin, end, exclusion, offset)


def _exclusion(reader: TokenReader) -> str | None:
    if reader.accept_words("no", "others"):
        return None
    if reader.accept_words("current", "row"):
        return "current row"
    return reader.expect_word("group", "ties").value


def _bound(reader: TokenReader, expressions: ExpressionParser) -> FrameBound:
    offset = reader.offset
    if reader.accept_word("unbounded"):
        return FrameBound(f"unbounded {reader.expect_word('preceding', 'following').value}", None, offset)
    if reader.accept_words("current", "row"):
        return FrameBound("current row", None, offset)
    distance = expressions.parse()
    return FrameBound(reader.expect_word("preceding", "following").value, distance, offset)


def _check_bounds(begin: FrameBound, end: FrameBound) -> None:
    if begin.kind == "unbounded following":
        raise SqlError("42P20", "frame start cannot be UNBOUNDED FOLLOWING", offset=begin.offset)
    if end.kind == "unbounded preceding":
        raise SqlError("42P20", "frame end cannot be UNBOUNDED PRECEDING", offset=end.offset)
    if begin.kind == "current row" and end.kind == "preceding":
        raise SqlError("42P20", "frame starting from current row cannot have preceding rows", offset=end.offset)
    if begin.kind == "following" and end.kind in {"preceding", "current row"}:
        raise SqlError("42P20", "frame starting from following row cannot have preceding rows", offset=end.offset)
