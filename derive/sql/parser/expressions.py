"""Parser of expressions, with the precedences of PostgreSQL: operators, operands, calls and windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    Between,
    BooleanLiteral,
    CaseExpression,
    Collation,
    ColumnReference,
    DefaultMarker,
    DistinctTest,
    Exists,
    FieldSelection,
    FunctionCall,
    InList,
    Logical,
    NullLiteral,
    NumberLiteral,
    Operation,
    ParameterReference,
    QualifiedName,
    Quantified,
    RowValue,
    ScalarQuery,
    Star,
    StringLiteral,
    Subscript,
    SubscriptPart,
    SyntaxNode,
    Test,
    TypeCast,
    TypeName,
    WindowDefinition,
    WindowReference,
)
from derive.sql.parser.json_syntax import JSON_CALLS, JsonParser
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.type_names import begins_type, interval_fields, parse_type, simple_type
from derive.sql.parser.windows import parse_sort_items, parse_window

if TYPE_CHECKING:
    from derive.sql.parser.queries import QueryParser


_WITHOUT_PARENTHESES = frozenset(
    """current_date current_time current_timestamp localtime localtimestamp current_user current_role session_user user
    current_catalog current_schema""".split()  # noqa: SIM905 (a list would be a page)
)
_WITH_PRECISION = frozenset({"current_time", "current_timestamp", "localtime", "localtimestamp"})
_ABOVE_MEMBERSHIP = 7
_FIELDS_OF_INTERVAL = ("years", "months", "weeks", "days", "hours", "mins", "secs")
_PLAIN = frozenset({"coalesce", "nullif", "greatest", "least"})


class CallParser:
    """Parser of function calls."""

    def __init__(self, reader: TokenReader, queries: QueryParser, expressions: ExpressionParser) -> None:
        self._reader = reader
        self._expressions = expressions
        self._queries = queries
        self._json: JsonParser | None = None
        self._forms: dict[str, Callable[[int], SyntaxNode]] = {
            "cast": self._cast,
            "extract": self._extract,
            "substring": self._substring,
            "position": self._position,
            "overlay": self._overlay,
            "trim": self._trim,
        }

    def special(self) -> SyntaxNode | None:
        """Read a call with a syntax of its own, such as `EXTRACT`; return None if there is none here."""
        reader, offset = self._reader, self._reader.offset
        word = reader.token.value
        is_called = reader.ahead().value == "(" and reader.ahead().kind is TokenKind.SYMBOL
        if word in _WITHOUT_PARENTHESES and not (word == "current_schema" and is_called):
            reader.next()
            if is_called and word in _WITH_PRECISION:
                raise SqlError(
                    "0A000",
                    f"{word.upper()} with a precision is not supported",
                    offset=offset,
                    hint="Omit the precision.",
                )
            return self._made(word, (), offset)
        if not is_called:
            return None
        if word in _PLAIN:
            reader.next()
            return self._made(word, reader.in_parentheses(self._expressions.parse), offset)
        form = self._forms.get(word)
        if form is None:
            return self.json.parse(word, offset) if word in JSON_CALLS else None
        reader.next()
        reader.expect_symbol("(")
        node = form(offset)
        reader.expect_symbol(")")
        return node

    @property
    def json(self) -> JsonParser:
        """Return the parser of calls of SQL/JSON."""
        if self._json is None:
            self._json = JsonParser(self._reader, self._expressions, self._queries, self._with_end)
        return self._json

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
        """Read a call's arguments and clauses, after its name."""
        reader = self._reader
        name = QualifiedName(parts[-2] if len(parts) > 1 else None, parts[-1], offset)
        reader.expect_symbol("(")
        is_star = reader.accept_symbol("*")
        is_distinct = not is_star and reader.accept_word("distinct", "all") == "distinct"
        arguments: tuple[SyntaxNode, ...] = ()
        if not is_star and not reader.is_symbol(")"):
            is_named = parts[-1] == "make_interval"
            arguments = self._fields_of_interval() if is_named else reader.list_of(self._argument)
        order = parse_sort_items(reader, self._expressions.parse) if reader.is_words("order", "by") else ()
        reader.expect_symbol(")")
        is_within_group = reader.accept_words("within", "group")
        if is_within_group:
            reader.expect_symbol("(")
            order = parse_sort_items(reader, self._expressions.parse)
            reader.expect_symbol(")")
        condition = self._condition()
        over = self._over()
        return FunctionCall(name, arguments, offset, is_star, is_distinct, order, condition, over, is_within_group)

    def _with_end(self, call: FunctionCall) -> FunctionCall:
        """Read FILTER and OVER behind a call."""
        condition = self._condition()
        return replace(call, condition=condition, over=self._over())

    def _fields_of_interval(self) -> tuple[SyntaxNode, ...]:
        """Read the arguments of `make_interval`, in order or by name; missing arguments are 0."""
        reader, offset = self._reader, self._reader.offset
        arguments: dict[str, SyntaxNode] = {}
        names = iter(_FIELDS_OF_INTERVAL)
        while True:
            name = None
            if reader.ahead().kind is TokenKind.SYMBOL and reader.ahead().value in {"=>", ":="}:
                name = reader.any_name()
                reader.next()
            elif (name := next(names, None)) is None:
                raise reader.error()
            if name not in _FIELDS_OF_INTERVAL or name in arguments:
                raise SqlError("42883", f"make_interval has no argument {name} here", offset=offset)
            arguments[name] = self._argument()
            if not reader.accept_symbol(","):
                break
        last = max(map(_FIELDS_OF_INTERVAL.index, arguments)) + 1
        return tuple(arguments.get(name, NumberLiteral("0", offset)) for name in _FIELDS_OF_INTERVAL[:last])

    def _argument(self) -> SyntaxNode:
        if self._reader.is_word("variadic"):
            raise SqlError(
                "0A000",
                "VARIADIC arguments are not supported",
                offset=self._reader.offset,
                hint="Write the arguments one by one.",
            )
        argument = self._expressions.parse()
        if isinstance(argument, ColumnReference) and self._reader.is_symbol(":=", "=>"):
            raise SqlError(
                "0A000",
                "arguments by name are not supported",
                offset=self._reader.offset,
                hint="Write the arguments in order, without names.",
            )
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
            return parse_window(self._reader, self._expressions.parse)
        return WindowReference(*self._reader.located_name())


