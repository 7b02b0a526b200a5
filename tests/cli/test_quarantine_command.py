"""`flowctl quarantine`, and the quarantine in other commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked_flowctl import BARE, flowctl

CATALOG = """\
collections:
  q/orders:
    schema: {type: object, properties: {id: {type: integer}, n: {type: integer}}, required: [id, n]}
    key: [/id]
  q/halves:
    schema: {type: object, properties: {id: {type: integer}, n: {type: integer}}, required: [id, n]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: halve, source: q/orders, shuffle: any, onViolation: quarantine, lambda: "SELECT $id, $n / 2.0 AS n;"}
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the transform has put the documents 1 and 3 aside."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "flow.yaml").write_text(CATALOG)
    (folder / "orders.jsonl").write_text("".join(f'{{"id":{number},"n":{number}}}\n' for number in range(5)))
    called(folder, "ingest", "--collection", "q/orders", "orders.jsonl")
    called(folder, "run", "--until-idle", "--local-documents", "1000")
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "project")


def called(folder: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    """Call flowctl, expect an exit status, and return both outputs."""
    code, out, err = flowctl(folder, *arguments, env=BARE)
    assert code == status, err
    return out, err


def listed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    out, _ = called(folder, "quarantine", "list", "-o", "json", *arguments)
    return [json.loads(line) for line in out.splitlines()]


def test_list_shows_the_documents_with_their_errors(template: Path) -> None:
    first, second = listed(template)
    assert (first["task"], first["transform"], first["source"], first["key"]) == ("q/halves", "halve", "q/orders", [1])
    assert first["document"] == {"id": 1, "n": 1}
    assert "published an invalid document" in first["error"]
    assert "fails its schema at '/n'" in first["error"]
    assert listed(template, "--key", "3") == listed(template, "--id", second["id"]) == [second]
    assert listed(template, "--task", "q/halves", "--transform", "halve") == [first, second]
    table, _ = called(template, "quarantine", "list", "-o", "table")
    assert len(table.splitlines()) == 3


def test_status_counts_open_documents(folder: Path) -> None:
    out, err = called(folder, "status", "-o", "json")
    row = json.loads(out.splitlines()[0])
    assert (row["state"], row["quarantined"], row["quarantine"]) == ("idle", 2, {"halve": 2})
    assert "transform 'halve' has put 2 documents aside" in err
    table, _ = called(folder, "status", "-o", "table")
    assert "quarantined" in table.splitlines()[0]
    called(folder, "quarantine", "drop", "--task", "q/halves", "--all")
    out, err = called(folder, "status", "-o", "json")
    assert json.loads(out.splitlines()[0])["quarantined"] == 0
    assert "aside" not in err


def test_retry_gives_documents_to_the_edited_lambda(folder: Path) -> None:
    (folder / "flow.yaml").write_text(CATALOG.replace("$n / 2.0", "$n / 2"))
    out, _ = called(folder, "quarantine", "retry", "--task", "q/halves", "--key", "[1]", "-o", "json")
    assert json.loads(out) == {"task": "q/halves", "retried": 1}
    assert [entry["key"] for entry in listed(folder)] == [[3]]
    _, err = called(folder, "quarantine", "retry", "--task", "q/halves")
    assert "q/halves: 1 document retried" in err
    called(folder, "run", "--until-idle", "--local-documents", "1000")
    out, _ = called(folder, "collections", "read", "--collection", "q/halves", "--reduce")
    assert sorted((json.loads(line)["id"], json.loads(line)["n"]) for line in out.splitlines()) == [
        *((0, 0), (1, 0), (2, 1)),
        *((3, 1), (4, 2)),
    ]
    out, _ = called(folder, "collections", "read", "--collection", "q/halves@quarantine")
    assert [json.loads(line)["key"] for line in out.splitlines()] == [[1], [3]]
    out, err = called(folder, "verify", "--replay")
    assert "every stored document is equal to its replay" in out + err


def test_drop_asks_for_a_choice(folder: Path) -> None:
    _, err = called(folder, "quarantine", "drop", "--task", "q/halves", status=2)
    assert "drop all with --all" in err
    out, _ = called(folder, "quarantine", "drop", "--task", "q/halves", "--key", "[1]", "-o", "json")
    assert json.loads(out) == {"task": "q/halves", "dropped": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--task", "q/halfs"], "did you mean 'q/halves'?"),
        (["list", "--task", "q/halves", "--transform", "have"], "did you mean 'halve'?"),
        (["list", "--key", "["], "--key is not JSON: ["),
        (["retry", "--task", "q/orders"], "has no derivation 'q/orders'"),
    ],
)
def test_unknown_names_are_usage_errors(arguments: list[str], message: str, template: Path) -> None:
    _, err = called(template, "quarantine", *arguments, status=2)
    assert message in err


def test_quarantine_cannot_be_ingested_or_dropped(template: Path) -> None:
    _, err = called(template, "ingest", "--collection", "q/halves@quarantine", "orders.jsonl", status=1)
    assert "is derived, so nothing can be ingested" in err
    _, err = called(template, "collections", "drop", "--collection", "q/halves@quarantine", status=1)
    assert "flowctl reset --task q/halves\n" in err


def test_plan_shows_the_edited_policy(folder: Path) -> None:
    (folder / "flow.yaml").write_text(CATALOG.replace("onViolation: quarantine", "onViolation: stop"))
    out, _ = called(folder, "plan", "-o", "json")
    assert "halve: onViolation" in out


def test_check_refuses_another_policy(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG.replace("onViolation: quarantine", "onViolation: ignore"))
    _, err = called(tmp_path, "check", status=1)
    assert "onViolation" in err
    assert "quarantine" in err


def test_documents_that_a_shadow_puts_aside_are_listed(folder: Path) -> None:
    catalog = folder / "flow.yaml"
    catalog.write_text(CATALOG.replace("$n / 2.0", "$n / 4.0"))
    called(folder, "run", "--shadow", "--hold", "--until-idle", "--local-documents", "1000")
    _, err = called(folder, "status")
    assert "flowctl quarantine list --task q/halves@2" in err
    assert [entry["key"] for entry in listed(folder, "--task", "q/halves@2")] == [[1], [2], [3]]
    out, _ = called(folder, "collections", "read", "--collection", "q/halves@2@quarantine")
    assert len(out.splitlines()) == 3
    _, err = called(folder, "quarantine", "retry", "--task", "q/halves@2", status=2)
    assert "decide after the swap" in err
    called(folder, "swap")
    assert [entry["key"] for entry in listed(folder)] == [[1], [2], [3]]
