"""The tree of a regular expression, its sets of characters, and its preference of long or short matches."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from derive.errors import SqlError
from derive.functions.types.letter_case import lower_letter, upper_letter


def invalid(what: str) -> SqlError:
    """Return the error of an invalid expression."""
    return SqlError("2201B", f"invalid regular expression: {what}")


def unsupported(what: str, hint: str) -> SqlError:
    """Return the error of an expression that PostgreSQL supports and this runtime does not."""
    return SqlError("0A000", what, hint=hint)


_MOST_SPREAD = 1000
"""Maximum number of letters in a range that is expanded to upper and lower case letter by letter."""


def _is_alphabetic(character: str) -> bool:
    return character.isalpha() or character.isupper() or character.islower() or unicodedata.category(character) == "Nl"


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def is_word(character: str) -> bool:
    """Return whether a character is part of words: a letter, a digit, or `_`."""
    return character == "_" or _is_digit(character) or _is_alphabetic(character)


def _is_space(character: str) -> bool:
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def _is_blank(character: str) -> bool:
    return character == "\t" or unicodedata.category(character) == "Zs"


def _is_graphic(character: str) -> bool:
    return not _is_space(character) and unicodedata.category(character) not in {"Cc", "Cs", "Cn"}


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


CLASSES: Mapping[str, Callable[[str], bool]] = {
    "alpha": _is_alphabetic,
    "alnum": lambda character: _is_digit(character) or _is_alphabetic(character),
    "ascii": str.isascii,
    "blank": _is_blank,
    "cntrl": _is_control,
    "digit": _is_digit,
    "graph": _is_graphic,
    "lower": str.islower,
    "print": lambda character: (_is_graphic(character) or _is_blank(character)) and not _is_control(character),
    "punct": lambda character: unicodedata.category(character)[0] in "PS" and not _is_alphabetic(character),
    "space": _is_space,
    "upper": str.isupper,
    "word": is_word,
    "xdigit": lambda character: character in "0123456789abcdefABCDEF",
}
"""Classes of characters by name, as in PostgreSQL's locale C.UTF-8."""
_OF_WORDS = {"alpha", "alnum", "digit", "lower", "upper", "word", "xdigit"}


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """A class of characters, or its complement."""

    name: str
    is_complement: bool = False

    def __contains__(self, character: str) -> bool:
        return CLASSES[self.name](character) != self.is_complement


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """A set of characters, one of which matches.

    Attributes:
        ranges: pairs of first and last code point.
        classes: whole classes.
        is_negated: whether all other characters match instead.
        stops: whether a newline never matches.
        ignores_case: whether the upper and lower case of each character match, too.
        is_of_words: whether only word characters of the set match.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    classes: tuple[CharacterClass, ...] = ()
    is_negated: bool = False
    stops: bool = False
    ignores_case: bool = False
    is_of_words: bool = False

    @staticmethod
    def of(character: str, *, ignores_case: bool = False) -> CharacterSet:
        """Return the set of one character."""
        if not ignores_case:
            return CharacterSet(((ord(character), ord(character)),))
        return CharacterSet(tuple((ord(case), ord(case)) for case in _cases(character)))

    def __contains__(self, character: str) -> bool:
        if (self.stops and character == "\n") or (self.is_of_words and not is_word(character)):
            return False
        return self._is_listed(character) != self.is_negated

    def _is_listed(self, character: str) -> bool:
        code = ord(character)
        if any(begin <= code <= end for begin, end in self.ranges) or any(character in part for part in self.classes):
            return True
        if not self.ignores_case:
            return False
        others = (lower_letter(character), upper_letter(character))
        if any(
            begin <= ord(other) <= end and character in _cases(other) for other in others for begin, end in self.ranges
        ):
            return True
        return any(
            code in map(ord, _cases(chr(listed)))
            for begin, end in self.ranges
            if end - begin < _MOST_SPREAD and not (begin < 128 and end < 128 and code < 128)
            for listed in range(begin, end + 1)
            if not 0xD800 <= listed <= 0xDFFF
        )

    def has_only_words(self) -> bool:
        """Return whether the set certainly contains only word characters."""
        if self.is_of_words:
            return True
        if self.is_negated or any(part.is_complement or part.name not in _OF_WORDS for part in self.classes):
            return False
        return all(
            end - begin < _MOST_SPREAD and all(is_word(chr(code)) for code in range(begin, end + 1))
            for begin, end in self.ranges
        )

    def has_no_words(self) -> bool:
        """Return whether the set certainly contains no word character."""
        if self.is_negated:
            return any(part == CharacterClass("word") for part in self.classes)
        if any(part.name not in {"space", "blank", "cntrl", "punct"} or part.is_complement for part in self.classes):
            return all(part == CharacterClass("word", True) for part in self.classes) and not self.ranges
        return all(
            end - begin < _MOST_SPREAD and not any(is_word(chr(code)) for code in range(begin, end + 1))
            for begin, end in self.ranges
        )


def _cases(character: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((character, lower_letter(character), upper_letter(character))))


class Constraint(Enum):
    """A condition between two characters."""

    START = r"\A"
    END = r"\z"
    LINE_START = "(?m:^)"
    LINE_END = "(?m:$)"
    BOUNDARY = r"\b"
    NO_BOUNDARY = r"\B"
    WORD_START = r"\m"
    WORD_END = r"\M"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A capturing group."""

    index: int
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """Parts one after the other; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    """One of two or more parts."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """A repeated part.

    Attributes:
        body: repeated part.
        least: minimum number of iterations.
        most: maximum number of iterations; None for any number.
        is_greedy: whether many iterations are preferred; None if the number is given.
    """

    body: Node
    least: int
    most: int | None
    is_greedy: bool | None


Node: TypeAlias = CharacterSet | Constraint | Group | Concatenation | Alternation | Repetition


def preference(node: Node) -> bool | None:
    """Return whether a part prefers a long match to a short one; None if the part has no preference."""
    match node:
        case Group(body=body):
            return preference(body)
        case Repetition(body=body, is_greedy=is_greedy):
            return preference(body) if is_greedy is None else is_greedy
        case Alternation():
            return True
        case Concatenation(parts=parts):
            return next((preferred for part in parts if (preferred := preference(part)) is not None), None)
    return None


def is_mixed(node: Node) -> bool:
    """Return whether a part prefers long matches in one place, and short matches in another."""
    preferred = {part.is_greedy for part in parts_of(node) if isinstance(part, Repetition)}
    preferred |= {True for part in parts_of(node) if isinstance(part, Alternation)}
    return {True, False} <= preferred


def parts_of(node: Node) -> list[Node]:
    """Return all parts of a tree, its root included."""
    match node:
        case Group(body=body) | Repetition(body=body):
            return [node, *parts_of(body)]
        case Concatenation(parts=parts) | Alternation(branches=parts):
            return [node, *(inner for part in parts for inner in parts_of(part))]
    return [node]


def has_group(node: Node) -> bool:
    """Return whether a part contains a capturing group."""
    return any(isinstance(part, Group) for part in parts_of(node))


def length_of(node: Node) -> int | None:
    """Return the length of all matches in characters; None if lengths differ."""
    match node:
        case CharacterSet():
            return 1
        case Group(body=body):
            return length_of(body)
        case Repetition(body=body, least=least, most=most):
            length = 0 if most == 0 else length_of(body)
            return least * length if length is not None and (least == most or not length) else None
        case Concatenation(parts=parts):
            lengths = [length_of(part) for part in parts]
            return None if None in lengths else sum(length for length in lengths if length is not None)
        case Alternation(branches=branches):
            lengths = list({length_of(branch) for branch in branches})
            return lengths[0] if len(lengths) == 1 else None
    return 0


def has_ordered_lengths(node: Node) -> bool:
    """Return whether matches of a part differ only in the number of iterations of one of its parts.

    Parts of no length are ignored.
    """
    if length_of(node) is not None:
        return True
    match node:
        case Group(body=body):
            return has_ordered_lengths(body)
        case Repetition(body=body, least=least, most=most):
            return length_of(body) is not None or (least == most == 1 and has_ordered_lengths(body))
        case Concatenation(parts=parts):
            varying = [part for part in parts if length_of(part) is None]
            return len(varying) == 1 and has_ordered_lengths(varying[0])
    return False
