"""From a place in the copy of the module that Deno runs to the place in the author's file."""

from __future__ import annotations

import re

from derive.position import Position, Script

_PLACE = re.compile(r"/module\.ts:(\d+):(\d+)")
_URL = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/module\.ts(?::(\d+):(\d+))?")
_NEIGHBOUR = re.compile(r"(?:file://)?/[^\s'\"()]*/flowctl-deno-[^/\s]+/")
_HARNESS_LINE = re.compile(r"\s+at .*(?:/flowctl-deno-[^/\s]+/(?!module\.ts)|\bext:)")


def position_in(module: Script, text: str, length: int = 0) -> Position | None:
    """The author's place that a message or stack of Deno's names first, if it names one."""
    found = _PLACE.search(text)
    return located(module, int(found[1]), int(found[2]), length) if found else None


def located(module: Script, line: int, column: int, length: int = 0) -> Position:
    """The author's place of a line and column of the module's text, both from 1."""
    before = module.text.split("\n")[: line - 1]
    return module.locate(sum(len(each) + 1 for each in before) + column - 1, length)


def member_position(module: Script, name: str) -> Position:
    """Where a class member of this name is probably written; the module's beginning if nowhere."""
    found = re.search(rf"(?<![\w.]){re.escape(name)}(?=\s*[(=])", module.text)
    return module.locate(found.start(), len(name)) if found else module.position


def authored(module: Script, text: str) -> str:
    """A message of Deno's with the author's file and places, and without the harness's lines of a stack."""

    def replaced(found: re.Match[str]) -> str:
        return str(located(module, int(found[1]), int(found[2]))) if found[1] else module.position.file

    lines = [line for line in text.split("\n") if not _HARNESS_LINE.match(line)]
    return _NEIGHBOUR.sub("./", _URL.sub(replaced, "\n".join(lines)))
