"""The lexer: PostgreSQL's tokens with offsets, and keywords that can be names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from derive.errors import SqlError
from derive.functions.cancellation import check_cancelled

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
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
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
        SqlError: 42601 for an unterminated or invalid token.
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


def _token_at(text: str, offset: int) -> Token:
    character = text[offset]
    if character == "'":
        return _string(text, offset, offset, has_escapes=False)
    if character == '"':
        return _quoted_name(text, offset)
    if character == "$":
        return _dollar(text, offset)
    if character in "uU" and text.startswith(("&'", '&"'), offset + 1):
        raise SqlError(
            "0A000", "U& strings are not supported", offset=offset, hint="Write E'\\u0041', or the character."
        )
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
    """Return the position of the closing quote; doubled quotes are skipped."""
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
    def character(match: re.Match[str]) -> str:
        octal, short, four, eight, other = match.groups()
        if other:
            return _ESCAPED.get(other, other)
        code = int(octal, 8) if octal else int(short or four or eight, 16)
        if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
            raise SqlError("22025", "invalid Unicode escape value", offset=offset + match.start())
        return chr(code)

    return _ESCAPE.sub(character, part.replace("''", "'"))


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
