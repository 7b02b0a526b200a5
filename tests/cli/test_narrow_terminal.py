"""Commands on a terminal with 80 columns, with long names: nothing is divided inside a name or a number."""

from __future__ import annotations

import os
import pty
import re
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import BARE, Flowctl, flowctl

from derive.cli.folding import cells


def _name(number: int, length: int) -> str:
    begin, end = f"acme/a-warehouse-of-the-north/begin{number}-", f"-end{number}"
    return begin + ("of-orders-" * 8)[: length - len(begin) - len(end)] + end


SOURCES, DERIVED = [_name(10, 60), _name(11, 77)], [_name(12, 60), _name(13, 77)]
REPORTS, TEST, TASK = _name(14, 77), _name(15, 77), DERIVED[1]
FILE = f"{_name(16, 60)}/orders.jsonl"
SCHEMA = (
    "{type: object, required: [id], properties: {id: {type: integer}, v: {type: integer, reduce: {strategy: sum}}},"
    " reduce: {strategy: merge}}"
)
CATALOG = f"""
collections:
  {SOURCES[0]}: {{key: [/id], schema: {SCHEMA}}}
  {SOURCES[1]}: {{key: [/id], schema: {SCHEMA}}}
  {DERIVED[0]}:
    key: [/id]
    schema: {SCHEMA}
    derive: {{using: {{sqlite: {{}}}}, transforms: [
      {{name: copyOfAll, source: {SOURCES[1]}, shuffle: any, lambda: "SELECT $id, $v;"}}]}}
  {DERIVED[1]}:
    key: [/id]
    schema: {SCHEMA}
    derive: {{using: {{sqlite: {{}}}}, transforms: [
      {{name: copyOfAll, source: {DERIVED[0]}, shuffle: any, lambda: "SELECT $id, $v;"}},
      {{name: copyOfOthers, source: {SOURCES[0]}, shuffle: any, lambda: "SELECT $id, $v;"}}]}}
materializations:
  {REPORTS}:
    endpoint: {{ connector: {{ image: materialize-sqlite, config: {{ path: reports.db }} }} }}
    bindings: [{{ resource: {{ table: {TASK.replace("/", "_").replace("-", "_")} }}, source: {TASK} }}]
tests:
  {TEST}:
    - ingest: {{collection: {SOURCES[1]}, documents: [{{id: 1, v: 2}}]}}
    - verify: {{collection: {TASK}, documents: [{{id: 1, v: 3}}]}}
"""

COMMANDS = [
    ["check"],
    ["graph"],
    ["plan"],
    ["status"],
    ["ingest", "--collection", TASK, "a.jsonl"],
    ["ingest", "--collection", SOURCES[1], "bad.jsonl"],
    ["run", "--until-idle"],
    ["plan"],
    ["materialize", "plan"],
    ["collections", "list"],
    ["collections", "read", "--collection", TASK + "x"],
    ["ingestions", "list"],
    ["logs"],
    ["test"],
    ["test", "--coverage"],
    ["why", "--collection", TASK, "--key", "[7]", "--depth", "3"],
    ["why", "--collection", TASK, "--key", "[777]"],
    ["state", "--task", TASK],
    ["quarantine", "list"],
    ["sql", "-c", f"SELECT '{TASK}' AS name, 123456789012 AS number"],
    ["sql", "-c", f'SELECT nothing FROM "{TASK}"'],
    ["sql", "-c", f'EXPLAIN SELECT * FROM "{TASK}"'],
    ["compact", "--dry-run"],
    ["verify", "--replay", "--collection", TASK],
    ["split", "--task", TASK],
    ["reset", "--task", DERIVED[0]],
    ["reset", "--task", DERIVED[0], "--cascade"],
    ["plan", "--task", TASK],
    ["diff"],
    ["swap"],
    ["ingest", "--collection", SOURCES[0], "--follow", "--until-idle", "a.jsonl"],
    ["discover", "--name", TASK, FILE],
    ["split", "--task", TASK],
    ["backup", "copy"],
    ["restore", "copy", "--data", "restored"],
    ["verify", "--data", "restored"],
    # errors of click
    ["collections", "read", "--collectoin", TASK],
    ["collections", "read", TASK],
    ["status", "--output", TASK],
    ["run", "--shards", TASK],
    ["restore", TASK],
    [TASK],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow")
    write_catalog(folder, CATALOG)
    (folder / "a.jsonl").write_text("".join(f'{{"id":{number},"v":{number * 1_000_003}}}\n' for number in range(20)))
    (folder / "bad.jsonl").write_text('{"id":"seven"}\n')
    (folder / FILE).parent.mkdir(parents=True)
    (folder / FILE).write_text(
        "".join(f'{{"id":{n},"state":"{"open" if n % 2 else "closed"}","a-name":1}}\n' for n in range(20))
    )
    for source in SOURCES:
        assert flowctl(folder, "ingest", "--collection", source, "a.jsonl")[0] == 0
    return folder


def test_names_and_numbers_stay_whole(folder: Path) -> None:
    """Law: a line fits, and a name is whole; live lines may leave out the beginning of a name."""
    for arguments in COMMANDS:
        text = on_terminal(folder, arguments)
        lines = re.split(r"[\r\n]+", re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text))
        assert [line for line in lines if cells(line) > 80] == [], arguments
        begun = re.findall(r"acme/a-warehouse-of-the-north/begin(\d\d)(\S*)", text)
        assert [rest for number, rest in begun if f"-end{number}" not in rest] == [], arguments


def on_terminal(folder: Path, arguments: list[str]) -> str:
    """Return the output of a command on a terminal with 80 columns."""
    ours, theirs = pty.openpty()
    env = {**BARE, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    with Flowctl(arguments, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env):
        os.close(theirs)
        read = b""
        with suppress(OSError):  # the command has closed the terminal
            while piece := os.read(ours, 1 << 16):
                read += piece
    os.close(ours)
    return read.decode()
