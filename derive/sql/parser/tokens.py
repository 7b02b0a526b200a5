"""The lexer: PostgreSQL's tokens with offsets, keywords that can be names, and a reader of a statement's tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from derive.errors import SqlError
from derive.functions.statement_context import check_cancelled
from derive.sql.parser.ast import QualifiedName

RESERVED = frozenset(
    """all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning
    select session_user some symmetric table then to trailing true union unique user using variadic when where
    window with""".split()  # noqa: SIM905 (a list would be a page)
)
"""Keywords that are names only in quotes, or after AS."""

FUNCTIONS_ONLY = frozenset(
    """authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left
    like natural notnull outer overlaps right similar tablesample verbose""".split()  # noqa: SIM905 (a list would be a page)
)
"""Keywords that are names of functions and types without quotes, but not of columns and relations."""

COLUMNS_ONLY = frozenset(
    """between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int
    integer interval least national nchar none normalize nullif numeric out overlay position precision real row
    setof smallint substring time timestamp treat trim values varchar""".split()  # noqa: SIM905 (a list would be a page)
)
"""Keywords that are names of columns and relations without quotes, but not of functions."""

NEEDS_AS = frozenset(
    """array as char character create day except fetch filter for from grant group having hour intersect into isnull
    limit minute month notnull offset on order over overlaps precision returning second to union varying where
    window with within without year""".split()  # noqa: SIM905 (a list would be a page)
)
"""Keywords that are column aliases only after AS."""


_SPACE = re.compile(r"(?:[ \t\r\n\f\v]+|--[^\r\n]*)+")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_NAME = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_OTHER_BASES = re.compile(r"0(?:[xX](?:_?[0-9A-Fa-f])+|[oO](?:_?[0-7])+|[bB](?:_?[01])+)")
_NUMBER = re.compile(r"(?:\d(?:_?\d)*(?:\.(?!\.)(?:\d(?:_?\d)*)?)?|\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?")
_PARAMETER = re.compile(r"\$(\d+)")
_DOLLAR_QUOTE = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$")
_OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\r\n]*)*[\r\n](?:[ \t\r\n\f\v]|--[^\r\n]*[\r\n])*'")
_HEX = "[0-9A-Fa-f]"
_ESCAPE = re.compile(
    rf"\\(?:([0-7]{{1,3}})|x({_HEX}{{1,2}})|u([Dd][89ABab]{_HEX}{{2}})\\u([Dd][C-Fc-f]{_HEX}{{2}})"
    rf"|u({_HEX}{{4}})|U({_HEX}{{8}})|(.))",
    re.DOTALL,
)
_FIRST_OF_SEVERAL, _ESCAPED_BYTES = 0x80, 0xDC00
"""The first byte that is no character of its own, and the code with which Python's `surrogateescape` begins."""
_UNICODE = "Write four digits after \\u, or eight digits after \\U."
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LETS_SIGN_END = frozenset("~!@#%^&|`?")


class TokenKind(Enum):
    """The kind of a token."""

    WORD = "word"
    """A keyword or an unquoted name; its value is in lower case."""
    NAME = "name"
    """A name in double quotes."""
    STRING = "string"
    NUMBER = "number"
    PARAMETER = "parameter"
    """`$1` and so on; the value is the number."""
    SYMBOL = "symbol"
    """An operator, or punctuation."""
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    Attributes:
        kind: kind of the token.
        value: value, without quotes and escapes.
        offset: start, in characters from 0.
        end: end, in characters from 0.
    """

    kind: TokenKind
    value: str
    offset: int
    end: int


_UNTIL_ASKED = 256
"""Number of tokens between two checks for cancellation."""


def tokens_of(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text, followed by a token of the kind `END`.

    Raises:
        SqlError: a token is unterminated or invalid (42601).
    """
    tokens = []
    offset = _after_space(text, 0)
    while offset < len(text):
        token = _token_at(text, offset)
        tokens.append(token)
        if not len(tokens) % _UNTIL_ASKED:
            check_cancelled()
        offset = _after_space(text, token.end)
    return (*tokens, Token(TokenKind.END, "", len(text), len(text)))


def _after_space(text: str, offset: int) -> int:
    while True:
        space = _SPACE.match(text, offset)
        if space:
            offset = space.end()
        elif text.startswith("/*", offset):
            offset = _after_comment(text, offset)
        else:
            return offset


def _after_comment(text: str, begin: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, begin):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise _endless("/* comment", text, begin)