_MOST_PARAMETERS = 65535
_CONSTANTS: Mapping[str, Callable[[int], SyntaxNode]] = {
    "true": lambda offset: BooleanLiteral(True, offset),
    "false": lambda offset: BooleanLiteral(False, offset),
    "null": NullLiteral,
    "default": DefaultMarker,
}


class PrimaryParser:
    """Parser of operands."""

    def __init__(self, reader: TokenReader, queries: QueryParser, expressions: ExpressionParser) -> None:
        self._reader = reader
        self._queries = queries
        self._expressions = expressions
        self.calls = CallParser(reader, queries, expressions)

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
        if len(items) == 1 and reader.accept_symbol("."):
            if isinstance(items[0], ColumnReference) and len(items[0].parts) == 1 and reader.accept_symbol("*"):
                return Star(items[0].parts, offset)
            return FieldSelection(items[0], reader.any_name(), offset)
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
        special = self.calls.special()
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
        items = self._reader.list_of(self._element)
        self._reader.expect_symbol("]")
        return ArrayValue(items, offset)

    def _element(self) -> SyntaxNode:
        """Read an element of an array, which may be an array in brackets."""
        return self._array(self._reader.offset) if self._reader.is_symbol("[") else self._expressions.parse()

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
        """Read a typed literal, such as `date '2020-01-01'`; return None if there is none here."""
        reader = self._reader
        is_type = begins_type(reader)
        if not is_type and reader.ahead().kind is not TokenKind.STRING:
            return None
        if not is_type and not reader.is_name(of_function=True):
            return None
        mark, offset = reader.mark(), reader.offset
        name, modifiers = simple_type(reader)
        if reader.token.kind is not TokenKind.STRING:
            if reader.mark() > mark + 1 and not reader.is_symbol(".", "("):
                raise reader.error()
            reader.return_to(mark)
            return None
        literal = StringLiteral(reader.string(), offset)
        fields = ""
        if name == "interval" and not modifiers:
            fields, modifiers = interval_fields(reader)
        return TypeCast(literal, TypeName(name, modifiers, offset, fields=fields), offset)

    def _name(self) -> SyntaxNode:
        """Read a column, a qualified star, or a call."""
        reader, offset = self._reader, self._reader.offset
        is_column = reader.is_name()
        if not is_column and not reader.is_name(of_function=True):
            raise reader.error()
        is_quoted = reader.token.kind is TokenKind.NAME
        parts = [reader.next().value]
        while reader.accept_symbol("."):
            if reader.accept_symbol("*"):
                return Star(tuple(parts), offset)
            parts.append(reader.any_name())
        if reader.is_symbol("("):
            return self.calls.call(tuple(parts), offset)
        if not is_column:
            raise reader.error()
        return ColumnReference(tuple(parts), offset, is_quoted)


OR, AND, NOT, IS, COMPARISON, MEMBERSHIP, OTHER, SUM, PRODUCT, POWER, ZONE, COLLATE, SIGN, SUFFIX = range(1, 15)
"""Precedences of operators, in ascending order."""

