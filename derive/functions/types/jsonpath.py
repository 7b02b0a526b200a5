"""Parser of SQL/JSON paths.

A path is a tree of nodes. Steps (`.key`, `[1]`, filters, methods) hold the node that they apply to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

from derive.errors import SqlError

LAST = 1 << 32
"""The level `last` of `**`."""


@dataclass(frozen=True, slots=True)
class Value:
    """A literal: null, a boolean, a number or a text."""

    value: bool | int | Decimal | str | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, `$name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Root:
    """The whole document, `$`."""


@dataclass(frozen=True, slots=True)
class Current:
    """The item that a filter tests, `@`."""


@dataclass(frozen=True, slots=True)
class LastIndex:
    """The last subscript of the array, `last`."""


@dataclass(frozen=True, slots=True)
class Member:
    """The member with a key; None for all members."""

    base: Node
    key: str | None


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements by subscripts, or by ranges of subscripts; None for all."""

    base: Node
    subscripts: tuple[tuple[Node, Node | None], ...] | None


@dataclass(frozen=True, slots=True)
class Descendants:
    """Items at the levels from `first` to `last` below an item, `**`; only leaves if both are `LAST`."""

    base: Node
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Items that fulfil a predicate."""

    base: Node
    predicate: Node


@dataclass(frozen=True, slots=True)
class Method:
    """A method, such as `.size()`, with its arguments."""

    base: Node
    name: str
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An arithmetic operation on one or two operands."""

    symbol: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of items."""

    symbol: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Logic:
    """`&&`, `||` or `!` of predicates, or `is unknown`."""

    symbol: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """The predicate that a path has an item."""

    path: Node


@dataclass(frozen=True, slots=True)
class Prefixed:
    """The predicate `starts with`."""

    text: Node
    prefix: Node


@dataclass(frozen=True, slots=True)
class Matched:
    """The predicate `like_regex`, with flags of PostgreSQL's regular expressions."""

    text: Node
    expression: str
    flags: str


Node: TypeAlias = (
    Value
    | Variable
    | Root
    | Current
    | LastIndex
    | Member
    | Elements
    | Descendants
    | Filter
    | Method
    | Arithmetic
    | Comparison
    | Logic
    | Exists
    | Prefixed
    | Matched
)
PREDICATES = (Comparison, Logic, Exists, Prefixed, Matched)


@dataclass(frozen=True, slots=True)
class Path:
    """A path.

    Attributes:
        root: the outermost node.
        is_lax: whether structural errors are suppressed and arrays are wrapped and unwrapped.
    """

    root: Node
    is_lax: bool


