"""Tokens of SQL, as far as they are needed to find a keyword that SQLite's authorizer says nothing about."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<nothing> \s+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] )
    | (?P<parameter> [$@:#](?:[\w$]|::)*(?:\([^\s)]*\))? )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BEFORE_ROLLBACK = frozenset({("INSERT", "OR"), ("UPDATE", "OR"), ("ON", "CONFLICT"), ("RAISE", "(")})


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
