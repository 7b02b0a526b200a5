"""Calls of functions, and the forms that SQL has for some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.parser.ast import (
    ColumnReference,
    FunctionCall,
    NumberLiteral,
    QualifiedName,
    StringLiteral,
    SyntaxNode,
    TypeCast,
    WindowDefinition,
    WindowReference,
)
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind
from derive.sql.parser.type_names import parse_type
from derive.sql.parser.window_parser import parse_sort_items, parse_window

if TYPE_CHECKING:
    from derive.sql.parser.expressions import ExpressionParser

_WITHOUT_PARENTHESES = frozenset(
    """current_date current_time current_timestamp localtime localtimestamp current_user current_role session_user user
    current_catalog current_schema""".split()  # noqa: SIM905 (a list would be a page)
)
_WITH_PRECISION = frozenset({"current_time", "current_timestamp", "localtime", "localtimestamp"})
_ABOVE_MEMBERSHIP = 7
_PLAIN = frozenset({"coalesce", "nullif", "greatest", "least"})


class CallParser:
    """Reads calls."""

    def __init__(self, reader: TokenReader, expressions: ExpressionParser) -> None:
        self._reader = reader
        self._expressions = expressions
        self._forms: dict[str, Callable[[int], SyntaxNode]] = {
            "cast": self._cast,
            "extract": self._extract,
            "substring": self._substring,
            "position": self._position,
            "overlay": self._overlay,
            "trim": self._trim,
        }

    def special(self) -> SyntaxNode | None:
        """A call that has a form of its own, if one is next."""
        reader, offset = self._reader, self._reader.offset
        word = reader.token.value
        is_called = reader.ahead().value == "(" and reader.ahead().kind is TokenKind.SYMBOL
        if word in _WITHOUT_PARENTHESES and not (word == "current_schema" and is_called):
            reader.next()
            if is_called and word in _WITH_PRECISION:
                raise SqlError("0A000", f"{word.upper()} with a precision is not supported", offset=offset)
            return self._made(word, (), offset)
        if not is_called:
            return None
        if word in _PLAIN:
            reader.next()
            return self._made(word, reader.in_parentheses(self._expressions.parse), offset)
        form = self._forms.get(word)
        if form is None:
            return None
        reader.next()
        reader.expect_symbol("(")
        node = form(offset)
        reader.expect_symbol(")")
        return node

    @staticmethod
    def _made(name: str, arguments: tuple[SyntaxNode, ...], offset: int) -> FunctionCall:
        return FunctionCall(QualifiedName(None, name, offset), arguments, offset, is_special=True)

    def _cast(self, offset: int) -> SyntaxNode:
        operand = self._expressions.parse()
        self._reader.expect_word("as")
        return TypeCast(operand, parse_type(self._reader), offset)

    def _extract(self, offset: int) -> SyntaxNode:
        reader = self._reader
        token = reader.next()
        if token.kind not in {TokenKind.WORD, TokenKind.NAME, TokenKind.STRING}:
            raise reader.error(token)
        reader.expect_word("from")
        return self._made("extract", (StringLiteral(token.value, token.offset), self._expressions.parse()), offset)

    def _substring(self, offset: int) -> SyntaxNode:
        reader, parse = self._reader, self._expressions.parse
        operand = parse()
        if reader.is_symbol(","):
            return self._plain_call("substring", operand, offset)
        if reader.accept_word("similar"):
            pattern = parse()
            reader.expect_word("escape")
            return self._made("substring", (operand, pattern, parse()), offset)
        begin = parse() if reader.accept_word("from") else None
        count = parse() if reader.accept_word("for") else None
        if begin is None and reader.accept_word("from"):
            begin = parse()
        if begin is None and count is None:
            return self._made("substring", (operand,), offset)
        if begin is None:
            begin = NumberLiteral("1", offset)
        return self._made("substring", (operand, begin, *((count,) if count else ())), offset)

    def _plain_call(self, name: str, first: SyntaxNode, offset: int) -> SyntaxNode:
        arguments = [first]
        while self._reader.accept_symbol(","):
            arguments.append(self._expressions.parse())
        return self._made(name, tuple(arguments), offset)

    def _position(self, offset: int) -> SyntaxNode:
        sought = self._expressions.parse(_ABOVE_MEMBERSHIP)
        self._reader.expect_word("in")
        return self._made("position", (self._expressions.parse(_ABOVE_MEMBERSHIP), sought), offset)

    def _overlay(self, offset: int) -> SyntaxNode:
        reader, parse = self._reader, self._expressions.parse
        operand = parse()
        if reader.is_symbol(","):
            return self._plain_call("overlay", operand, offset)
        reader.expect_word("placing")
        arguments = [operand, parse()]
        reader.expect_word("from")
        arguments.append(parse())
        if reader.accept_word("for"):
            arguments.append(parse())
        return self._made("overlay", tuple(arguments), offset)

    def _trim(self, offset: int) -> SyntaxNode:
        reader, parse = self._reader, self._expressions.parse
        side = reader.accept_word("both", "leading", "trailing")
        name = {"leading": "ltrim", "trailing": "rtrim"}.get(side or "both", "btrim")
        if reader.accept_word("from"):
            return self._made(name, reader.list_of(parse), offset)
        first = parse()
        if reader.accept_word("from"):
            return self._made(name, (*reader.list_of(parse), first), offset)
        return self._plain_call(name, first, offset)

    def call(self, parts: tuple[str, ...], offset: int) -> SyntaxNode:
        """Read a call's arguments and what is behind them; its name was read."""
        reader = self._reader
        name = QualifiedName(parts[-2] if len(parts) > 1 else None, parts[-1], offset)
        reader.expect_symbol("(")
        is_star = reader.accept_symbol("*")
        is_distinct = not is_star and reader.accept_word("distinct", "all") == "distinct"
        arguments: tuple[SyntaxNode, ...] = ()
        if not is_star and not reader.is_symbol(")"):
            arguments = reader.list_of(self._argument)
        order = parse_sort_items(reader, self._expressions) if reader.is_words("order", "by") else ()
        reader.expect_symbol(")")
        is_within_group = reader.accept_words("within", "group")
        if is_within_group:
            reader.expect_symbol("(")
            order = parse_sort_items(reader, self._expressions)
            reader.expect_symbol(")")
        condition = self._condition()
        over = self._over()
        return FunctionCall(name, arguments, offset, is_star, is_distinct, order, condition, over, is_within_group)

    def _argument(self) -> SyntaxNode:
        if self._reader.is_word("variadic"):
            raise SqlError("0A000", "VARIADIC arguments are not supported", offset=self._reader.offset)
        argument = self._expressions.parse()
        if isinstance(argument, ColumnReference) and self._reader.is_symbol(":=", "=>"):
            raise SqlError("0A000", "arguments by name are not supported", offset=self._reader.offset)
        return argument

    def _condition(self) -> SyntaxNode | None:
        reader = self._reader
        if not (reader.is_word("filter") and reader.ahead().value == "("):
            return None
        reader.next()
        reader.expect_symbol("(")
        reader.expect_word("where")
        condition = self._expressions.parse()
        reader.expect_symbol(")")
        return condition

    def _over(self) -> WindowDefinition | WindowReference | None:
        if not self._reader.accept_word("over"):
            return None
        if self._reader.is_symbol("("):
            return parse_window(self._reader, self._expressions)
        return WindowReference(*self._reader.located_name())
