"""The position of an error in SQL text, for people: its line, and the word to underline."""

from __future__ import annotations

import re

from derive.position import Position

_NAME = r'(?:"(?:[^"]|"")*"|\w+)'
_TOKEN = re.compile(rf"{_NAME}(?:\.{_NAME})*|'(?:[^']|'')*'?|[^\w\s]")


def place_in(name: str, text: str, offset: int) -> Position:
    """Return the position of a character in statements.

    Args:
        name: name of the file or other source of the statements.
        text: the statements.
        offset: index of the character, from 0; the length of the text stands for its end.
    """
    offset = min(offset, len(text.rstrip()))
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[begin : len(text) if end < 0 else end]
    token = _TOKEN.match(line, offset - begin)
    length = len(token.group()) if token else 1
    return Position(name, text.count("\n", 0, begin) + 1, offset - begin + 1, length, line.rstrip())
