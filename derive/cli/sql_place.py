"""Where in a text of SQL something is wrong, for people: its line, and the word that is to be underlined."""

from __future__ import annotations

import re

from derive.position import Position

_NAME = r'(?:"(?:[^"]|"")*"|\w+)'
_TOKEN = re.compile(rf"{_NAME}(?:\.{_NAME})*|'(?:[^']|'')*'?|[^\w\s]")


def place_in(name: str, text: str, offset: int) -> Position:
    """The place of a character of statements.

    Args:
        name: of the file they are in, or of what else they come from.
        text: the statements.
        offset: of the character, from 0 on; that behind the last one is the end.
    """
    offset = min(offset, len(text.rstrip()))
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[begin : len(text) if end < 0 else end]
    token = _TOKEN.match(line, offset - begin)
    length = len(token.group()) if token else 1
    return Position(name, text.count("\n", 0, begin) + 1, offset - begin + 1, length, line.rstrip())