def _token_at(text: str, offset: int) -> Token:  # noqa: PLR0911 (one for each kind)
    character = text[offset]
    if character == "'":
        return _string(text, offset, offset, has_escapes=False)
    if character == '"':
        return _quoted_name(text, offset)
    if character == "$":
        return _dollar(text, offset)
    if character in "uU" and text.startswith(("&'", '&"'), offset + 1):
        return _unicode_token(text, offset)
    if text.startswith("'", offset + 1) and character in "eEbBxXnN":
        return _prefixed_string(text, offset)
    if number := _OTHER_BASES.match(text, offset) or _NUMBER.match(text, offset):
        return _number(text, number)
    name = _NAME.match(text, offset)
    return Token(TokenKind.WORD, _folded(name.group()), offset, name.end()) if name else _symbol(text, offset)


def _prefixed_string(text: str, offset: int) -> Token:
    character = text[offset]
    if character in "eE":
        return _string(text, offset, offset + 1, has_escapes=True)
    what = "national character strings" if character in "nN" else "bit strings"
    raise SqlError("0A000", f"{what} are not supported", offset=offset, hint="Write '…'::text or '\\x…'::bytea.")


def _folded(name: str) -> str:
    """Return a name with its ASCII letters in lower case, as PostgreSQL does in UTF-8."""
    return name.lower() if name.isascii() else "".join(letter.lower() if letter < "\x80" else letter for letter in name)


def _number(text: str, number: re.Match[str]) -> Token:
    junk = _NAME.match(text, number.end())
    if junk:
        near = number.group() + junk.group()
        message = f'trailing junk after numeric literal at or near "{near}"'
        raise SqlError("42601", message, offset=number.start())
    value = number.group().replace("_", "")
    value = str(int(value, 0)) if value[1:2].isalpha() and value[0] == "0" and value[1] not in "eE" else value
    return Token(TokenKind.NUMBER, value, number.start(), number.end())


def _quoted_name(text: str, offset: int) -> Token:
    end = _closing(text, offset + 1, '"')
    if end is None:
        raise _endless("quoted identifier", text, offset)
    value = text[offset + 1 : end].replace('""', '"')
    if not value:
        raise SqlError("42601", 'zero-length delimited identifier at or near """"', offset=offset)
    return Token(TokenKind.NAME, value, offset, end + 1)


def _closing(text: str, begin: int, quote: str) -> int | None:
    """Return the position of the closing quote; two adjacent quotes do not close the text."""
    while True:
        end = text.find(quote, begin)
        if end < 0:
            return None
        if not text.startswith(quote, end + 1):
            return end
        begin = end + 2


def _string(text: str, offset: int, quote: int, *, has_escapes: bool) -> Token:
    """Read a string, with its continuations on further lines."""
    parts = []
    while True:
        end = _escaped_closing(text, quote + 1) if has_escapes else _closing(text, quote + 1, "'")
        if end is None:
            raise _endless("quoted string", text, offset)
        part = text[quote + 1 : end]
        parts.append(_unescaped(part, quote + 1) if has_escapes else part.replace("''", "'"))
        continued = _CONTINUED.match(text, end + 1)
        if not continued:
            return Token(TokenKind.STRING, "".join(parts), offset, end + 1)
        quote = continued.end() - 1


def _escaped_closing(text: str, begin: int) -> int | None:
    for match in re.compile(r"\\.|''|'", re.DOTALL).finditer(text, begin):
        if match.group() == "'":
            return match.start()
    return None


def _unescaped(part: str, offset: int) -> str:
    """Return the text of a string with escapes; octal and hexadecimal escapes are bytes of UTF-8."""

    def character(match: re.Match[str]) -> str:
        octal, short, high, low, four, eight, other = match.groups()
        if other and other not in "uU":
            return _ESCAPED.get(other, other)
        if other:
            raise SqlError("22025", "invalid Unicode escape", offset=offset + match.start(), hint=_UNICODE)
        if octal or short:
            byte = (int(octal, 8) if octal else int(short, 16)) & 0xFF
            return chr(byte) if byte < _FIRST_OF_SEVERAL else chr(_ESCAPED_BYTES + byte)
        code = int(four or eight or high, 16)
        if low:
            code = 0x10000 + ((code & 0x3FF) << 10 | int(low, 16) & 0x3FF)
        if 0xD800 <= code < 0xE000:
            raise SqlError("42601", "invalid Unicode surrogate pair", offset=offset + match.start(), hint=_UNICODE)
        if not 0 < code < 0x110000:
            raise SqlError("22025", "invalid Unicode escape value", offset=offset + match.start())
        return chr(code)

    text = _ESCAPE.sub(character, part.replace("''", "'"))
    if "\0" in text:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8": 0x00', offset=offset)
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise SqlError("22021", f'invalid byte sequence for encoding "UTF8": 0x{byte:02x}', offset=offset) from None


_UNICODE_STYLE = "Unicode escapes must be \\XXXX or \\+XXXXXX."
_NO_ESCAPE_CHARACTERS = frozenset("0123456789abcdefABCDEF+'\" \t\n\r\f\v")


