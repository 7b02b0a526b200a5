"""Parser of ORDER BY and of windows with their frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.parser.ast import FrameBound, RowValue, SortItem, SyntaxNode, WindowDefinition, WindowFrame
from derive.sql.parser.tokens import TokenKind, TokenReader

ParseExpression: TypeAlias = Callable[[], SyntaxNode]
"""A function that reads an expression."""

_ORDERS = {"<": False, ">": True}


def parse_sort_items(reader: TokenReader, parse: ParseExpression) -> tuple[SortItem, ...]:
    """Read an `ORDER BY` clause."""
    reader.expect_words("order", "by")
    items = reader.list_of(lambda: _sort_item(reader, parse))
    return tuple(field for item in items for field in _fields(item))


def _fields(item: SortItem) -> Iterator[SortItem]:
    """Yield the sort keys of an item; a row is ordered by its fields, and NULLS FIRST concerns rows that are NULL."""
    if not isinstance(item.expression, RowValue):
        yield item
        return
    for field in item.expression.items:
        yield from _fields(SortItem(field, item.is_descending, None, item.offset, is_field=True))


def _sort_item(reader: TokenReader, parse: ParseExpression) -> SortItem:
    offset = reader.offset
    expression = parse()
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


def parse_window(reader: TokenReader, parse: ParseExpression) -> WindowDefinition:
    """Read a window definition in parentheses."""
    offset = reader.expect_symbol("(").offset
    base = None
    is_clause = reader.is_words("partition", "by") or reader.is_words("order", "by") or _begins_frame(reader)
    if not reader.is_symbol(")") and not is_clause:
        base = reader.name()
    partition: tuple[SyntaxNode, ...] = ()
    if reader.accept_words("partition", "by"):
        listed = reader.list_of(parse)
        partition = tuple(key for node in listed for key in (node.items if isinstance(node, RowValue) else (node,)))
    order = parse_sort_items(reader, parse) if reader.is_words("order", "by") else ()
    frame = _frame(reader, parse) if _begins_frame(reader) else None
    reader.expect_symbol(")")
    return WindowDefinition(base, partition, order, frame, offset)


def _begins_frame(reader: TokenReader) -> bool:
    behind = reader.ahead()
    return reader.is_word("rows", "range", "groups") and not (behind.kind is TokenKind.SYMBOL and behind.value == ")")


def _frame(reader: TokenReader, parse: ParseExpression) -> WindowFrame:
    offset = reader.offset
    unit = reader.next().value
    if reader.accept_word("between"):
        begin = _bound(reader, parse)
        reader.expect_word("and")
        end = _bound(reader, parse)
    else:
        begin = _bound(reader, parse)
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


def _bound(reader: TokenReader, parse: ParseExpression) -> FrameBound:
    offset = reader.offset
    if reader.accept_word("unbounded"):
        return FrameBound(f"unbounded {reader.expect_word('preceding', 'following').value}", None, offset)
    if reader.accept_words("current", "row"):
        return FrameBound("current row", None, offset)
    distance = parse()
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
