"""Bracket expressions: `[a-z[:digit:]]`."""

from __future__ import annotations

from collections.abc import Iterable

from derive.functions.regex.characters import CLASSES, CharacterClass
from derive.functions.regex.escapes import escape_at
from derive.functions.regex.fault import invalid, unsupported


class Bracket:
    """A bracket expression, from `[` to `]`.

    Attributes:
        is_negated: whether the expression matches all other characters.
        ranges: pairs of first and last code point.
        classes: whole classes.
        end: position after the expression.
    """

    def __init__(self, text: str, begin: int, *, takes_escapes: bool) -> None:
        self._text = text
        self._takes_escapes = takes_escapes
        self.end = begin + 1
        self.is_negated = self._accept("^")
        self.ranges: list[tuple[int, int]] = []
        self.classes: list[CharacterClass] = []

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self.end):
            self.end += len(text)
            return True
        return False

    def read(self) -> None:
        """Read the expression up to its end.

        Raises:
            SqlError: 2201B, the expression is invalid.
        """
        begin = self.end
        while True:
            if self.end >= len(self._text):
                raise invalid("brackets [] not balanced")
            if self.end > begin and self._accept("]"):
                return
            is_first = self.end == begin
            if self._text[self.end] == "-" and not is_first and self._text[self.end + 1 : self.end + 2] != "]":
                raise invalid("invalid character range")
            first = self._element()
            if not self._is_range():
                if isinstance(first, CharacterClass):
                    self.classes.append(first)
                else:
                    self.ranges.append((ord(first), ord(first)))
                continue
            self.end += 1
            last = self._element()
            if isinstance(first, CharacterClass) or isinstance(last, CharacterClass) or first > last:
                raise invalid("invalid character range")
            self.ranges.append((ord(first), ord(last)))

    def _is_range(self) -> bool:
        return self._text[self.end : self.end + 1] == "-" and self._text[self.end + 1 : self.end + 2] != "]"

    def _element(self) -> str | CharacterClass:
        if self.end >= len(self._text):
            raise invalid("brackets [] not balanced")
        letter = self._text[self.end]
        if letter == "\\" and self._takes_escapes:
            escape, self.end = escape_at(self._text, self.end, 0)
            if isinstance(escape, str | CharacterClass):
                return escape
            raise invalid("invalid escape \\ sequence")
        for sign, close in (("[:", ":]"), ("[.", ".]"), ("[=", "=]")):
            if self._accept(sign):
                return self._named(sign, close)
        self.end += 1
        return letter

    def _named(self, sign: str, close: str) -> str | CharacterClass:
        begin = self.end
        self.end = self._text.find(close, begin)
        if self.end < 0:
            raise invalid("brackets [] not balanced")
        name = self._text[begin : self.end]
        self.end += len(close)
        if sign == "[:":
            if name not in CLASSES:
                raise invalid("invalid character class")
            return CharacterClass(name)
        if len(name) == 1:
            return name
        if name.isalnum() and name.isascii():
            raise unsupported(f'the collating element "{name}" is not supported', "Write the character itself.")
        raise invalid("invalid collating element")

    def classes_for(self, *, ignores_case: bool) -> Iterable[CharacterClass]:
        """Return the classes; if case does not matter, the class of all letters instead of `upper` and `lower`."""
        for part in self.classes:
            yield CharacterClass("alpha") if ignores_case and part.name in {"upper", "lower"} else part