def _unicode_token(text: str, offset: int) -> Token:
    """Read `U&'…'` or `U&"…"`, with its UESCAPE clause if there is one."""
    is_name = text[offset + 2] == '"'
    token = _quoted_name(text, offset + 2) if is_name else _string(text, offset, offset + 2, has_escapes=False)
    escape, end = "\\", token.end
    word = _NAME.match(text, _after_space(text, end))
    if word and word.group().lower() == "uescape":
        begin = _after_space(text, word.end())
        if not text.startswith("'", begin):
            message = "UESCAPE must be followed by a simple string literal"
            raise SqlError("42601", f'{message} at or near "{text[begin : begin + 1]}"', offset=begin)
        character = _string(text, begin, begin, has_escapes=False)
        escape, end = character.value, character.end
        if len(escape) != 1 or escape in _NO_ESCAPE_CHARACTERS:
            near = text[begin:end]
            raise SqlError("42601", f'invalid Unicode escape character at or near "{near}"', offset=begin)
    return Token(token.kind, _with_unicode(token.value, escape, offset), offset, end)


def _with_unicode(value: str, escape: str, offset: int) -> str:
    """Return a text with its Unicode escapes replaced by characters.

    Raises:
        SqlError: an escape is malformed, or is no character (42601).
    """
    mark = re.escape(escape)
    pattern = re.compile(rf"{mark}(?:({mark})|({_HEX}{{4}})|\+({_HEX}{{6}})|)", re.DOTALL)

    def character(match: re.Match[str]) -> str:
        double, four, six = match.groups()
        if double:
            return escape
        if not four and not six:
            raise SqlError("42601", "invalid Unicode escape", offset=offset, hint=_UNICODE_STYLE)
        code = int(four or six, 16)
        if not 0 < code < 0x110000:
            raise SqlError("42601", "invalid Unicode escape value", offset=offset)
        return chr(code)

    decoded = pattern.sub(character, value)
    try:
        return decoded.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise SqlError("42601", "invalid Unicode surrogate pair", offset=offset) from None


def _dollar(text: str, offset: int) -> Token:
    if parameter := _PARAMETER.match(text, offset):
        return Token(TokenKind.PARAMETER, parameter.group(1), offset, parameter.end())
    tag = _DOLLAR_QUOTE.match(text, offset)
    if tag is None:
        raise SqlError("42601", 'syntax error at or near "$"', offset=offset)
    end = text.find(tag.group(), tag.end())
    if end < 0:
        raise _endless("dollar-quoted string", text, offset)
    return Token(TokenKind.STRING, text[tag.end() : end], offset, end + len(tag.group()))


def _symbol(text: str, offset: int) -> Token:
    for punctuation in ("::", ":=", "..", "(", ")", "[", "]", ",", ";", ".", ":"):
        if text.startswith(punctuation, offset):
            return Token(TokenKind.SYMBOL, punctuation, offset, offset + len(punctuation))
    match = _OPERATOR.match(text, offset)
    if match is None:
        raise SqlError("42601", f'syntax error at or near "{text[offset]}"', offset=offset)
    symbol = match.group()
    for comment in ("--", "/*"):
        symbol = symbol.split(comment)[0]
    while len(symbol) > 1 and symbol[-1] in "+-" and not _LETS_SIGN_END.intersection(symbol):
        symbol = symbol[:-1]
    return Token(TokenKind.SYMBOL, "<>" if symbol == "!=" else symbol, offset, offset + len(symbol))


def _endless(what: str, text: str, offset: int) -> SqlError:
    return SqlError("42601", f'unterminated {what} at or near "{text[offset:]}"', offset=offset)


_Item = TypeVar("_Item")

_PATH = re.compile(r"[\w./-]*")


