"""Errors as text: code, message, position, the source line with the fault underlined, and a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

from derive.errors import CatalogError, FlowError, Issue, SqlError, ViewError
from derive.position import Position
from derive.protocol.secrets import hide_in_line

_CONFIGURATIONS = (".yaml", ".yml", ".json")
"""Suffixes of files that may contain passwords."""

_BEFORE, _BEHIND = 80, 120
"""Characters of a long line shown before and after the column."""


def render_error(error: FlowError) -> str:
    """Return an error as lines of text."""
    if isinstance(error, CatalogError):
        count = len(error.issues)
        issues = [_render(f"error[{issue.code}]", issue.message, issue.position, issue.hint) for issue in error.issues]
        return "\n\n".join([*issues, f"{count} error{'' if count == 1 else 's'}"])
    if isinstance(error, ViewError):
        return _render(f"error[{error.sqlstate}]", error.message, None, error.remedy)
    if isinstance(error, SqlError):
        lines = _render(f"error[{error.sqlstate}]", error.message, error.position, error.hint)
        return f"{lines}\n  = {error.detail}" if error.detail else lines
    return _render("error", error.message, error.position, error.hint)


def describe_error(error: FlowError) -> list[dict[str, Any]]:
    """Return an error as JSON objects, one for each issue of a catalog; unknown properties are null."""
    if isinstance(error, CatalogError):
        return [{"code": issue.code, **_describe(issue.message, issue.position, issue.hint)} for issue in error.issues]
    if isinstance(error, ViewError):
        return [{"code": error.sqlstate, **_describe(error.message, None, error.remedy)}]
    if isinstance(error, SqlError):
        described = _describe(error.message, error.position, error.hint)
        return [{"code": error.sqlstate, **described, "detail": error.detail}]
    return [_describe(error.message, error.position, error.hint)]


def _describe(message: str, position: Position | None, hint: str | None) -> dict[str, Any]:
    return {
        "message": message,
        "file": position.file if position else None,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "length": position.length if position else None,
        "hint": hint,
    }


def render_issue(issue: Issue) -> str:
    """Return an issue of a catalog as lines of text."""
    return _render(f"error[{issue.code}]", issue.message, issue.position, issue.hint)


def _render(label: str, message: str, position: Position | None, hint: str | None) -> str:
    lines = [f"{label}: {message}"]
    if position is not None:
        lines.append(f"  --> {position}")
        line = _line(position)
        if line is not None:
            text, column = _window(line, position.column)
            number = str(position.line)
            room = max(1, min(position.length, len(text) - column + 1))
            lines.append(f"{number} | {text}")
            note = f" {hint}" if hint else ""
            indent = "".join(map(_blank, text[: column - 1])) + " " * (column - 1 - len(text))
            lines.append(f"{' ' * len(number)} | {indent}{'^' * room}{note}")
            return "\n".join(lines)
    if hint:
        lines.append(f"  = {hint}")
    return "\n".join(lines)


def _blank(character: str) -> str:
    """Return blanks as wide as a character, so that carets stand below the marked text; a tab stays a tab."""
    if character == "\t":
        return character
    return "" if combining(character) else "  " if east_asian_width(character) in "WF" else " "


def _window(line: str, column: int) -> tuple[str, int]:
    """Return the part of a line around a column, and the column's number in that part."""
    if len(line) <= _BEFORE + _BEHIND:
        return line, column
    begin, end = max(0, column - _BEFORE), column + _BEHIND
    before = "…" if begin else ""
    return f"{before}{line[begin:end]}{'…' if end < len(line) else ''}", column - begin + len(before)


def _line(position: Position) -> str | None:
    if position.text is not None:
        return position.text
    try:
        lines = Path(position.file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if position.line > len(lines):
        return None
    line = lines[position.line - 1].rstrip()
    return hide_in_line(line) if position.file.lower().endswith(_CONFIGURATIONS) else line
