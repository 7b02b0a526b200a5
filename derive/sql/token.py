"""Tokens of SQL, to write a statement in fewer characters, and to find what SQLite's authorizer says nothing about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
"""Tokens beside which space is needless."""

_BEFORE_ROLLBACK = frozenset({("INSERT", "OR"), ("UPDATE", "OR"), ("ON", "CONFLICT"), ("RAISE", "(")})


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    Attributes:
        begin: where it is in the statement.
        word: what it says, in capital letters; empty if it is quoted.
        name: what it names, in small letters, without quotes.
        is_quoted: whether it is quoted: a text or a name.
    """

    begin: int
    word: str
    name: str
    is_quoted: bool


def tokens_of(sql: str) -> list[Token]:
    """The tokens of a statement, without space and comments."""
    tokens = []
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "nothing":
            continue
        is_quoted, text = token.lastgroup == "quoted", token[0]
        name = text[1:-1] if is_quoted else text
        tokens.append(Token(token.start(), "" if is_quoted else text.upper(), name.lower(), is_quoted))
    return tokens


def find_rollback(sql: str) -> int | None:
    """Where a statement says that a conflict rolls the whole transaction back; None if it does not.

    That is `INSERT OR ROLLBACK`, `UPDATE OR ROLLBACK`, `ON CONFLICT ROLLBACK` of a constraint, or `RAISE(ROLLBACK, …)`
    of a trigger. Elsewhere the word may be a name.

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
    """The tokens of a statement that are outside of brackets, which are among them, and where each begins.

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
    """The parameters of a statement in binding order, as they are written.

    Args:
        sql: one statement that prepares.
    """
    return tuple(dict.fromkeys(token[0] for token in _TOKEN.finditer(sql) if token.lastgroup == "parameter"))


def shorten(sql: str, parameters: Sequence[str]) -> str:
    """A statement without comments and needless space, whose parameters are numbers.

    A statement that is run is found again by its text, so each character of it costs a nanosecond for each document.
    What has no name is called by its text: columns may be called otherwise, which SQL can see.

    Args:
        sql: one statement that prepares.
        parameters: names of its parameters in binding order, without `$`.

    Returns:
        The statement as it is if it has other parameters.
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