_LETTER = r"""[^?%$.\[\]{}()|&!=<>@\#,*:+/\\"\s-]"""
_ESCAPED_LETTER = r"\\(?:u\{[0-9a-fA-F]{1,6}\}|.)"
_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|/\*.*?\*/)+)
    | (?P<number>(?:0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0[oO][0-7]+(?:_[0-7]+)*|0[bB][01]+(?:_[01]+)*
        |(?:(?:0|[1-9]\d*(?:_\d+)*)(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+(?:_\d+)*)?))
      (?P<junk>[A-Za-z_0-9]?)
    | \$(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{begin}{rest}*))
    | "(?P<text>(?:[^"\\]|\\.)*)"
    | (?P<word>{begin}{rest}*)
    | (?P<symbol>\*\*|&&|\|\||==|!=|<>|<=|>=|[$@.*()\[\],?{}!<>+\-/%:])
    """.replace("{begin}", f"(?:(?![0-9]){_LETTER}|{_ESCAPED_LETTER})").replace(
        "{rest}", f"(?:{_LETTER}|{_ESCAPED_LETTER})"
    ),
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_COMPARISONS = {"==": "==", "=": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_METHODS = frozenset(
    "abs size type floor double ceiling bigint boolean integer number string decimal".split(" ")  # noqa: SIM905
)
_UNSUPPORTED = frozenset(
    "keyvalue datetime date time time_tz timestamp timestamp_tz".split(" ")  # noqa: SIM905
)
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    value: str


def _unescaped(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits:
            code = int(digits, 16)
            if not code or code > 0x10FFFF:
                raise SqlError("22P05", "unsupported Unicode escape sequence")
            return chr(code)
        if match[4] in {"u", "x"}:
            raise SqlError("42601", "invalid Unicode escape sequence in jsonpath")
        return _ESCAPED.get(match[4], match[4])

    replaced = _ESCAPE.sub(replacement, text)
    replaced = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), replaced)
    if any("\ud800" <= letter <= "\udfff" for letter in replaced):
        raise SqlError("22P02", "invalid input syntax for type jsonpath", detail="A surrogate lacks its other half.")
    return replaced


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match["junk"]:
            raise _error(text[at : at + 1])
        at = match.end()
        if match["number"] is not None:
            tokens.append(_Token("number", match["number"]))
        elif match["quoted"] is not None or match["plain"] is not None:
            tokens.append(_Token("variable", _unescaped(match["quoted"] or match["plain"] or "")))
        elif match["text"] is not None:
            tokens.append(_Token("text", _unescaped(match["text"])))
        elif match["word"] is not None:
            tokens.append(_Token("word", _unescaped(match["word"])))
        elif match["symbol"] is not None:
            tokens.append(_Token("symbol", match["symbol"]))
    tokens.append(_Token("end", ""))
    return tokens


def _error(near: str) -> SqlError:
    where = f'at or near "{near}"' if near else "at end"
    return SqlError("42601", f"syntax error {where} of jsonpath input", hint="Paths look like $.key[*] ? (@.key > 1).")


class _Parser:
    """Recursive-descent parser of one path."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._filters = self._subscripts = self._depth = 0

    def path(self) -> Path:
        if self._token.kind == "end":
            raise SqlError("22P02", 'invalid input syntax for type jsonpath: ""')
        mode = self._accept_word("lax", "strict")
        root = self._disjunction()
        if self._token.kind != "end":
            raise self._unexpected()
        return Path(root, mode != "strict")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _unexpected(self) -> SqlError:
        return _error(self._token.value)

    def _accept(self, *symbols: str) -> str | None:
        token = self._token
        if token.kind != "symbol" or token.value not in symbols:
            return None
        self._at += 1
        return token.value

    def _expect(self, symbol: str) -> None:
        if self._accept(symbol) is None:
            raise self._unexpected()

    def _accept_word(self, *words: str) -> str | None:
        token = self._token
        if token.kind != "word" or token.value.lower() not in words:
            return None
        self._at += 1
        return token.value.lower()

    def _expect_word(self, word: str) -> None:
        if self._accept_word(word) is None:
            raise self._unexpected()

    def _disjunction(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise SqlError("54001", "the jsonpath is nested too deeply")
        left = self._conjunction()
        while self._accept("||"):
            left = Logic("||", (self._predicate(left), self._predicate(self._conjunction())))
        self._depth -= 1
        return left

    def _conjunction(self) -> Node:
        left = self._negation()
        while self._accept("&&"):
            left = Logic("&&", (self._predicate(left), self._predicate(self._negation())))
        return left

    def _negation(self) -> Node:
        if not self._accept("!"):
            return self._test()
        if self._accept_word("exists"):
            return Logic("!", (self._exists(),))
        self._expect("(")
        predicate = self._predicate(self._disjunction())
        self._expect(")")
        return Logic("!", (predicate,))

    def _exists(self) -> Node:
        self._expect("(")
        path = self._expression(self._disjunction())
        self._expect(")")
        return Exists(path)

    def _test(self) -> Node:
        if self._token.kind == "word" and self._token.value.lower() == "exists":
            self._at += 1
            return self._exists()
        left = self._sum()
        if self._token.kind == "symbol" and self._token.value in _COMPARISONS:
            symbol = _COMPARISONS[self._token.value]
            self._at += 1
            return Comparison(symbol, self._expression(left), self._expression(self._sum()))
        if self._accept_word("starts"):
            self._expect_word("with")
            token = self._token
            if token.kind not in {"text", "variable"}:
                raise self._unexpected()
            self._at += 1
            prefix: Node = Value(token.value) if token.kind == "text" else Variable(token.value)
            return Prefixed(self._expression(left), prefix)
        if self._accept_word("like_regex"):
            return self._matched(self._expression(left))
        return left

    def _matched(self, left: Node) -> Node:
        expression = self._text()
        flags = self._text() if self._accept_word("flag") else ""
        for flag in flags:
            if flag not in "ismxq":
                detail = f'Unrecognized flag character "{flag}" in LIKE_REGEX predicate.'
                raise SqlError("42601", "invalid input syntax for type jsonpath", detail=detail)
        shown = "i" if "i" in flags else ""
        if "q" in flags:
            return Matched(left, expression, f"{shown}q")
        if "x" in flags:
            raise SqlError("0A000", 'XQuery "x" flag (expanded regular expressions) is not implemented')
        lines = {(False, False): "p", (False, True): "n", (True, False): "", (True, True): "w"}
        return Matched(left, expression, shown + lines["s" in flags, "m" in flags])

    def _text(self) -> str:
        if self._token.kind != "text":
            raise self._unexpected()
        self._at += 1
        return self._tokens[self._at - 1].value

    def _sum(self) -> Node:
        left = self._product()
        while symbol := self._accept("+", "-"):
            left = Arithmetic(symbol, (self._expression(left), self._expression(self._product())))
        return left

    def _product(self) -> Node:
        left = self._signed()
        while symbol := self._accept("*", "/", "%"):
            left = Arithmetic(symbol, (self._expression(left), self._expression(self._signed())))
        return left

    def _signed(self) -> Node:
        symbol = self._accept("+", "-")
        if symbol is None:
            return self._steps()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise SqlError("54001", "the jsonpath is nested too deeply")
        operand = self._expression(self._signed())
        self._depth -= 1
        return Arithmetic(symbol, (operand,))

    def _steps(self) -> Node:
        is_parenthesised = self._token == _Token("symbol", "(")
        node = self._primary()
        if is_parenthesised and isinstance(node, PREDICATES) and self._accept_word("is"):
            self._expect_word("unknown")
            return Logic("is unknown", (node,))
        while True:
            if self._accept("."):
                node = self._member(node)
            elif self._accept("["):
                node = self._elements(node)
            elif self._accept("?"):
                self._expect("(")
                self._filters += 1
                predicate = self._predicate(self._disjunction())
                self._filters -= 1
                self._expect(")")
                node = Filter(node, predicate)
            else:
                return node

    def _primary(self) -> Node:  # noqa: PLR0911 - one for each kind
        token = self._token
        self._at += 1
        match token.kind:
            case "number":
                return Value(_number(token.value))
            case "text":
                return Value(token.value)
            case "variable":
                return Variable(token.value)
            case "word" if token.value.lower() == "last":
                if not self._subscripts:
                    raise SqlError("42601", "LAST is allowed only in array subscripts")
                return LastIndex()
            case "word" if token.value in _CONSTANTS:
                return Value(_CONSTANTS[token.value])
            case "symbol" if token.value == "$":
                return Root()
            case "symbol" if token.value == "@":
                if not self._filters:
                    raise SqlError("42601", "@ is not allowed in root expressions")
                return Current()
            case "symbol" if token.value == "(":
                node = self._disjunction()
                self._expect(")")
                return node
        self._at -= 1
        raise self._unexpected()

    def _member(self, base: Node) -> Node:
        if self._accept("*"):
            return Member(base, None)
        if self._accept("**"):
            return self._descendants(base)
        token = self._token
        if token.kind not in {"word", "text"}:
            raise self._unexpected()
        self._at += 1
        if token.kind == "text" or self._token != _Token("symbol", "("):
            return Member(base, token.value)
        return self._method(base, token.value)

    def _method(self, base: Node, name: str) -> Node:
        if name.lower() in _UNSUPPORTED:
            raise SqlError("0A000", f"jsonpath item method .{name.lower()}() is not supported")
        if name.lower() not in _METHODS:
            raise self._unexpected()
        self._expect("(")
        arguments: list[int] = []
        while name.lower() == "decimal" and len(arguments) < 2 and self._token != _Token("symbol", ")"):
            if arguments:
                self._expect(",")
            sign = -1 if self._accept("-") else 1
            self._accept("+")
            arguments.append(sign * self._integer())
        self._expect(")")
        return Method(base, name.lower(), tuple(arguments))

    def _integer(self) -> int:
        token = self._token
        value = _number(token.value) if token.kind == "number" else None
        if not isinstance(value, int):
            raise self._unexpected()
        self._at += 1
        return value

    def _descendants(self, base: Node) -> Node:
        if not self._accept("{"):
            return Descendants(base, 0, LAST)
        first = self._level()
        last = self._level() if self._accept_word("to") else first
        self._expect("}")
        return Descendants(base, first, last)

    def _level(self) -> int:
        return LAST if self._accept_word("last") else self._integer()

    def _elements(self, base: Node) -> Node:
        if self._accept("*"):
            self._expect("]")
            return Elements(base, None)
        self._subscripts += 1
        subscripts: list[tuple[Node, Node | None]] = []
        while True:
            begin = self._expression(self._sum())
            subscripts.append((begin, self._expression(self._sum()) if self._accept_word("to") else None))
            if not self._accept(","):
                break
        self._subscripts -= 1
        self._expect("]")
        return Elements(base, tuple(subscripts))

    def _predicate(self, node: Node) -> Node:
        if not isinstance(node, PREDICATES):
            raise self._unexpected()
        return node

    def _expression(self, node: Node) -> Node:
        if isinstance(node, PREDICATES):
            raise self._unexpected()
        return node


_CONSTANTS: dict[str, bool | None] = {"null": None, "true": True, "false": False}
_BASES = {"x": 16, "o": 8, "b": 2}


def _number(text: str) -> int | Decimal:
    digits = text.replace("_", "")
    base = _BASES.get(digits[1:2].lower()) if digits[:1] == "0" else None
    if base is not None:
        return int(digits, base)
    return int(digits) if digits.isdecimal() else Decimal(digits)


@lru_cache(maxsize=512)
def parsed_path(text: str) -> Path:
    """Parse a path.

    Raises:
        SqlError: 42601 or 22P02, the path is malformed; 0A000, it has an unsupported method.
    """
    return _Parser(text).path()
