"""docs/errors.md: it has a row for each SQLSTATE, each class of errors, and each code of `flowctl check`."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module

from checkout import REPOSITORY

from derive.errors import FlowError
from website.reference import explained_codes, issue_codes

PAGE = (REPOSITORY / "docs/errors.md").read_text(encoding="utf-8")
ROWS = [
    (row[0], row[1].strip("`").replace("\\|", "|"), row[3:])
    for line in PAGE.splitlines()
    if re.match(r"\| (?:[0-9X][0-9A-Z]{4}|[A-Z][A-Za-z]+) \| `", line)
    for row in [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]]
]
"""First cell, example, and the cells after the remedy."""
SQLSTATE = re.compile(r"""(?<=["'])(?:0[18A]|2[0-9BDEF]|3[4-9BDF]|4[0-4]|5[3-8]|XX)[0-9A-Z]{3}(?=["'])""")
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("derive", "connectors")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
}
SQLSTATES = {
    path: set(SQLSTATE.findall(text)) if path.is_relative_to(REPOSITORY / "derive") else set()
    for path, text in SOURCES.items()
}
"""SQLSTATEs of each module; connectors name those of other databases."""
OF_ALL = {"58000"}
"""SQLSTATE of errors of all modules that have no SQLSTATE of their own."""
CLASSES = {
    name: getattr(import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts)), name)
    for path, text in SOURCES.items()
    for name in re.findall(r"^class (\w+)\((?:\w+Error|Exception)\):", text, re.MULTILINE)
}
ERRORS = {name: kind for name, kind in CLASSES.items() if issubclass(kind, FlowError)}


@cache
def texts(source: str) -> set[str]:
    """Return the strings of a module, with `…` for each inserted value."""
    strings = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.JoinedStr(parts):
                strings.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))
            case ast.Constant(str(value)):
                strings.add(value)
    return strings


def test_every_sqlstate_of_the_code_has_a_row() -> None:
    rows = [key for key, _, _ in ROWS if key[-1].isupper() or key[-1].isdigit()]

    assert sorted(rows) == sorted(set.union(*SQLSTATES.values())), "add a row for the SQLSTATE to docs/errors.md"


def test_every_class_of_errors_has_a_row() -> None:
    rows = {key: after == ["yes"] for key, _, after in ROWS if key[-1].islower()}

    assert rows == {name: kind.heals for name, kind in ERRORS.items()}, "add a row for the class to docs/errors.md"


def test_every_code_of_check_has_a_row() -> None:
    assert sorted(explained_codes()) == sorted(issue_codes()), "add a row for the code to docs/errors.md"


def test_examples_of_errors_are_messages_of_the_code() -> None:
    missing = [
        (key, example)
        for key, example, _ in ROWS
        for word in [max(re.split(r"[…\s]", example), key=len)]
        if not any(
            word in text and (key in SQLSTATES[path] | OF_ALL or f"{key}(" in text) and example in texts(text)
            for path, text in SOURCES.items()
        )
    ]

    assert len(ROWS) > 100
    assert missing == []
