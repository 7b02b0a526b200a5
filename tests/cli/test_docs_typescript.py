"""The walk-through of docs/typescript.md, done as a reader would: files are written, and commands say what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from forked_flowctl import BARE, flowctl

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.deno

PAGE = (REPOSITORY / "docs/typescript.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
NAME = re.compile(r"`([\w.]+\.(?:yaml|ts|jsonl))`[^`]*:\s*\Z")


def steps() -> list[tuple[str, str]]:
    """What a reader does: (file name, content), and ('', a console's text), in order."""
    found = []
    walk, _, _ = PAGE.partition("\n## Modules")
    for block in BLOCK.finditer(walk):
        if block[1] == "console":
            found.append(("", block[2]))
            continue
        named = NAME.search(walk[: block.start()])
        assert named, f"no file is named before {block[0]}"
        found.append((named[1], block[2]))
    return found


def said_by(folder: Path, *arguments: str) -> str:
    _, out, err = flowctl(folder, *arguments, env=BARE | {"PATH": os.environ["PATH"]})
    return out or err


def lines(text: str) -> list[str]:
    """Lines without what differs each time: durations, and the white space at their ends."""
    return [re.sub(r"\d+\.\d+ s\b", "0 s", line).rstrip() for line in text.splitlines()]


def do(folder: Path, content: str) -> None:
    for command in re.split(r"^\$ flowctl ", content, flags=re.MULTILINE)[1:]:
        arguments, _, expected = command.partition("\n")
        table = ["-o", "table"] if arguments == "generate" else []
        said = said_by(folder, *arguments.split(), *table)
        if expected:
            assert lines(said) == lines(expected), arguments


def test_tutorial_leads_from_a_specification_to_a_passing_test(tmp_path: Path) -> None:
    for name, content in steps():
        if content.startswith("$ flowctl ingest"):
            break
        if name:
            (tmp_path / name).write_text(content, encoding="utf-8")
        else:
            do(tmp_path, content)
    else:
        pytest.fail("the page loads no documents")
    assert [name for name, _ in steps() if name] == [
        "flow.yaml",
        "balances.flow.yaml",
        "balances.schema.yaml",
        "balances.ts",
        "transfers.jsonl",
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", [["check"], ["run", "--until-idle"]])
def test_check_finds_the_mistake_of_the_tutorial(tmp_path: Path, command: list[str]) -> None:
    for name, content in steps():
        if name:
            (tmp_path / name).write_text(content.replace("-doc.amount", "-doc.amout"), encoding="utf-8")
    found = re.search(r"```\n(error.*?)```", PAGE, re.DOTALL)
    assert found
    assert lines(said_by(tmp_path, *command)) == [*lines(found[1]), "", "1 error"]
    assert not (tmp_path / ".flow").exists()


@pytest.mark.spark
def test_tested_steps_of_the_documentation_run(tmp_path: Path) -> None:
    for name, content in steps():
        if name:
            (tmp_path / name).write_text(content, encoding="utf-8")
    do(tmp_path, steps()[-1][1])
