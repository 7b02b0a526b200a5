r"""Escapes of regular expressions: a backslash and the letters after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from derive.functions.regex.characters import CharacterClass
from derive.functions.regex.fault import invalid
from derive.functions.regex.tree import Constraint


@dataclass(frozen=True, slots=True)
class Escape:
    """A reference to the text of a group."""

    reference: int


Escaped: TypeAlias = str | CharacterClass | Constraint | Escape

_PLAIN: Mapping[str, Escaped] = {
    "a": "\a",
    "b": "\b",
    "B": "\\",
    "e": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "d": CharacterClass("digit"),
    "D": CharacterClass("digit", True),
    "s": CharacterClass("space"),
    "S": CharacterClass("space", True),
    "w": CharacterClass("word"),
    "W": CharacterClass("word", True),
    "A": Constraint.START,
    "Z": Constraint.END,
    "m": Constraint.WORD_START,
    "M": Constraint.WORD_END,
    "y": Constraint.BOUNDARY,
    "Y": Constraint.NO_BOUNDARY,
}
_HEXADECIMAL = {"u": (4, 4), "U": (8, 8), "x": (1, 255)}


def escape_at(text: str, at: int, groups: int) -> tuple[Escaped, int]:
    """Return the meaning of an escape, and the position after it.

    Args:
        text: text of the expression.
        at: position of the backslash.
        groups: number of groups that begin before it.

    Raises:
        SqlError: 2201B, the escape is unknown.
    """
    if at + 1 >= len(text):
        raise _no_escape()
    letter, at = text[at + 1], at + 2
    if not letter.isalnum():
        return letter, at
    if letter in _PLAIN:
        return _PLAIN[letter], at
    if letter == "c" and at < len(text):
        return chr(ord(text[at]) & 0o37), at + 1
    if letter in _HEXADECIMAL:
        least, most = _HEXADECIMAL[letter]
        code, at = _number(text, at, 16, least, most)
        return _character(code), at
    if letter in "123456789":
        number, end = _number(text, at - 1, 10, 1, 255)
        if end == at or 0 < number <= groups:
            return Escape(number), end
    if letter in "01234567":
        code, end = _number(text, at - 1, 8, 1, 3)
        return (_character(code), end) if code <= 0xFF else (_character(code >> 3), end - 1)
    raise _no_escape()


def _number(text: str, at: int, base: int, least: int, most: int) -> tuple[int, int]:
    digits = "0123456789abcdef"[:base]
    end = at
    while end < len(text) and end - at < most and text[end].lower() in digits:
        end += 1
    if end - at < least:
        raise _no_escape()
    return int(text[at:end], base), end


def _character(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _no_escape()
    return chr(code)


def _no_escape() -> Exception:
    return invalid("invalid escape \\ sequence")
