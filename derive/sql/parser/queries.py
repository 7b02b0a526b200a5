"""Queries of SQL."""

from __future__ import annotations

from collections.abc import Callable

from derive.errors import SqlError
from derive.sql.parser.ast import NumberLiteral, SortItem, Star, SyntaxNode, WindowDefinition
from derive.sql.parser.expressions import ExpressionParser
from derive.sql.parser.from_parser import FromParser
from derive.sql.parser.group_parser import parse_groups
from derive.sql.parser.query_syntax import (
    NO_WITH,
    CommonTable,
    FromItem,
    Query,
    QueryBody,
    RelationReference,
    Select,
    SelectItem,
    SetQuery,
    Values,
    With,
)
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind
from derive.sql.parser.window_parser import parse_sort_items, parse_window

_DEEPEST = 500
"""So many parentheses may be open at once."""


class QueryParser:
    """Reads queries."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self.expressions = ExpressionParser(reader, self)
        self.tables = FromParser(reader, self)

    def begins_query(self) -> bool:
        """Whether a query is next; where parentheses are, it may still be an expression."""
        reader = self._reader
        index = 0
        while reader.ahead(index).kind is TokenKind.SYMBOL and reader.ahead(index).value == "(":
            index += 1
            if index > _DEEPEST:
                raise SqlError(
                    "54001",
                    "stack depth limit exceeded",
                    hint="Write it with fewer parentheses, or in several steps.",
                    offset=reader.offset,
                )
        token = reader.ahead(index)
        return token.kind is TokenKind.WORD and token.value in {"select", "values", "with", "table"}

    def parse_if_query(self) -> Query | None:
        """Read a query that ends before a closing parenthesis, or nothing if it is an expression instead."""
        mark = self._reader.mark()
        if not self._reader.is_symbol("("):
            return self.parse()
        query = self.parse()
        if self._reader.is_symbol(")"):
            return query
        self._reader.return_to(mark)
        return None

    def parse(self) -> Query:
        """Read a query."""
        offset = self._reader.offset
        return self.parse_behind(self.parse_with(), offset)

    def parse_behind(self, common: With, offset: int) -> Query:
        """Read a query of which WITH, at an offset, was read."""
        reader, common_tables = self._reader, common.common_tables
        body = self._body()
        order: tuple[SortItem, ...] = ()
        if reader.is_words("order", "by"):
            order = parse_sort_items(reader, self.expressions)
        limit, limit_offset = self._limits()
        self._refuse_locks()
        if not (common_tables or order or limit or limit_offset) and isinstance(body, Query):
            return body
        return Query(body, common_tables, common.is_recursive, order, limit, limit_offset, offset)

    def parse_with(self) -> With:
        """Read WITH, if it is there."""
        if not self._reader.accept_word("with"):
            return NO_WITH
        is_recursive = self._reader.accept_word("recursive") is not None
        return With(self._reader.list_of(self._common_table), is_recursive)

    def _common_table(self) -> CommonTable:
        reader, offset = self._reader, self._reader.offset
        name = reader.name()
        columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
        reader.expect_word("as")
        if not reader.accept_words("not", "materialized"):
            reader.accept_word("materialized")
        reader.expect_symbol("(")
        if reader.is_word("insert", "update", "delete"):
            hint = "Write WITH before the statement that writes, and queries in WITH."
            raise SqlError("0A000", "statements that write are not supported in WITH", offset=reader.offset, hint=hint)
        query = self.parse()
        reader.expect_symbol(")")
        return CommonTable(name, columns, query, offset)

    def _body(self) -> QueryBody:
        left = self._intersection()
        while self._reader.is_word("union", "except"):
            left = self._set_query(left, self._intersection)
        return left

    def _intersection(self) -> QueryBody:
        left = self._primary()
        while self._reader.is_word("intersect"):
            left = self._set_query(left, self._primary)
        return left

    def _set_query(self, left: QueryBody, right: Callable[[], QueryBody]) -> QueryBody:
        offset = self._reader.offset
        operator = self._reader.next().value.upper()
        is_all = self._reader.accept_word("all", "distinct") == "all"
        return SetQuery(operator, is_all, left, right(), offset)

    def _primary(self) -> QueryBody:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("("):
            query = self.parse()
            reader.expect_symbol(")")
            return query
        if reader.accept_word("values"):
            return Values(reader.list_of(self._row), offset)
        if reader.accept_word("table"):
            star = SelectItem(Star((), offset), None, offset)
            relation = RelationReference(reader.qualified_name(), None, offset)
            return Select((star,), False, (), (relation,), None, None, None, (), offset)
        return self._select()

    def _row(self) -> tuple[SyntaxNode, ...]:
        return self._reader.in_parentheses(self.expressions.parse)

    def _select(self) -> Select:
        reader, offset = self._reader, self._reader.offset
        reader.expect_word("select")
        is_distinct, distinct_on = self._distinct()
        items: tuple[SelectItem, ...] = ()
        if not self._ends_items():
            items = reader.list_of(self.item)
        if reader.is_word("into"):
            raise SqlError("0A000", "SELECT INTO is not supported", offset=reader.offset, hint="Use CREATE TABLE … AS.")
        tables: tuple[FromItem, ...] = ()
        if reader.accept_word("from"):
            tables = reader.list_of(self.tables.parse)
        condition = self.expressions.parse() if reader.accept_word("where") else None
        groups = parse_groups(reader, self.expressions)
        having = self.expressions.parse() if reader.accept_word("having") else None
        windows = reader.list_of(self._window) if reader.accept_word("window") else ()
        return Select(items, is_distinct, distinct_on, tables, condition, groups, having, windows, offset)

    def _ends_items(self) -> bool:
        ends = (
            "from",
            "where",
            "group",
            "having",
            "window",
            "order",
            "limit",
            "offset",
            "union",
            "except",
            "intersect",
        )
        return self._reader.is_end() or self._reader.is_symbol(")", ";") or self._reader.is_word(*ends)

    def _distinct(self) -> tuple[bool, tuple[SyntaxNode, ...]]:
        if self._reader.accept_word("distinct", "all") != "distinct":
            return False, ()
        if not self._reader.accept_word("on"):
            return True, ()
        return False, self._reader.in_parentheses(self.expressions.parse)

    def item(self) -> SelectItem:
        """Read a column of a result, with its name."""
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("*"):
            return SelectItem(Star((), offset), None, offset)
        expression = self.expressions.parse()
        name = None
        if reader.is_word("as") and not self.begins_as_of():
            reader.next()
            name = reader.any_name()
        elif reader.is_bare_alias():
            name = reader.next().value
        return SelectItem(expression, name, offset)

    def begins_as_of(self) -> bool:
        """Whether `AS OF` and a time are next, rather than the alias `of`."""
        reader = self._reader
        if not reader.is_words("as", "of"):
            return False
        behind = reader.ahead(2)
        if behind.kind is TokenKind.SYMBOL:
            return behind.value in {"(", "-", "+"}
        ends = {"from", "where", "group", "order", "join", "left", "right", "inner", "cross", "full", "natural", "on"}
        return behind.kind is not TokenKind.END and behind.value not in ends

    def _window(self) -> tuple[str, WindowDefinition]:
        name = self._reader.name()
        self._reader.expect_word("as")
        return name, parse_window(self._reader, self.expressions)

    def _limits(self) -> tuple[SyntaxNode | None, SyntaxNode | None]:
        reader = self._reader
        limit: SyntaxNode | None = None
        offset: SyntaxNode | None = None
        has_limit = has_offset = False
        while True:
            if not has_limit and reader.accept_word("limit"):
                has_limit = True
                limit = None if reader.accept_word("all") else self.expressions.parse()
                if reader.is_symbol(","):
                    message = "LIMIT #,# syntax is not supported"
                    raise SqlError(
                        "42601", message, hint="Use separate LIMIT and OFFSET clauses.", offset=reader.offset
                    )
            elif not has_limit and reader.is_word("fetch") and reader.ahead().value in {"first", "next"}:
                has_limit = True
                limit = self._fetch_first()
            elif not has_offset and reader.accept_word("offset"):
                has_offset = True
                offset = self.expressions.parse()
                reader.accept_word("row", "rows")
            else:
                return limit, offset

    def _fetch_first(self) -> SyntaxNode:
        reader = self._reader
        reader.next()
        reader.next()
        limit: SyntaxNode = NumberLiteral("1", reader.offset)
        if not reader.is_word("row", "rows"):
            limit = self.expressions.parse()
        reader.expect_word("row", "rows")
        if reader.is_words("with", "ties"):
            raise SqlError("0A000", "WITH TIES is not supported", offset=reader.offset)
        reader.expect_word("only")
        return limit

    def _refuse_locks(self) -> None:
        reader = self._reader
        if reader.is_word("for") and reader.ahead().value in {"update", "share", "no", "key"}:
            message = "locks of rows are not supported"
            hint = "A transaction that reads and writes is serializable as it is."
            raise SqlError("0A000", message, hint=hint, offset=reader.offset)
