"""Tokens of SQL, to shorten a statement, and to find parts that SQLite's authorizer does not report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"""
    (?P<nothing> [\s\ufeff]+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] )
    | (?P<parameter> [$@:#](?:[\w$]|::)*(?:\([^\s)]*\))? )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = frozenset("(),;=<>+|")
"""Tokens that need no space beside them."""

_BEFORE_ROLLBACK = frozenset({("INSERT", "OR"), ("UPDATE", "OR"), ("ON", "CONFLICT"), ("RAISE", "(")})


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    Attributes:
        begin: start in the statement.
        word: text in upper case; empty if the token is quoted.
        name: text in lower case, without quotes.
        is_quoted: whether the token is quoted: a text or a name.
    """

    begin: int
    word: str
    name: str
    is_quoted: bool


@lru_cache(maxsize=64)
def tokens_of(sql: str) -> tuple[Token, ...]:
    """Return the tokens of a statement, without space and comments."""
    tokens = []
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "nothing":
            continue
        is_quoted, text = token.lastgroup == "quoted", token[0]
        name = text[1:-1] if is_quoted else text
        tokens.append(Token(token.start(), "" if is_quoted else text.upper(), name.lower(), is_quoted))
    return tuple(tokens)


def find_rollback(sql: str) -> int | None:
    """Return the offset of a clause that lets a conflict roll back the whole transaction; None without one.

    The clauses are `INSERT OR ROLLBACK`, `UPDATE OR ROLLBACK`, `ON CONFLICT ROLLBACK` of a constraint, and
    `RAISE(ROLLBACK, …)` of a trigger. In other places, the word may be a name.

    Args:
        sql: one statement that prepares.
    """
    before = ("", "")
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "nothing":
            continue
        text = token[0].upper() if token.lastgroup in ("word", "other") else ""
        if text == "ROLLBACK" and before in _BEFORE_ROLLBACK:
            return token.start()
        before = (before[1], text)
    return None


def outer_tokens(sql: str) -> list[tuple[int, str]]:
    """Return the offset and the text of each token outside brackets, and of the outer brackets themselves.

    Args:
        sql: one statement that prepares.
    """
    tokens: list[tuple[int, str]] = []
    depth = 0
    for token in _TOKEN.finditer(sql):
        depth -= token[0] == ")"
        if not depth and token.lastgroup != "nothing":
            tokens.append((token.start(), token[0]))
        depth += token[0] == "("
    return tokens


def parameters_of(sql: str) -> tuple[str, ...]:
    """Return the parameters of a statement in binding order, as written.

    Args:
        sql: one statement that prepares.
    """
    return tuple(dict.fromkeys(token[0] for token in _TOKEN.finditer(sql) if token.lastgroup == "parameter"))


def shorten(sql: str, parameters: Sequence[str]) -> str:
    """Return a statement without comments and needless space, with numbered parameters.

    SQLite finds a cached statement by its text, so each character costs a nanosecond per document. The name of a column
    without an alias is the text of the column, so the shortened statement may have other column names.

    Args:
        sql: one statement that prepares.
        parameters: names of its parameters in binding order, without `$`.

    Returns:
        The shortened statement; the statement unchanged if it has other parameters.
    """
    numbers = {name: f"?{number}" for number, name in enumerate(parameters, start=1)}
    written: list[str] = []
    is_apart = False
    for token in _TOKEN.finditer(sql):
        kind, text = token.lastgroup, token[0]
        if kind == "nothing":
            is_apart = bool(written)
            continue
        if kind == "parameter":
            if text[1:] not in numbers:
                return sql
            text = numbers[text[1:]]
        if is_apart and written[-1] not in _ENDS and text not in _ENDS:
            written.append(" ")
        is_apart = False
        written.append(text)
    return "".join(written)
