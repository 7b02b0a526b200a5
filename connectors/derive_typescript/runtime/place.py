"""Translating positions in the copy of the module that Deno runs to positions in the author's file."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urljoin

from derive.position import Position, Script

AUTHOR = "author/" + 8 * "up/"
"""Folder of the author's module in the project; the parts above leave room for imports from parent folders."""

MODULE = "module.ts"
"""The module's name in this folder."""

_URL = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/(author/[^\s'\":()]+)(?::(\d+):(\d+))?")
_NEIGHBOUR = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/")
_HARNESS_LINE = re.compile(r"\s+at .*(?:/flowctl-deno-[^/\s]+/(?!author/)|\bext:)")


def position_in(module: Script, text: str, length: int = 0) -> Position | None:
    """Return the author's position that a message or stack of Deno names first; None without one."""
    for written in _URL.finditer(text):
        if written[2]:
            return place_in(module, written[1], int(written[2]), int(written[3]), length)
    return None


def place_in(module: Script, path: str, line: int, column: int, length: int = 0) -> Position:
    """Return the position in one of the author's files; `path` is its path in the project."""
    if path == AUTHOR + MODULE:
        return located(module, line, column, length)
    return Position(_shown(module, path), line, column, length)


def _shown(module: Script, path: str) -> str:
    """Return the author's path of a file in the project."""
    if path == AUTHOR + MODULE:
        return module.position.file
    beside = posixpath.relpath(path, AUTHOR)
    if "://" in module.position.file:
        return urljoin(module.position.file, beside)
    return posixpath.normpath(posixpath.join(posixpath.dirname(module.position.file), beside))


def located(module: Script, line: int, column: int, length: int = 0) -> Position:
    """Return the author's position of a line and column of the module's text, both from 1."""
    before = module.text.split("\n")[: line - 1]
    return module.locate(sum(len(text) + 1 for text in before) + column - 1, length)


def member_position(module: Script, name: str) -> Position:
    """Return the probable position of a class member with this name; the module's beginning if it is not found."""
    member = re.search(rf"(?<![\w.]){re.escape(name)}(?=\s*[(=])", module.text)
    return module.locate(member.start(), len(name)) if member else module.position


def authored(module: Script, text: str) -> str:
    """Return a message of Deno with the author's files and positions, without stack lines of the harness."""

    def replaced(written: re.Match[str]) -> str:
        if written[2]:
            return str(place_in(module, written[1], int(written[2]), int(written[3])))
        return _shown(module, written[1])

    lines = [line for line in text.split("\n") if not _HARNESS_LINE.match(line)]
    return _NEIGHBOUR.sub("./", _URL.sub(replaced, "\n".join(lines)))
