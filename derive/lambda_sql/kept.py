"""Expressions stored in a schema: those of indexes, CHECK constraints and generated columns.

SQLite evaluates them when a row is written, and trusts the result when the row is read or removed. An expression that
asks for the present would be written at the time of one document and searched at the time of another, so deleted rows
would be found. SQLite refuses its own time functions there, but cannot see that our overrides follow the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from derive.lambda_sql.functions import TIMES
from derive.lambda_sql.token import Token, tokens_of

_PRESENT, _ZONES = frozenset({"now", "subsec", "subsecond"}), frozenset({"localtime", "utc"})
_CURRENT = frozenset({"current_date", "current_time", "current_timestamp"})


def find_present(sql: str) -> tuple[int, str] | None:
    """Return the position and the name of a call in a stored expression that asks for the present or the time zone.

    Return None without such a call.

    >>> find_present("CREATE INDEX live ON t (k) WHERE until > unixepoch('now')")
    (41, 'unixepoch')

    Args:
        sql: one statement that prepares.
    """
    tokens = tokens_of(sql)
    for begin, end in _kept(tokens):
        for place in range(begin, end):
            name = tokens[place].name
            if name in _CURRENT or (_calls(tokens, place) and _asks(name, _arguments(tokens, place + 1))):
                return tokens[place].begin, name
    return None


def _kept(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield the range of tokens of each stored expression."""
    words = [token.word for token in tokens]
    if words[:2] == ["CREATE", "INDEX"] or words[:3] == ["CREATE", "UNIQUE", "INDEX"]:
        yield 0, len(tokens)
    if words[:1] == ["ALTER"] or (words[:2] == ["CREATE", "TABLE"] and not _is_selected(words)):
        for place in range(1, len(words)):
            if words[place] == "(" and words[place - 1] in ("CHECK", "AS"):
                yield place, _end_of(words, place)


def _is_selected(words: Sequence[str]) -> bool:
    """Return whether a table is created from a SELECT: it stores rows then, and no expression."""
    return "AS" in words and ("(" not in words or words.index("AS") < words.index("("))


def _end_of(words: Sequence[str], place: int) -> int:
    """Return the place after the bracket that closes the bracket at `place`."""
    depth = 0
    for end in range(place, len(words)):
        depth += (words[end] == "(") - (words[end] == ")")
        if not depth:
            return end + 1
    return len(words)


def _calls(tokens: Sequence[Token], place: int) -> bool:
    return place + 1 < len(tokens) and tokens[place + 1].word == "("


def _arguments(tokens: Sequence[Token], place: int) -> list[list[Token]]:
    """Return the arguments of a call whose opening bracket is at `place`."""
    end = _end_of([token.word for token in tokens], place)
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[place + 1 : end - 1]:
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and not depth:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return arguments if arguments[0] else []


def _asks(function: str, arguments: Sequence[Sequence[Token]]) -> bool:
    """Return whether a time function with these arguments asks for the present or the time zone."""
    if function == "timediff":
        return any(_says(argument, _PRESENT) for argument in arguments)
    index = TIMES.get(function)
    if index is None:
        return False
    if len(arguments) <= index:
        return True
    return _says(arguments[index], _PRESENT) or any(_says(argument, _ZONES) for argument in arguments[index + 1 :])


def _says(argument: Sequence[Token], words: frozenset[str]) -> bool:
    return any(token.is_quoted and token.name in words for token in argument)
