"""Patterns of LIKE, and patterns of SIMILAR TO as regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions, SqlForm, registered_name
from derive.functions.native import are_short
from derive.functions.regex.expression import RegularExpression
from derive.functions.regex.parser import LONGEST_EXPRESSION, Parsed
from derive.functions.regex.tree import CharacterSet, Concatenation, Constraint, Repetition
from derive.functions.scalar.regex import matching_part
from derive.functions.types.letter_case import lower

FUNCTIONS = Functions()

_T, _B = Type.TEXT, Type.BOOLEAN


class LikePattern:
    r"""A pattern of LIKE: `%` matches any text, `_` any character, `\` escapes the next character.

    Texts between `%` are searched one after the other, each at its earliest position. A pattern with `_` is matched by
    RE2.

    Raises:
        SqlError: 22025, it ends with `\`; 54001, it is too long.
    """

    def __init__(self, pattern: str) -> None:
        tokens: list[str] = _TOKENS.findall(pattern)
        if tokens and tokens[-1] == "\\":
            raise SqlError("22025", "LIKE pattern must not end with escape character")
        pieces: list[list[str]] = [[]]
        for token in tokens:
            if token == "%":
                pieces.append([])
            elif token != "_":
                pieces[-1].append(_taken(token))
        self._pieces = ["".join(piece) for piece in pieces]
        self._expression = _expression_of(tokens) if "_" in tokens else None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches a whole text."""
        if self._expression:
            return self._expression.is_in(text)
        first, *inner = self._pieces
        if not inner:
            return text == first
        last = inner.pop()
        end = len(text) - len(last)
        at = len(first)
        if end < at or not text.startswith(first) or not text.endswith(last):
            return False
        for piece in inner:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


_ANY = CharacterSet(is_negated=True)
_ANYTHING = Repetition(_ANY, 0, None, is_greedy=True)
_TOKENS = re.compile(r"\\.|[%_\\]|[^%_\\]+", re.DOTALL)


def _taken(token: str) -> str:
    """Return the literal text of a token."""
    return token[1:] if token.startswith("\\") else token


def _expression_of(tokens: Sequence[str]) -> RegularExpression:
    """Return a regular expression of a pattern's tokens.

    Raises:
        SqlError: 54001, it is too long.
    """
    too_long = SqlError("54001", "LIKE pattern is too long", hint="Only patterns without _ may have any length.")
    parts: list[CharacterSet | Repetition] = []
    for token in tokens:
        if token == "%":
            parts.append(_ANYTHING)
        elif token == "_":
            parts.append(_ANY)
        else:
            parts += map(CharacterSet.of, _taken(token))
        if len(parts) > LONGEST_EXPRESSION:
            raise too_long
    try:
        return RegularExpression(Parsed(Concatenation((Constraint.START, *parts, Constraint.END)), 0))
    except SqlError as error:
        if error.sqlstate != "2201B":
            raise
        raise too_long from error


like_pattern = lru_cache(maxsize=512)(LikePattern)


def _like(text: str, pattern: str) -> bool:
    return like_pattern(pattern).matches(text)


def _ilike(text: str, pattern: str) -> bool:
    return like_pattern(lower(pattern)).matches(lower(text))


def _like_escape(pattern: str, escape: str) -> str:
    """Return a pattern with another escape character as a pattern with a backslash."""
    if len(escape) > 1:
        raise _bad_escape()
    if escape == "\\":
        return pattern
    pieces: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if escape and letter == escape:
            # An escape before a character yields a backslash and the character; at the end, only the
            # backslash.
            pieces.append("\\" + next(letters, ""))
        else:
            pieces.append("\\\\" if letter == "\\" else letter)
    return "".join(pieces)


def _bad_escape() -> SqlError:
    return SqlError("22025", "invalid escape string", hint="Escape string must be empty or one character.")


def similar_expression(pattern: str, escape: str = "\\") -> str:
    """Return a regular expression for a pattern of SIMILAR TO, or of three-part `substring(… similar …)`.

    Raises:
        SqlError: 22025, the escape is longer than one character; 2200C, there are too many parts.
    """
    if len(escape) > 1:
        raise _bad_escape()
    pieces = ["^(?:"]
    letters = iter(pattern)
    is_inside = False
    separators = 0
    for letter in letters:
        if escape and letter == escape:
            escaped = next(letters, "")
            if escaped == '"' and not is_inside:
                separators += 1
                if separators > len(_SEPARATORS):
                    raise SqlError(
                        "2200C", "SQL regular expression may not contain more than two escape-double-quote separators"
                    )
                pieces.append(_SEPARATORS[separators - 1])
            elif escaped:
                pieces.append(f"\\{escaped}")
        elif is_inside:
            pieces.append("\\\\" if letter == "\\" else letter)
            is_inside = letter != "]"
        elif letter == "[":
            pieces.append(letter)
            is_inside = True
        elif letter in ".^$\\":
            pieces.append("\\" + letter)
        else:
            pieces.append({"%": ".*", "_": ".", "(": "(?:"}.get(letter, letter))
    return f"{''.join(pieces)})$"


_SEPARATORS = ("){1,1}?(", "){1,1}(?:")
"""The first part matches the shortest text, and the second part is the result."""


def _negated(matches: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    return lambda text, pattern: not matches(text, pattern)


def _similar_part(text: str, pattern: str, escape: str) -> str | None:
    return matching_part(text, similar_expression(pattern, escape))


_PLAIN_PATTERN = re.compile(r"'(%?)((?:[^%_\\']|'')*)(%?)'")


def _like_form(*, is_negated: bool) -> SqlForm:
    """Return the SQL of a LIKE: for a literal prefix, suffix or search, a comparison; otherwise a call."""
    name = registered_name(f"{'unlike' if is_negated else 'like'}_text")

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        text, pattern = arguments
        plain = _PLAIN_PATTERN.fullmatch(pattern)
        if plain is None or not are_short([text]):
            return f"{name}({text}, {pattern})"
        before, inner, behind = plain.groups()
        length = len(inner.replace("''", "'"))
        if before and behind:
            matches = f"(instr({text}, '{inner}') > 0)"
        elif behind:
            matches = f"(substr({text}, 1, {length}) = '{inner}')"
        elif before and length:
            matches = f"(length({text}) >= {length} AND substr({text}, -{length}) = '{inner}')"
        else:
            matches = f"({text} IS NOT NULL OR NULL)" if before else f"({text} = '{inner}')"
        return f"(NOT {matches})" if is_negated else matches

    return form


def _add_patterns() -> None:
    define = FUNCTIONS.define
    both = (_T, _T)
    define("~~", both, _B, word="like", sql=_like_form(is_negated=False))(_like)
    define("!~~", both, _B, word="unlike", sql=_like_form(is_negated=True))(_negated(_like))
    define("~~*", both, _B, word="ilike")(_ilike)
    define("!~~*", both, _B, word="not_ilike")(_negated(_ilike))
    define("like_escape", both, _T)(_like_escape)
    define("similar_to_escape", both, _T)(similar_expression)
    define("similar_to_escape", (_T,), _T)(similar_expression)
    define("substring", (_T, _T, _T), _T)(_similar_part)


_add_patterns()
