"""From a place in the copy of the module that Deno runs to the place in the author's file."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urljoin

from derive.position import Position, Script

AUTHOR = "author/" + 8 * "up/"
"""Folder of the author's module in the folder that Deno runs in; what it imports from above has room above it."""

MODULE = "module.ts"
"""The module's name there."""

_URL = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/(author/[^\s'\":()]+)(?::(\d+):(\d+))?")
_NEIGHBOUR = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/")
_HARNESS_LINE = re.compile(r"\s+at .*(?:/flowctl-deno-[^/\s]+/(?!author/)|\bext:)")


def position_in(module: Script, text: str, length: int = 0) -> Position | None:
    """The author's place that a message or stack of Deno's names first, if it names one."""
    for written in _URL.finditer(text):
        if written[2]:
            return place_in(module, written[1], int(written[2]), int(written[3]), length)
    return None


def place_in(module: Script, path: str, line: int, column: int, length: int = 0) -> Position:
    """The place in one of the author's files, of which `path` is where it is in the project."""
    if path == AUTHOR + MODULE:
        return located(module, line, column, length)
    return Position(_shown(module, path), line, column, length)


def _shown(module: Script, path: str) -> str:
    """How a person writes the path of a file in the folder that Deno runs in."""
    if path == AUTHOR + MODULE:
        return module.position.file
    beside = posixpath.relpath(path, AUTHOR)
    if "://" in module.position.file:
        return urljoin(module.position.file, beside)
    return posixpath.normpath(posixpath.join(posixpath.dirname(module.position.file), beside))


def located(module: Script, line: int, column: int, length: int = 0) -> Position:
    """The author's place of a line and column of the module's text, both from 1."""
    before = module.text.split("\n")[: line - 1]
    return module.locate(sum(len(text) + 1 for text in before) + column - 1, length)


def member_position(module: Script, name: str) -> Position:
    """Where a class member of this name is probably written; the module's beginning if nowhere."""
    member = re.search(rf"(?<![\w.]){re.escape(name)}(?=\s*[(=])", module.text)
    return module.locate(member.start(), len(name)) if member else module.position


def authored(module: Script, text: str) -> str:
    """A message of Deno's with the author's file and places, and without the harness's lines of a stack."""

    def replaced(written: re.Match[str]) -> str:
        if written[2]:
            return str(place_in(module, written[1], int(written[2]), int(written[3])))
        return _shown(module, written[1])

    lines = [line for line in text.split("\n") if not _HARNESS_LINE.match(line)]
    return _NEIGHBOUR.sub("./", _URL.sub(replaced, "\n".join(lines)))
