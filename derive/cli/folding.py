"""Lines that end between words at the width of a terminal.

A name in two lines cannot be copied, and a number in two lines is misread, so a name and a number stay whole. A word
that does not fit beside its indentation begins further to the left, and a word that is longer than a line has a line of
its own. A document in JSON may also end a line after a comma. A command continues after a backslash, as a shell wants
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import combining, east_asian_width

_WORD = re.compile(r"(\s*)(\S+)")
ARGUMENT = re.compile(r"""(\s*)((?:'[^']*'|"[^"]*"|\S)+)""")
"""Finds arguments of a command and words of SQL: a quoted text stays whole."""
_AFTER_COMMA = re.compile(r'(?<=,)(?=["{\[])')
_PROGRAM = "flowctl "


def cells(text: str) -> int:
    """Return the width of a text in columns of a terminal: wide characters need two, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def folded(text: str, width: int, first: str = "", rest: str = "", *, words: re.Pattern[str] = _WORD) -> list[str]:
    r"""Return lines that end between words.

    >>> folded("no row of shop/orders-of-the-north", 24, "  = ", "    ")
    ['  = no row of', 'shop/orders-of-the-north']

    Args:
        text: the text of one line.
        width: the width of the lines, in columns of a terminal.
        first: the beginning of the first line.
        rest: the indentation of the other lines.
        words: finds the words, each after the blanks before it.
    """
    lines: list[str] = []
    line, has_words = first, False
    for blank, word in _parts(text, width - cells(rest), words):
        if has_words and cells(line + blank + word) > width:
            lines.append(line)
            line, has_words = rest, False
        if not has_words and cells(line + word) > width:
            lines += [line.rstrip()] if line.strip() else []
            line = " " * max(0, min(cells(rest), width - cells(word)))
        line += blank + word if has_words else word
        has_words = True
    return [*lines, line] if line.strip() else lines


def _parts(text: str, room: int, words: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield words, each with the blanks before it; a document that is wider than the room is several words."""
    for blank, word in words.findall(text):
        first, *others = [word] if cells(word) <= room else _AFTER_COMMA.split(word)
        yield blank, first
        yield from (("", part) for part in others)


def folded_command(command: str, width: int, indent: str) -> list[str]:
    r"""Return the lines of a command of a shell.

    >>> print("\n".join(folded_command("flowctl reset --task shop/spending --cascade", 30, "  ")))
      flowctl reset --task \
        shop/spending --cascade
    """
    if cells(indent + command) <= width:
        return [indent + command]
    *lines, last = folded(command, width - 2, indent, indent + "  ", words=ARGUMENT)
    return [*(f"{line} \\" for line in lines), last]


def folded_hint(hint: str, width: int, first: str, rest: str) -> list[str]:
    """Return the lines of a hint, which may end with a command after a colon."""
    if cells(first + hint) <= width:
        return [first + hint]
    prose, colon, command = hint.partition(f": {_PROGRAM}")
    if not colon:
        return folded(hint, width, first, rest)
    return [*folded(f"{prose}:", width, first, rest), *folded_command(_PROGRAM + command, width, rest)]