_COMPARISONS = frozenset({"<", ">", "=", "<=", ">=", "<>"})
_PRECEDENCES = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "^": POWER}
_PUNCTUATION = frozenset({"(", ")", "[", "]", ",", ";", ".", ":", "::", ":=", "..", "=>"})
_LITERALS = frozenset({TokenKind.NUMBER, TokenKind.STRING})
_ENDS = frozenset({",", ")"})
_NO_PREFIXES = _PUNCTUATION | _COMPARISONS | {"*", "/", "%", "^"}
_MATCHES = {"like": ("~~", "!~~"), "ilike": ("~~*", "!~~*"), "similar": ("~", "!~")}
_TESTED = {"null", "true", "false", "unknown"}


class ExpressionParser:
    """Parser of expressions."""

    def __init__(self, reader: TokenReader, queries: QueryParser) -> None:
        self._reader = reader
        self._queries = queries
        self._primary = PrimaryParser(reader, queries, self)

    def parse(self, least: int = OR) -> SyntaxNode:
        """Read an expression whose operators have at least the precedence `least`."""
        token, behind = self._reader.token, self._reader.ahead()
        if token.kind in _LITERALS and behind.kind is TokenKind.SYMBOL and behind.value in _ENDS:
            self._reader.next()
            make = NumberLiteral if token.kind is TokenKind.NUMBER else StringLiteral
            return make(token.value, token.offset)
        left = self._prefix()
        refused = 0  # comparisons do not chain without parentheses
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

    @property
    def json(self) -> JsonParser:
        """Return the parser of calls of SQL/JSON."""
        return self._primary.calls.json

    def parse_call(self) -> SyntaxNode:
        """Read an operand, such as a call in FROM."""
        return self._primary.parse()

    def _precedence(self) -> int:
        """Return the precedence of the next operator; 0 if the next token is no operator."""
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
        if word == "similar" and not self._reader.is_words("similar", "to"):
            return 0  # in substring(… SIMILAR … ESCAPE …)
        if word in {"between", "in", "overlaps", *_MATCHES}:
            return MEMBERSHIP
        if word == "at":
            is_zone = self._reader.is_words("at", "time", "zone") or self._reader.is_words("at", "local")
            return ZONE if is_zone else 0
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
            reader.expect_word("at")
            zones: tuple[SyntaxNode, ...] = ()
            if not reader.accept_word("local"):
                reader.expect_words("time", "zone")
                zones = (self.parse(ZONE + 1),)
            return FunctionCall(QualifiedName(None, "timezone", offset), (*zones, left), offset, is_special=True)
        return self._operation(left, precedence)

    def _suffix(self, left: SyntaxNode) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("::"):
            return TypeCast(left, parse_type(reader), offset)
        if reader.accept_word("collate"):
            return Collation(left, reader.qualified_name(), offset)
        parts = [self._subscript()]
        while reader.is_symbol("["):
            parts.append(self._subscript())
        return Subscript(left, tuple(parts), offset)

    def _subscript(self) -> SubscriptPart:
        reader = self._reader
        reader.expect_symbol("[")
        index = None if reader.is_symbol(":") else self.parse()
        if not reader.accept_symbol(":"):
            reader.expect_symbol("]")
            return SubscriptPart(index)
        end = None if reader.is_symbol("]") else self.parse()
        reader.expect_symbol("]")
        return SubscriptPart(index, is_slice=True, end=end)

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
        if reader.accept_word("json"):
            test = self._json_test(left, offset)
            return Logical("not", (test,), offset) if is_negated else test
        return Test(left, reader.expect_word(*_TESTED).value, is_negated, offset)

    def _json_test(self, left: SyntaxNode, offset: int) -> SyntaxNode:
        """Read the rest of `IS JSON [VALUE | ARRAY | OBJECT | SCALAR] [WITH | WITHOUT UNIQUE [KEYS]]`."""
        reader = self._reader
        kind = reader.accept_word("value", "array", "object", "scalar") or "value"
        is_unique = reader.accept_words("with", "unique")
        if is_unique or reader.accept_words("without", "unique"):
            reader.accept_word("keys")
        return Operation("is json", (left, StringLiteral(kind + " unique" * is_unique, offset)), offset)

    def _membership(self, left: SyntaxNode) -> SyntaxNode:
        reader, offset = self._reader, self._reader.offset
        is_negated = reader.accept_word("not") is not None
        word = reader.next().value
        if word == "overlaps":
            return self._overlaps(left, offset)
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

    def _overlaps(self, left: SyntaxNode, offset: int) -> SyntaxNode:
        """Read the right side of `(begin, end) OVERLAPS (begin, end)`."""
        token = self._reader.token
        right = self._primary.parse()  # a cast behind the row is one of the result
        for side, node in (("left", left), ("right", right)):
            if not isinstance(node, RowValue):
                raise self._reader.error(token)
            if len(node.items) != 2:
                message = f"wrong number of parameters on {side} side of OVERLAPS expression"
                raise SqlError("42601", message, offset=node.offset)
        assert isinstance(left, RowValue)
        assert isinstance(right, RowValue)
        name = QualifiedName(None, "overlaps", offset)
        return FunctionCall(name, (*left.items, *right.items), offset, is_special=True)

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
