"""Pattern matching: LIKE, SIMILAR TO, and the functions and operators of regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions, SqlForm, are_short, registered_name
from derive.functions.regex.expression import RegularExpression, Span, Subject, regular_expression
from derive.functions.regex.parser import LONGEST_EXPRESSION, Parsed
from derive.functions.regex.tree import CharacterSet, Concatenation, Constraint, Repetition
from derive.functions.scalar.text import LONGEST, checked_length
from derive.functions.types.array_literal import literal_of_texts
from derive.functions.types.letter_case import lower

FUNCTIONS = Functions()

_T, _I, _B = Type.TEXT, Type.INTEGER, Type.BOOLEAN
_TS = Type.TEXT_ARRAY


def _searching(flags: str) -> Callable[[str, str], bool]:
    return lambda text, expression: regular_expression(expression, flags).is_in(text)


def _negated(matches: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    return lambda text, pattern: not matches(text, pattern)


class _Replacement:
    r"""A replacement of matches: `\1` to `\9` are the texts of groups, `\&` is the whole match, `\\` is `\`."""

    def __init__(self, replacement: str) -> None:
        self._pieces: list[str | int] = []
        end = 0
        for directive in re.finditer(r"\\(.)", replacement, re.DOTALL):
            letter = directive[1]
            self._pieces.append(replacement[end : directive.start()])
            end = directive.end()
            if letter == "&" or letter in "123456789":
                self._pieces.append(0 if letter == "&" else int(letter))
            else:
                self._pieces.append("\\" if letter == "\\" else directive[0])
        self._pieces.append(replacement[end:])
        self._needs_parts = any(isinstance(piece, int) and piece > 0 for piece in self._pieces)

    def of(self, expression: RegularExpression, subject: Subject, span: Span) -> str:
        """Return the replacement of one match."""
        spans = expression.parts(subject, span) if self._needs_parts else [span]
        texts: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                texts.append(piece)
            elif piece < len(spans) and (part := spans[piece]) is not None:
                texts.append(subject.text[slice(*part)])
        return "".join(texts)


def _replaced(text: str, expression: RegularExpression, replacement: str, begin: int, which: int) -> str:
    """Replace matches in a text.

    Args:
        text: searched text.
        expression: expression to match.
        replacement: replacement of each match.
        begin: position of the first search.
        which: number of the replaced match, counted from 1; 0 for all.

    Raises:
        SqlError: the result is too long (54000).
    """
    subject = expression.subject(text)
    put = _Replacement(replacement)
    pieces: list[str] = []
    end = length = 0
    spans = expression.searches(subject, begin)
    for span in spans if not which else islice(spans, which - 1, which):
        pieces += (text[end : span[0]], put.of(expression, subject, span))
        end = span[1]
        length += len(pieces[-2]) + len(pieces[-1])
        if length > LONGEST:
            checked_length(length)
    return "".join((*pieces, text[end:]))


def _regexp_replace(text: str, expression: str, replacement: str, flags: str = "") -> str:
    if flags[:1].isdigit():
        raise SqlError(
            "22023",
            f'invalid regular expression option: "{flags[0]}"',
            hint="If you meant to use regexp_replace() with a start parameter, cast the fourth argument to integer"
            " explicitly.",
        )
    return _replaced(text, regular_expression(expression, flags), replacement, 0, 0 if "g" in flags else 1)


def _regexp_replace_from(
    text: str, expression: str, replacement: str, begin: int, which: int | None = None, flags: str = ""
) -> str:
    begin = _begun(begin)
    if which is not None and which < 0:
        raise _bad_value("n", which)
    compiled = regular_expression(expression, flags)
    return _replaced(text, compiled, replacement, begin, (0 if "g" in flags else 1) if which is None else which)


def matching_part(text: str, expression: str) -> str | None:
    """Return the matching part of a text; for an expression with groups, the text of the first group."""
    compiled = regular_expression(expression)
    subject = compiled.subject(text)
    span = compiled.search(subject)
    return None if span is None else _text_of(subject, compiled, span, min(1, compiled.groups))


def _text_of(subject: Subject, expression: RegularExpression, span: Span, group: int) -> str | None:
    part = expression.parts(subject, span)[group] if group else span
    return None if part is None else subject.text[slice(*part)]


def _no_global(flags: str, function: str, hint: str | None = None) -> str:
    if "g" in flags:
        raise SqlError("22023", f'{function}() does not support the "global" option', hint=hint)
    return flags


def _bad_value(name: str, value: int) -> SqlError:
    return SqlError("22023", f'invalid value for parameter "{name}": {value}')


def _begun(begin: int) -> int:
    if begin <= 0:
        raise _bad_value("start", begin)
    return begin - 1


def _regexp_count(text: str, expression: str, begin: int = 1, flags: str = "") -> int:
    begin = _begun(begin)
    compiled = regular_expression(expression, _no_global(flags, "regexp_count"))
    return sum(1 for _ in compiled.searches(compiled.subject(text), begin))


def _regexp_like(text: str, expression: str, flags: str = "") -> bool:
    return regular_expression(expression, _no_global(flags, "regexp_like")).is_in(text)


def _nth_span(
    text: str, expression: RegularExpression, begin: int, which: int, group: int
) -> tuple[Subject, Span | None]:
    """Return the span of a match's group: group 0 is the whole match, and so is 1 in an expression without groups."""
    subject = expression.subject(text)
    if group > max(1, expression.groups):
        return subject, None
    span = next(islice(expression.searches(subject, begin), which - 1, None), None)
    return subject, expression.parts(subject, span)[min(group, expression.groups)] if span is not None else None


def _regexp_substr(
    text: str, expression: str, begin: int = 1, which: int = 1, flags: str = "", group: int = 0
) -> str | None:
    begin = _begun(begin)
    if which <= 0:
        raise _bad_value("n", which)
    if group < 0:
        raise _bad_value("subexpr", group)
    compiled = regular_expression(expression, _no_global(flags, "regexp_substr"))
    subject, span = _nth_span(text, compiled, begin, which, group)
    return None if span is None else subject.text[slice(*span)]


def _regexp_instr(
    text: str, expression: str, begin: int = 1, which: int = 1, end: int = 0, flags: str = "", group: int = 0
) -> int:
    begin = _begun(begin)
    if which <= 0:
        raise _bad_value("n", which)
    if end not in {0, 1}:
        raise _bad_value("endoption", end)
    if group < 0:
        raise _bad_value("subexpr", group)
    compiled = regular_expression(expression, _no_global(flags, "regexp_instr"))
    _, span = _nth_span(text, compiled, begin, which, group)
    return 0 if span is None else span[end] + 1


def _texts_of(subject: Subject, expression: RegularExpression, span: Span) -> tuple[str | None, ...]:
    """Return the texts of a match's groups; the whole match if there are no groups."""
    parts = expression.parts(subject, span)
    return tuple(part and subject.text[slice(*part)] for part in (parts[1:] or parts))


def _regexp_match(text: str, expression: str, flags: str = "") -> tuple[str | None, ...] | None:
    compiled = regular_expression(
        expression, _no_global(flags, "regexp_match", "Use the regexp_matches function instead.")
    )
    subject = compiled.subject(text)
    span = compiled.search(subject)
    return None if span is None else _texts_of(subject, compiled, span)


def _regexp_matches(text: str, expression: str, flags: str = "") -> tuple[str, ...]:
    """Return an array for each match, as text: an array cannot contain arrays."""
    compiled = regular_expression(expression, flags)
    subject = compiled.subject(text)
    spans = islice(compiled.searches(subject), None if "g" in flags else 1)
    return tuple(literal_of_texts(_texts_of(subject, compiled, span)) for span in spans)


def _splitting(function: str) -> Callable[..., tuple[str, ...]]:
    def split(text: str, expression: str, flags: str = "") -> tuple[str, ...]:
        compiled = regular_expression(expression, _no_global(flags, function))
        pieces: list[str] = []
        begin = matched = 0
        for first, last in compiled.searches(compiled.subject(text)):
            # An empty match splits neither at an end of the text nor directly after another match.
            if first < len(text) and last > matched:
                pieces.append(text[begin:first])
                begin = last
            matched = last
        return (*pieces, text[begin:])

    return split


def _add_arrays() -> None:
    for symbol, function in (
        ("regexp_match", _regexp_match),
        ("regexp_matches[]", _regexp_matches),
        ("regexp_split_to_array", _splitting("regexp_split_to_array")),
        ("regexp_split_to_table[]", _splitting("regexp_split_to_table")),
    ):
        for flags in ((), (_T,)):
            FUNCTIONS.define(symbol, (_T, _T, *flags), _TS, word=symbol.removesuffix("[]"))(function)


def _add_operators() -> None:
    for symbol, word, flags in (("~", "matches", ""), ("~*", "matches_any_case", "i")):
        FUNCTIONS.define(symbol, (_T, _T), _B, word=word)(_searching(flags))
        FUNCTIONS.define(f"!{symbol}", (_T, _T), _B, word=f"not_{word}")(_negated(_searching(flags)))


def _add_functions() -> None:
    for symbol, function, most, result in (
        ("regexp_like", _regexp_like, (_T, _T, _T), _B),
        ("regexp_count", _regexp_count, (_T, _T, _I, _T), _I),
        ("regexp_substr", _regexp_substr, (_T, _T, _I, _I, _T, _I), _T),
        ("regexp_instr", _regexp_instr, (_T, _T, _I, _I, _I, _T, _I), _I),
    ):
        for count in range(2, len(most) + 1):
            FUNCTIONS.define(symbol, most[:count], result)(function)
    for flags in ((), (_T,)):
        FUNCTIONS.define("regexp_replace", (_T, _T, _T, *flags), _T)(_regexp_replace)
    for more in ((_I,), (_I, _I), (_I, _I, _T)):
        FUNCTIONS.define("regexp_replace", (_T, _T, _T, *more), _T)(_regexp_replace_from)
    FUNCTIONS.define("substring", (_T, _T), _T)(matching_part)


class LikePattern:
    r"""A pattern of LIKE: `%` matches any text, `_` any character, `\` escapes the next character.

    Texts between `%` are searched one after the other, each at its earliest position. A pattern with `_` is matched by
    RE2.

    Raises:
        SqlError: 22025, the pattern ends with `\`; 54001, the pattern is too long.
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
        SqlError: the pattern is too long (54001).
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
_add_operators()
_add_functions()
_add_arrays()
