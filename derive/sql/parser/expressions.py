"""Expressions of SQL, with PostgreSQL's precedences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.sql.parser.ast import (
    Between,
    Collation,
    DistinctTest,
    FunctionCall,
    InList,
    Logical,
    NumberLiteral,
    Operation,
    QualifiedName,
    Quantified,
    StringLiteral,
    Subscript,
    SyntaxNode,
    Test,
    TypeCast,
)
from derive.sql.parser.primary_parser import PrimaryParser
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind
from derive.sql.parser.type_names import parse_type

if TYPE_CHECKING:
    from derive.sql.parser.queries import QueryParser

OR, AND, NOT, IS, COMPARISON, MEMBERSHIP, OTHER, SUM, PRODUCT, POWER, ZONE, COLLATE, SIGN, SUFFIX = range(1, 15)
"""Precedences, of what binds least first."""

_COMPARISONS = frozenset({"<", ">", "=", "<=", ">=", "<>"})
_PRECEDENCES = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "^": POWER}
_PUNCTUATION = frozenset({"(", ")", "[", "]", ",", ";", ".", ":", "::", ":=", "..", "=>"})
_LITERALS = frozenset({TokenKind.NUMBER, TokenKind.STRING})
_ENDS = frozenset({",", ")"})
_NO_PREFIXES = _PUNCTUATION | _COMPARISONS | {"*", "/", "%", "^"}
_MATCHES = {"like": ("~~", "!~~"), "ilike": ("~~*", "!~~*"), "similar": ("~", "!~")}
_TESTED = {"null", "true", "false", "unknown"}


class ExpressionParser:
    """Reads expressions."""

    def __init__(self, reader: TokenReader, queries: QueryParser) -> None:
        self._reader = reader
        self._queries = queries
        self._primary = PrimaryParser(reader, queries, self)

    def parse(self, least: int = OR) -> SyntaxNode:
        """Read an expression whose operators bind at least as `least` does."""
        token, behind = self._reader.token, self._reader.ahead()
        if token.kind in _LITERALS and behind.kind is TokenKind.SYMBOL and behind.value in _ENDS:
            self._reader.next()
            make = NumberLiteral if token.kind is TokenKind.NUMBER else StringLiteral
            return make(token.value, token.offset)
        left = self._prefix()
        refused = 0  # a comparison is no operand of another one without parentheses
        while True:
            precedence = self._precedence()
            if precedence < max(least, OR):
                return left
            if precedence == refused:
                raise self._reader.error()
            is_in = self._reader.is_word("in") or self._reader.is_words("not", "in")
            left = self._infix(left, precedence)
            is_open = precedence == COMPARISON or (precedence == MEMBERSHIP and not is_in)
            refused = precedence if is_open or isinstance(left, DistinctTest) else 0

    def parse_call(self) -> SyntaxNode:
        """Read an operand, as a call in FROM is one."""
        return self._primary.parse()

    def _precedence(self) -> int:
        """Of the operator that is next; 0 if none is."""
        token = self._reader.token
        if token.kind is TokenKind.SYMBOL:
            if token.value in {"::", "["}:
                return SUFFIX
            if token.value in _PUNCTUATION:
                return 0
            return COMPARISON if token.value in _COMPARISONS else _PRECEDENCES.get(token.value, OTHER)
        if token.kind is not TokenKind.WORD:
            return 0
        return self._word_precedence(token.value)

    def _word_precedence(self, word: str) -> int:
        if word == "not":
            behind = self._reader.ahead()
            is_negated = behind.kind is TokenKind.WORD and behind.value in {"between", "in", *_MATCHES}
            return MEMBERSHIP if is_negated else 0
        if word in {"between", "in", *_MATCHES}:
            return MEMBERSHIP
        if word == "at":
            return ZONE if self._reader.is_words("at", "time", "zone") else 0
        words = {"or": OR, "and": AND, "is": IS, "isnull": IS, "notnull": IS, "collate": COLLATE}
        if word == "operator" and self._reader.ahead().value == "(":
            return OTHER
        return words.get(word, 0)

    def _prefix(self) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_word("not"):
            return Logical("not", (self.parse(NOT),), offset)
        if reader.is_symbol("-", "+"):
            symbol = reader.next().value
            operand = self.parse(SIGN)
            if isinstance(operand, NumberLiteral):
                return NumberLiteral(operand.text if symbol == "+" else _negated(operand.text), offset)
            return Operation(symbol, (operand,), offset)
        if reader.token.kind is TokenKind.SYMBOL and reader.token.value not in _NO_PREFIXES:
            symbol = reader.next().value
            return Operation(symbol, (self.parse(OTHER + 1),), offset)
        return self._primary.parse()

    def _infix(self, left: SyntaxNode, precedence: int) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        if precedence in {SUFFIX, COLLATE}:
            return self._suffix(left)
        if precedence in {OR, AND}:
            return self._logical(left, precedence)
        if precedence == IS:
            return self._test(left)
        if precedence == MEMBERSHIP:
            return self._membership(left)
        if precedence == ZONE:
            reader.expect_words("at", "time", "zone")
            zone = self.parse(ZONE + 1)
            return FunctionCall(QualifiedName(None, "timezone", offset), (zone, left), offset, is_special=True)
        return self._operation(left, precedence)

    def _suffix(self, left: SyntaxNode) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("::"):
            return TypeCast(left, parse_type(reader), offset)
        if reader.accept_word("collate"):
            return Collation(left, reader.qualified_name(), offset)
        reader.expect_symbol("[")
        index = None if reader.is_symbol(":") else self.parse()
        if not reader.accept_symbol(":"):
            reader.expect_symbol("]")
            return Subscript(left, index, offset)
        end = None if reader.is_symbol("]") else self.parse()
        reader.expect_symbol("]")
        return Subscript(left, index, offset, is_slice=True, end=end)

    def _logical(self, left: SyntaxNode, precedence: int) -> SyntaxNode:
        word = "or" if precedence == OR else "and"
        offset = self._reader.offset
        operands = [left]
        while self._reader.accept_word(word):
            operands.append(self.parse(precedence + 1))
        return Logical(word, tuple(operands), offset)

    def _test(self, left: SyntaxNode) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_word("isnull"):
            return Test(left, "null", is_negated=False, offset=offset)
        if reader.accept_word("notnull"):
            return Test(left, "null", is_negated=True, offset=offset)
        reader.expect_word("is")
        is_negated = reader.accept_word("not") is not None
        if reader.accept_word("distinct"):
            reader.expect_word("from")
            return DistinctTest(left, self.parse(IS + 1), is_negated, offset)
        return Test(left, reader.expect_word(*_TESTED).value, is_negated, offset)

    def _membership(self, left: SyntaxNode) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        is_negated = reader.accept_word("not") is not None
        word = reader.next().value
        if word == "in":
            return self._in(left, is_negated, offset)
        if word == "between":
            is_symmetric = reader.accept_word("symmetric", "asymmetric") == "symmetric"
            low = self.parse(MEMBERSHIP + 1)
            reader.expect_word("and")
            high = self.parse(MEMBERSHIP + 1)
            return Between(left, low, high, is_negated, is_symmetric, offset)
        return self._match(left, word, is_negated, offset)

    def _in(self, left: SyntaxNode, is_negated: bool, offset: int) -> SyntaxNode:
        reader = self._reader
        reader.expect_symbol("(")
        if self._queries.begins_query():
            query = self._queries.parse()
            reader.expect_symbol(")")
            return Quantified(left, "=", False, query, is_in=True, is_negated=is_negated, offset=offset)
        items = reader.list_of(self.parse)
        reader.expect_symbol(")")
        return InList(left, items, is_negated, offset)

    def _match(self, left: SyntaxNode, word: str, is_negated: bool, offset: int) -> SyntaxNode:
        reader = self._reader
        if word == "similar":
            reader.expect_word("to")
        if reader.is_word("any", "some", "all"):
            return self._quantified(left, _MATCHES[word][is_negated], offset)
        pattern = self.parse(MEMBERSHIP + 1)
        escape = self.parse(MEMBERSHIP + 1) if reader.accept_word("escape") else None
        if word == "similar" or escape is not None:
            name = QualifiedName(None, "similar_to_escape" if word == "similar" else "like_escape", offset)
            arguments = (pattern,) if escape is None else (pattern, escape)
            pattern = FunctionCall(name, arguments, offset, is_special=True)
        return Operation(_MATCHES[word][is_negated], (left, pattern), offset)

    def _operation(self, left: SyntaxNode, precedence: int) -> SyntaxNode:
        offset = self._reader.offset
        symbol = self._symbol()
        if precedence in {COMPARISON, OTHER} and self._reader.is_word("any", "some", "all"):
            return self._quantified(left, symbol, offset)
        return Operation(symbol, (left, self.parse(precedence + 1)), offset)

    def _symbol(self) -> str:
        reader = self._reader
        if not reader.accept_word("operator"):
            return reader.next().value
        reader.expect_symbol("(")
        while reader.token.kind is not TokenKind.SYMBOL:
            reader.any_name()
            reader.expect_symbol(".")
        symbol = reader.next().value
        reader.expect_symbol(")")
        return symbol

    def _quantified(self, left: SyntaxNode, symbol: str, offset: int) -> SyntaxNode:
        reader = self._reader
        is_all = reader.next().value == "all"
        reader.expect_symbol("(")
        source = self._queries.parse() if self._queries.begins_query() else self.parse()
        reader.expect_symbol(")")
        return Quantified(left, symbol, is_all, source, is_in=False, is_negated=False, offset=offset)


def _negated(text: str) -> str:
    return text[1:] if text.startswith("-") else f"-{text}"
