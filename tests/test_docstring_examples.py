"""Every example (`>>>`) in a docstring is run, and returns what it shows."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    for folder in ("derive", "connectors")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_modules_with_examples_are_found() -> None:
    assert "derive.reduce.reduce_keyword" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_return_what_they_show(name: str) -> None:
    if name.startswith("derive.ui."):
        pytest.importorskip("starlette", reason="the extra `ui` is not installed")
    outcome = doctest.testmod(import_module(name))

    assert outcome.attempted > 0
    assert outcome.failed == 0
