"""What stands in FROM: relations, queries, and joins of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.parser.ast import FunctionCall, SyntaxNode
from derive.sql.parser.query_syntax import (
    Alias,
    DerivedTable,
    FromItem,
    FunctionTable,
    JoinedTable,
    JoinKind,
    Query,
    RelationReference,
)
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind

if TYPE_CHECKING:
    from derive.sql.parser.queries import QueryParser


class FromParser:
    """Reads what stands in FROM."""

    def __init__(self, reader: TokenReader, queries: QueryParser) -> None:
        self._reader = reader
        self._queries = queries

    def parse(self) -> FromItem:
        """Read a relation and all that is joined to it."""
        left = self._primary()
        while (joined := self._joined(left)) is not None:
            left = joined
        return left

    def _joined(self, left: FromItem) -> FromItem | None:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_words("cross", "join"):
            return JoinedTable(JoinKind.CROSS, left, self._primary(), None, None, False, None, offset)
        is_natural = reader.accept_word("natural") is not None
        kind = self._kind()
        if kind is None:
            if is_natural:
                raise reader.error()
            return None
        right = self._primary() if is_natural else self._right()
        if is_natural:
            return JoinedTable(kind, left, right, None, None, True, None, offset)
        if reader.accept_word("using"):
            using = reader.in_parentheses(reader.located_name)
            alias = None
            if reader.is_word("as") and not self._queries.begins_as_of():
                raise SqlError("0A000", "aliases behind USING are not supported", offset=reader.offset)
            return JoinedTable(kind, left, right, None, using, False, alias, offset)
        reader.expect_word("on")
        condition: SyntaxNode = self._queries.expressions.parse()
        return JoinedTable(kind, left, right, condition, None, False, None, offset)

    def _right(self) -> FromItem:
        """The right side of a join, with joins that come before its own ON or USING."""
        right = self._primary()
        while not self._reader.is_word("on", "using"):
            joined = self._joined(right)
            if joined is None:
                return right
            right = joined
        return right

    def _kind(self) -> JoinKind | None:
        reader = self._reader
        if reader.accept_word("join") or reader.accept_words("inner", "join"):
            return JoinKind.INNER
        for kind in (JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL):
            word = kind.value.lower()
            if reader.accept_words(word, "join") or reader.accept_words(word, "outer", "join"):
                return kind
        return None

    def _primary(self) -> FromItem:
        reader, offset = self._reader, self._reader.offset
        is_lateral = reader.accept_word("lateral") is not None
        if reader.is_symbol("("):
            return self._parenthesised(is_lateral, offset)
        behind = reader.ahead()
        if is_lateral or (reader.is_name(of_function=True) and behind.kind is TokenKind.SYMBOL and behind.value == "("):
            return self._function(offset)
        if reader.is_words("rows", "from"):
            raise SqlError("0A000", "ROWS FROM is not supported", offset=offset)
        reader.accept_word("only")
        name = reader.qualified_name()
        reader.accept_symbol("*")
        alias = self.alias()
        if reader.is_word("tablesample"):
            raise SqlError("0A000", "TABLESAMPLE is not supported", offset=reader.offset)
        return RelationReference(name, alias, offset)

    def _parenthesised(self, is_lateral: bool, offset: int) -> FromItem:
        reader = self._reader
        mark = reader.mark()
        reader.expect_symbol("(")
        if self._queries.begins_query():
            query = self._query(mark)
            if query is not None:
                return DerivedTable(query, is_lateral, self.alias(), offset)
        if is_lateral:
            raise reader.error()
        joined = self.parse()
        if not isinstance(joined, JoinedTable):
            raise reader.error()
        reader.expect_symbol(")")
        alias = self.alias()
        if alias is None:
            return joined
        return JoinedTable(
            joined.kind,
            joined.left,
            joined.right,
            joined.condition,
            joined.using,
            joined.is_natural,
            alias,
            joined.offset,
        )

    def _query(self, mark: int) -> Query | None:
        """A query in parentheses, or nothing if it is only the first table of a join in parentheses."""
        reader = self._reader
        is_nested = reader.is_symbol("(")
        query = self._queries.parse()
        if reader.accept_symbol(")"):
            return query
        if not is_nested:
            raise reader.error()
        reader.return_to(mark)
        reader.expect_symbol("(")
        return None

    def _function(self, offset: int) -> FromItem:
        call = self._queries.expressions.parse_call()
        if not isinstance(call, FunctionCall):
            raise self._reader.error()
        has_ordinality = self._reader.accept_words("with", "ordinality")
        return FunctionTable(call, has_ordinality, self.alias(), offset)

    def alias(self) -> Alias | None:
        """Read another name of a relation and of its columns, if one is next."""
        reader, offset = self._reader, self._reader.offset
        if self._queries.begins_as_of():
            return None
        has_as = reader.accept_word("as") is not None
        if not reader.is_name() and not has_as:
            return None
        name = reader.name()
        columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
        return Alias(name, columns, offset)