class TokenReader:
    """A reader of tokens; its methods raise 42601 with the position of the current token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = tokens_of(text)
        self._index = 0

    @property
    def token(self) -> Token:
        """Return the next token."""
        return self._tokens[self._index]

    @property
    def offset(self) -> int:
        """Return the start of the next token."""
        return self._tokens[self._index].offset

    @property
    def end_before(self) -> int:
        """Return the end of the previous token."""
        return self._tokens[self._index - 1].end if self._index else 0

    def ahead(self, count: int = 1) -> Token:
        """Return the token that is `count` tokens after the next one."""
        return self._tokens[min(self._index + count, len(self._tokens) - 1)]

    def next(self) -> Token:
        """Read one token."""
        token = self._tokens[self._index]
        if token.kind is not TokenKind.END:
            self._index += 1
            if not self._index % _UNTIL_ASKED:
                check_cancelled()
        return token

    def mark(self) -> int:
        """Return the current position."""
        return self._index

    def return_to(self, mark: int) -> None:
        """Go back to a position."""
        self._index = mark

    def error(self, token: Token | None = None) -> SqlError:
        """Return the syntax error at a token, which is the next one by default."""
        token = token or self.token
        if token.kind is TokenKind.END:
            return SqlError("42601", "syntax error at end of input", offset=len(self.text))
        near = self.text[token.offset : token.end]
        return SqlError("42601", f'syntax error at or near "{near}"', offset=token.offset)

    def is_end(self) -> bool:
        """Return whether all tokens are read."""
        return self.token.kind is TokenKind.END

    def is_symbol(self, *symbols: str) -> bool:
        """Return whether one of these symbols is next."""
        return self.token.kind is TokenKind.SYMBOL and self.token.value in symbols

    def is_word(self, *words: str) -> bool:
        """Return whether one of these keywords is next."""
        return self.token.kind is TokenKind.WORD and self.token.value in words

    def is_words(self, *words: str) -> bool:
        """Return whether these keywords are next, in order."""
        return all(
            self.ahead(index).kind is TokenKind.WORD and self.ahead(index).value == word
            for index, word in enumerate(words)
        )

    def accept_symbol(self, *symbols: str) -> bool:
        """If one of these symbols is next, read it; return whether it was read."""
        if self.is_symbol(*symbols):
            self._index += 1
            return True
        return False

    def accept_word(self, *words: str) -> str | None:
        """If one of these keywords is next, read and return it; return None otherwise."""
        if self.is_word(*words):
            return self.next().value
        return None

    def accept_words(self, *words: str) -> bool:
        """If these keywords are next, in order, read them; return whether they were read."""
        if self.is_words(*words):
            self._index += len(words)
            return True
        return False

    def expect_symbol(self, symbol: str) -> Token:
        """Read this symbol."""
        if not self.is_symbol(symbol):
            raise self.error()
        return self.next()

    def expect_word(self, *words: str) -> Token:
        """Read one of these keywords."""
        if not self.is_word(*words):
            raise self.error()
        return self.next()

    def expect_words(self, *words: str) -> None:
        """Read these keywords, in order."""
        for word in words:
            self.expect_word(word)

    def expect_end(self) -> None:
        """Raise an error if tokens remain."""
        if not self.is_end():
            raise self.error()

    def string(self) -> str:
        """Read a string."""
        if self.token.kind is not TokenKind.STRING:
            raise self.error()
        return self.next().value

    def integer(self) -> int:
        """Read an integer."""
        if self.token.kind is not TokenKind.NUMBER or not self.token.value.isdigit():
            raise self.error()
        return int(self.next().value)

    def is_name(self, *, of_function: bool = False) -> bool:
        """Return whether a name is next: of a column or relation, or of a function or type."""
        token = self.token
        if token.kind is TokenKind.NAME:
            return True
        other = COLUMNS_ONLY if of_function else FUNCTIONS_ONLY
        return token.kind is TokenKind.WORD and token.value not in RESERVED and token.value not in other

    def name(self) -> str:
        """Read the name of a column or a relation."""
        if not self.is_name():
            raise self.error()
        return self.next().value

    def any_name(self) -> str:
        """Read a name that may be a keyword, as after AS and after a dot."""
        if self.token.kind not in {TokenKind.NAME, TokenKind.WORD}:
            raise self.error()
        return self.next().value

    def is_bare_alias(self) -> bool:
        """Return whether an alias without AS is next."""
        token = self.token
        return token.kind is TokenKind.NAME or (token.kind is TokenKind.WORD and token.value not in NEEDS_AS)

    def qualified_name(self) -> QualifiedName:
        """Read the name of a relation, and drop the name of a database before the schema."""
        offset = self.offset
        parts = [self.name()]
        while self.accept_symbol("."):
            parts.append(self.any_name())
        if len(parts) > 3:
            message = f"improper qualified name (too many dotted names): {'.'.join(parts)}"
            raise SqlError("42601", message, offset=offset)
        if self.is_symbol("/"):
            error = self.error()
            path = _PATH.match(self.text, offset)
            error.hint = f'Names with a slash need quotes: "{path.group() if path else parts[0]}".'
            raise error
        return QualifiedName(parts[-2] if len(parts) > 1 else None, parts[-1], offset)

    def list_of(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Read items separated by commas."""
        items = [item()]
        while self.accept_symbol(","):
            items.append(item())
        return tuple(items)

    def in_parentheses(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Read items separated by commas, in parentheses."""
        self.expect_symbol("(")
        items = self.list_of(item)
        self.expect_symbol(")")
        return items

    def located_name(self) -> tuple[str, int]:
        """Read a name, and return it with its offset."""
        offset = self.offset
        return self.name(), offset
