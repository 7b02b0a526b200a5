"""`--log-level debug`: one line of standard error for each decision."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import write_catalog
from forked_flowctl import flowctl

CATALOG = """
collections:
  d/events: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  d/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: d/events, shuffle: any, lambda: SELECT $id;}]}
"""


def decisions(folder: Path, *arguments: str) -> list[str]:
    status, _, err = flowctl(folder, "--log-level", "debug", "--log-format", "json", *arguments)
    assert status == 0, err
    entries = [json.loads(line) for line in err.splitlines()]
    return [entry["message"] for entry in entries if entry["level"] == "debug"]


def test_debug_level_names_the_executor_and_the_extent_of_a_transaction(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    assert decisions(tmp_path, "ingest", "--collection", "d/events", "events.jsonl") == []

    reported = decisions(tmp_path, "run", "--until-idle")

    assert any(line.startswith("engine.executor: d/copies: 2 documents, about ") for line in reported)
    assert any(line.startswith("engine.task: d/copies: extent up to ") for line in reported)


def test_debug_level_reports_how_sql_answers(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)

    reported = decisions(tmp_path, "sql", "-c", "CREATE TABLE t (a int)", "-c", "SELECT a FROM t")

    assert any(line.endswith(": SELECT a FROM t") and "plan of version" in line for line in reported)
    assert any("evaluation over stored relations" in line for line in reported)
