"""Edits that wait, from outside: `status` and `run` say the same, and each command that they tell does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import flowctl

CATALOG = """
collections:
  w/events: {schema: &schema {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  w/sums:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive: {using: {sqlite: {}}, transforms: [{name: of, source: w/events, shuffle: any, lambda: "SELECT 'all' AS k, 1 AS n"}]}
  w/large:
    schema: {type: object, required: [k], properties: {k: {type: string}, n: {type: integer}}}
    key: [/k]
    derive: {using: {sqlite: {}}, transforms: [{name: all, source: w/sums, shuffle: any, lambda: "SELECT $k, $n"}]}
"""
RENAMED = CATALOG.replace("{name: of,", "{name: since,")


def total(folder: Path) -> int:
    out = flowctl(folder, "collections", "read", "--collection", "w/sums", "--reduce")[1]
    return int(json.loads(out)["n"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with an edit that waits, and one document more."""
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    flowctl(tmp_path, "ingest", "--collection", "w/events", "events.jsonl")
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    write_catalog(tmp_path, RENAMED)
    (tmp_path / "more.jsonl").write_text('{"id": 3}\n')
    flowctl(tmp_path, "ingest", "--collection", "w/events", "more.jsonl")
    assert total(tmp_path) == 2
    return tmp_path


def state(folder: Path) -> list[object]:
    rows = map(json.loads, flowctl(folder, "status", "-o", "json")[1].splitlines())
    return [(row["task"], row["state"], row["error"] is None, len(row["unaccepted"])) for row in rows]


def told_commands(folder: Path) -> list[list[str]]:
    """The commands that the error of a run tells."""
    status, _, err = flowctl(folder, "run", "--until-idle")
    assert status == 1
    assert "w/sums waits until its edit is accepted; the other tasks continue" in err
    assert "2 documents of 'w/events' (from 20" in err
    return [command.split() for command in re.findall(r"flowctl ((?:run|reset)[^;)\n]*)", err)]


def test_waiting_edit_is_shown_until_it_is_undone(folder: Path) -> None:
    waiting = [("w/sums", "waiting", False, 1), ("w/large", "idle", True, 0)]
    assert state(folder) == waiting
    assert told_commands(folder) == [["run", "--accept", "w/sums"], ["reset", "--task", "w/sums", "--cascade"]]
    assert state(folder) == waiting
    _, _, err = flowctl(folder, "status", "-o", "json")
    assert "waits for acceptance: transform 'of' was removed, and 'since' reads its source 'w/events'" in err
    write_catalog(folder, CATALOG)
    assert state(folder) == [("w/sums", "behind", True, 0), ("w/large", "idle", True, 0)]
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    assert total(folder) == 3
    assert flowctl(folder, "status", "-o", "json")[2] == ""


def test_recommended_commands_let_a_waiting_task_continue(folder: Path) -> None:
    accept, reset = told_commands(folder)
    status, _, err = flowctl(folder, *accept, "--until-idle")
    assert status == 0
    assert "'since' reads its source 'w/events': 'since' has read 2 documents" in err
    assert "again, as was accepted" in err
    assert total(folder) == 5
    _, _, err = flowctl(folder, "status", "-o", "json")
    assert "to remove the results, start over: flowctl reset --task w/sums --cascade" in err
    assert flowctl(folder, *reset)[0] == 0
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    assert total(folder) == 3
    assert flowctl(folder, "status", "-o", "json")[2] == ""


def test_formerly_lets_a_waiting_task_continue(folder: Path) -> None:
    write_catalog(folder, RENAMED.replace("{name: since,", "{name: since, formerly: of,"))
    assert state(folder) == [("w/sums", "behind", True, 0), ("w/large", "idle", True, 0)]
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    assert total(folder) == 3
    assert flowctl(folder, "status", "-o", "json")[2] == ""


def test_accept_refuses_tasks_without_waiting_edits(folder: Path) -> None:
    write_catalog(folder, CATALOG)
    status, _, err = flowctl(folder, "run", "--accept", "w/sums", "--until-idle")
    assert status == 0
    assert "w/sums: no edit waited to be accepted" in err
    status, _, err = flowctl(folder, "run", "--accept", "w/sum", "--until-idle")
    assert status == 2
    assert "did you mean 'w/sums'?" in err
