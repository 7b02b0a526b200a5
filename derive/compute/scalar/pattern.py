"""Patterns: LIKE, SIMILAR TO, and regular expressions, which are PostgreSQL's as far as Python's can express them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice

from derive.compute.algebra.types import Type
from derive.compute.scalar.function import Functions, SqlForm, registered_name
from derive.compute.scalar.native import are_short
from derive.errors import SqlError

FUNCTIONS = Functions()

_T, _I, _B = Type.TEXT, Type.INTEGER, Type.BOOLEAN


@lru_cache(maxsize=512)
def like_pattern(pattern: str, ignores_case: bool) -> re.Pattern[str]:
    r"""What a pattern of LIKE matches: `%` any text, `_` any character, `\` takes the next one as it is.

    Raises:
        SqlError: 22025, it ends with `\`.
    """
    pieces: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, None)
            if escaped is None:
                raise SqlError("22025", "LIKE pattern must not end with escape character")
            pieces.append(re.escape(escaped))
        else:
            pieces.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return re.compile("".join(pieces), re.DOTALL | (re.IGNORECASE if ignores_case else 0))


def _like(text: str, pattern: str) -> bool:
    return like_pattern(pattern, False).fullmatch(text) is not None


def _ilike(text: str, pattern: str) -> bool:
    return like_pattern(pattern, True).fullmatch(text) is not None


def _like_escape(pattern: str, escape: str) -> str:
    """A pattern with another escape character, as one with a backslash."""
    if len(escape) > 1:
        raise _bad_escape()
    if escape == "\\":
        return pattern
    pieces: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if escape and letter == escape:
            # What it stands before is taken as it is; at the end, nothing is.
            pieces.append("\\" + next(letters, ""))
        else:
            pieces.append("\\\\" if letter == "\\" else letter)
    return "".join(pieces)


def _bad_escape() -> SqlError:
    return SqlError("22025", "invalid escape string", hint="Escape string must be empty or one character.")


def similar_expression(pattern: str, escape: str = "\\") -> str:
    """A regular expression for a pattern of SIMILAR TO.

    Raises:
        SqlError: 22025, the escape is longer than one character.
    """
    if len(escape) > 1:
        raise _bad_escape()
    pieces: list[str] = []
    letters = iter(pattern)
    is_inside = False
    for letter in letters:
        if escape and letter == escape:
            escaped = next(letters, "")
            pieces.append(f"\\{escaped}" if escaped else "")
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
    return f"^(?:{''.join(pieces)})$"


_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "word": r"\w",
    "cntrl": r"\x00-\x1f\x7f",
    "graph": "!-~",
    "print": " -~",
}
_ESCAPES = {
    "y": r"\b",
    "Y": r"\B",
    "m": r"\b(?=\w)",
    "M": r"\b(?<=\w)",
    "Z": r"\Z",
    "A": r"\A",
    "b": r"\x08",
    "e": r"\x1b",
}


@lru_cache(maxsize=512)
def regular_expression(expression: str, flags: str = "") -> re.Pattern[str]:
    """An advanced regular expression of PostgreSQL as one of Python.

    Args:
        expression: in PostgreSQL's syntax.
        flags: letters: `i`, `c`, `n` or `m`, `p`, `w`, `x`, `q`, `s`, `g`; `b`, `e` and `t` change nothing.

    Raises:
        SqlError: 2201B, it is none; 22023, there is no such flag.
    """
    option = 0
    by_lines = dot_stops = False
    for flag in flags:
        if flag not in "becgimnpqstwx":
            raise SqlError("22023", f'invalid regular expression option: "{flag}"')
        option = option | re.IGNORECASE if flag == "i" else option & ~re.IGNORECASE if flag == "c" else option
        option |= re.VERBOSE if flag == "x" else 0
        by_lines = flag in "nmw" or (by_lines and flag not in "ps")
        dot_stops = flag in "nmp" or (dot_stops and flag not in "ws")
    try:
        translated = re.escape(expression) if "q" in flags else _translated(expression, by_lines=by_lines)
        return re.compile(translated, option | (re.MULTILINE if by_lines else 0) | (0 if dot_stops else re.DOTALL))
    except (re.error, OverflowError, RecursionError) as exc:
        raise SqlError("2201B", f"invalid regular expression: {exc}") from exc


def _translated(expression: str, *, by_lines: bool) -> str:
    pieces: list[str] = []
    at = 0
    if expression.startswith("***="):
        return re.escape(expression[4:])
    expression = expression.removeprefix("***:")
    while at < len(expression):
        letter = expression[at]
        if letter == "\\" and at + 1 < len(expression):
            escaped = expression[at + 1]
            pieces.append(_ESCAPES.get(escaped) or (f"\\{escaped}" if escaped.isascii() else re.escape(escaped)))
            at += 2
        elif letter == "[":
            bracket, at = _bracket(expression, at)
            pieces.append(bracket)
        else:
            if letter == "+" and pieces and pieces[-1] in {"*", "+", "?", "}"}:
                raise SqlError("2201B", "invalid regular expression: quantifier operand invalid")
            pieces.append(r"\Z" if letter == "$" and not by_lines else letter)
            at += 1
    return "".join(pieces)


def _bracket(expression: str, at: int) -> tuple[str, int]:
    """A bracket expression that begins at a position, and where it ends."""
    if expression.startswith(("[[:<:]]", "[[:>:]]"), at):
        return (r"\b(?=\w)" if expression[at + 3] == "<" else r"\b(?<=\w)"), at + 7
    begin = at
    at += 1
    pieces = ["["]
    if expression[at : at + 1] == "^":
        pieces.append("^")
        at += 1
    is_first = True
    while at < len(expression):
        letter = expression[at]
        if letter == "]" and not is_first:
            return "".join((*pieces, "]")), at + 1
        named = re.compile(r"\[:(\w+):\]").match(expression, at)
        if named:
            if named[1] not in _CLASSES:
                raise SqlError("2201B", "invalid regular expression: invalid character class")
            pieces.append(_CLASSES[named[1]])
            at = named.end()
        elif letter == "\\" and at + 1 < len(expression):
            pieces.append(expression[at : at + 2])
            at += 2
        else:
            pieces.append("\\" + letter if letter in "[&~|]" else letter)
            at += 1
        is_first = False
    raise SqlError("2201B", "invalid regular expression: brackets [] not balanced", detail=expression[begin:])


def _searching(flags: str) -> Callable[[str, str], bool]:
    return lambda text, expression: regular_expression(expression, flags).search(text) is not None


def _negated(matches: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    return lambda text, pattern: not matches(text, pattern)


_REPLACEMENT = re.compile(r"\\(.)|&", re.DOTALL)


def _regexp_replace(text: str, expression: str, replacement: str, flags: str = "") -> str:
    def put(match: re.Match[str]) -> str:
        def part(directive: re.Match[str]) -> str:
            letter = directive[1]
            if letter == "&":
                return match[0]
            if letter in "123456789":
                index = int(letter)
                return (match[index] or "") if index <= match.re.groups else ""
            return "\\" if letter == "\\" else directive[0]

        return re.sub(r"\\(.)", part, replacement, flags=re.DOTALL)

    return regular_expression(expression, flags).sub(put, text, count=0 if "g" in flags else 1)


def _matching_part(text: str, expression: str) -> str | None:
    match = regular_expression(expression).search(text)
    if match is None:
        return None
    return match[1] if match.re.groups else match[0]


def _no_global(flags: str, function: str) -> str:
    if "g" in flags:
        raise SqlError("22023", f'{function}() does not support the "global" option')
    return flags


def _begun(begin: int) -> int:
    if begin <= 0:
        raise SqlError("22023", f'invalid value for parameter "start": {begin}')
    return begin - 1


def _regexp_count(text: str, expression: str, begin: int = 1, flags: str = "") -> int:
    begin = _begun(begin)
    compiled = regular_expression(expression, _no_global(flags, "regexp_count"))
    return sum(1 for _ in compiled.finditer(text, begin)) if begin <= len(text) else 0


def _regexp_like(text: str, expression: str, flags: str = "") -> bool:
    return regular_expression(expression, _no_global(flags, "regexp_like")).search(text) is not None


def _nth_match(text: str, expression: str, begin: int, which: int, flags: str) -> re.Match[str] | None:
    begin = _begun(begin)
    if which <= 0:
        raise SqlError("22023", f'invalid value for parameter "n": {which}')
    matches = regular_expression(expression, flags).finditer(text, begin)
    return next(islice(matches, which - 1, None), None) if begin <= len(text) else None


def _regexp_substr(text: str, expression: str, begin: int = 1, which: int = 1, flags: str = "") -> str | None:
    match = _nth_match(text, expression, begin, which, _no_global(flags, "regexp_substr"))
    return match[0] if match else None


def _regexp_instr(text: str, expression: str, begin: int = 1, which: int = 1) -> int:
    match = _nth_match(text, expression, begin, which, "")
    return match.start() + 1 if match else 0


_PLAIN_PATTERN = re.compile(r"'(%?)((?:[^%_\\']|'')*)(%?)'")


def _like_form(*, is_negated: bool) -> SqlForm:
    """A comparison of beginnings or ends, or a search, where the pattern is a literal of such a form."""
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
    for symbol, word, flags in (("~", "matches", ""), ("~*", "matches_any_case", "i")):
        define(symbol, both, _B, word=word)(_searching(flags))
        define(f"!{symbol}", both, _B, word=f"not_{word}")(_negated(_searching(flags)))


def _add_regular_expressions() -> None:
    define = FUNCTIONS.define
    define("regexp_replace", (_T, _T, _T), _T)(_regexp_replace)
    define("regexp_replace", (_T, _T, _T, _T), _T)(_regexp_replace)
    define("substring", (_T, _T), _T)(_matching_part)
    define("regexp_like", (_T, _T), _B)(_regexp_like)
    define("regexp_like", (_T, _T, _T), _B)(_regexp_like)
    define("regexp_count", (_T, _T), _I)(_regexp_count)
    define("regexp_count", (_T, _T, _I), _I)(_regexp_count)
    define("regexp_count", (_T, _T, _I, _T), _I)(_regexp_count)
    define("regexp_substr", (_T, _T), _T)(_regexp_substr)
    define("regexp_substr", (_T, _T, _I), _T)(_regexp_substr)
    define("regexp_substr", (_T, _T, _I, _I), _T)(_regexp_substr)
    define("regexp_substr", (_T, _T, _I, _I, _T), _T)(_regexp_substr)
    define("regexp_instr", (_T, _T), _I)(_regexp_instr)
    define("regexp_instr", (_T, _T, _I), _I)(_regexp_instr)
    define("regexp_instr", (_T, _T, _I, _I), _I)(_regexp_instr)


_add_patterns()
_add_regular_expressions()
