"""Operands of expressions: literals, names, calls, and what stands in parentheses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    BooleanLiteral,
    CaseExpression,
    ColumnReference,
    DefaultMarker,
    Exists,
    NullLiteral,
    NumberLiteral,
    ParameterReference,
    RowValue,
    ScalarQuery,
    Star,
    StringLiteral,
    SyntaxNode,
    TypeCast,
)
from derive.sql.parser.call_parser import CallParser
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind
from derive.sql.parser.type_names import begins_type, parse_type

if TYPE_CHECKING:
    from derive.sql.parser.expressions import ExpressionParser
    from derive.sql.parser.queries import QueryParser

_MOST_PARAMETERS = 65535
_CONSTANTS: Mapping[str, Callable[[int], SyntaxNode]] = {
    "true": lambda offset: BooleanLiteral(True, offset),
    "false": lambda offset: BooleanLiteral(False, offset),
    "null": NullLiteral,
    "default": DefaultMarker,
}


class PrimaryParser:
    """Reads operands."""

    def __init__(self, reader: TokenReader, queries: QueryParser, expressions: ExpressionParser) -> None:
        self._reader = reader
        self._queries = queries
        self._expressions = expressions
        self._calls = CallParser(reader, expressions)

    def parse(self) -> SyntaxNode:
        """Read an operand."""
        token = self._reader.token
        if token.kind is TokenKind.NUMBER:
            self._reader.next()
            return NumberLiteral(token.value, token.offset)
        if token.kind is TokenKind.STRING:
            self._reader.next()
            return StringLiteral(token.value, token.offset)
        if token.kind is TokenKind.PARAMETER:
            return self._parameter()
        if self._reader.is_symbol("("):
            return self._parenthesised()
        if token.kind is TokenKind.NAME:
            return self._name()
        if token.kind is TokenKind.WORD:
            return self._word(token.value, token.offset)
        raise self._reader.error()

    def _parameter(self) -> SyntaxNode:
        token = self._reader.next()
        number = int(token.value)
        if not 0 < number <= _MOST_PARAMETERS:
            raise SqlError("42P02", f"there is no parameter ${token.value}", offset=token.offset)
        return ParameterReference(number - 1, token.offset)

    def _parenthesised(self) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        reader.expect_symbol("(")
        if self._queries.begins_query():
            mark = reader.mark()
            query = self._queries.parse_if_query()
            if query is not None:
                reader.expect_symbol(")")
                return ScalarQuery(query, offset)
            reader.return_to(mark)
        items = reader.list_of(self._expressions.parse)
        reader.expect_symbol(")")
        if reader.is_symbol("."):
            raise SqlError("0A000", "fields of composite values are not supported", offset=reader.offset)
        return items[0] if len(items) == 1 else RowValue(items, offset)

    def _word(self, word: str, offset: int) -> SyntaxNode:
        reader = self._reader
        if word in _CONSTANTS:
            reader.next()
            return _CONSTANTS[word](offset)
        if word == "case":
            return self._case()
        if word in {"exists", "array", "row"} and (composite := self._composite(word, offset)) is not None:
            return composite
        special = self._calls.special()
        if special is not None:
            return special
        typed = self._typed_literal()
        return typed if typed is not None else self._name()

    def _composite(self, word: str, offset: int) -> SyntaxNode | None:
        reader = self._reader
        opening = reader.ahead().value
        if word == "exists" and opening == "(":
            reader.next()
            reader.expect_symbol("(")
            query = self._queries.parse()
            reader.expect_symbol(")")
            return Exists(query, offset)
        if word == "array" and opening == "[":
            reader.next()
            return self._array(offset)
        if word == "array" and opening == "(":
            reader.next()
            reader.expect_symbol("(")
            query = self._queries.parse()
            reader.expect_symbol(")")
            return ArrayQuery(query, offset)
        if word == "row" and opening == "(":
            reader.next()
            return RowValue(reader.in_parentheses(self._expressions.parse), offset)
        return None

    def _array(self, offset: int) -> SyntaxNode:
        self._reader.expect_symbol("[")
        if self._reader.accept_symbol("]"):
            return ArrayValue((), offset)
        items = self._reader.list_of(self._expressions.parse)
        self._reader.expect_symbol("]")
        return ArrayValue(items, offset)

    def _case(self) -> SyntaxNode:
        reader, parse, offset = self._reader, self._expressions.parse, self._reader.offset
        reader.expect_word("case")
        operand = None if reader.is_word("when") else parse()
        branches = []
        while reader.accept_word("when"):
            condition = parse()
            reader.expect_word("then")
            branches.append((condition, parse()))
        if not branches:
            raise reader.error()
        otherwise = parse() if reader.accept_word("else") else None
        reader.expect_word("end")
        return CaseExpression(operand, tuple(branches), otherwise, offset)

    def _typed_literal(self) -> SyntaxNode | None:
        """A type's name and a string, such as `date '2020-01-01'`."""
        reader = self._reader
        is_type = begins_type(reader)
        if not is_type and reader.ahead().kind is not TokenKind.STRING:
            return None
        if not is_type and not reader.is_name(of_function=True):
            return None
        mark, offset = reader.mark(), reader.offset
        target = parse_type(reader)
        if reader.token.kind is not TokenKind.STRING or target.is_array:
            if is_type and not reader.is_symbol(".", "("):
                raise reader.error()
            reader.return_to(mark)
            return None
        literal = StringLiteral(reader.string(), offset)
        if target.name == "interval" and reader.is_word("year", "month", "day", "hour", "minute", "second"):
            literal = StringLiteral(f"{literal.value} {reader.next().value}", offset)
        return TypeCast(literal, target, offset)

    def _name(self) -> SyntaxNode:
        """A column, a star behind its relation, or a call."""
        reader, offset = self._reader, self._reader.offset
        is_column = reader.is_name()
        if not is_column and not reader.is_name(of_function=True):
            raise reader.error()
        parts = [reader.next().value]
        while reader.accept_symbol("."):
            if reader.accept_symbol("*"):
                return Star(tuple(parts), offset)
            parts.append(reader.any_name())
        if reader.is_symbol("("):
            return self._calls.call(tuple(parts), offset)
        if not is_column:
            raise reader.error()
        return ColumnReference(tuple(parts), offset)
