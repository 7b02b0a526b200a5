"""Sets of characters: the meaning of a letter, a class or a bracket expression of a regular expression."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
