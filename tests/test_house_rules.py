"""House rules of CONTRIBUTING.md that a program can check: how long files and functions are, and vague names."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for folder in ("derive", "connectors", "bench")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
}
VAGUE = {"each", "found", "whole"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)):
            yield path, node


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, its docstring aside."""
    first = function.body[0].end_lineno if ast.get_docstring(function) else function.body[0].lineno - 1
    return (function.end_lineno or 0) - (first or 0)


def test_files_are_short() -> None:
    assert [path for path, text in SOURCES.items() if text.count("\n") > 800] == []


def test_functions_are_short() -> None:
    functions = [(path, node) for path, node in nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert len(functions) > 1000
    assert [(path, function.name) for path, function in functions if length_of(function) >= 40] == []


def test_variables_say_what_they_hold() -> None:
    names = {(path, node.id) for path, node in nodes() if isinstance(node, ast.Name)}
    names |= {(path, node.arg) for path, node in nodes() if isinstance(node, ast.arg)}

    assert sorted((path, name) for path, name in names if name in VAGUE) == []
