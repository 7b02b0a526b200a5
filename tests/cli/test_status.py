"""`flowctl status` from outside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import flowctl

from derive.catalog import load
from derive.engine.edits import begin_wait, end_wait
from derive.planning.status import task_row
from derive.storage.metadata.process import this_process
from derive.storage.store import Store
from derive.storage.task_log import TaskLog, log_file
from derive.storage.timeline import since_boot, wall_clock

CATALOG = """
collections:
  s/events: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
"""


def test_status_reports_how_far_time_is_ahead_of_a_clock_set_back(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    store = Store(tmp_path / ".flow", wall=lambda: wall_clock() + 7_200_000_000, elapsed=since_boot)
    store.timeline.read()
    store.close()

    status, out, err = flowctl(tmp_path, "status")

    assert (status, out) == (0, "")
    assert "Z, 1h 59m" in err or "Z, 2h ahead" in err
    assert "ahead of this machine's clock, which was set back; the data folder's time continues from there" in err


def test_status_omits_time_that_agrees_with_the_clock(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    store = Store(tmp_path / ".flow")
    store.timeline.read()
    store.close()

    assert flowctl(tmp_path, "status") == (0, "", "")


DERIVED = (
    CATALOG
    + """
  s/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: s/events, shuffle: any, lambda: SELECT $id}]}
"""
)


def rate(folder: Path) -> object:
    return json.loads(flowctl(folder, "status", "-o", "json")[1])["rate"]


def test_status_rate_covers_the_last_transactions_since_a_reset(tmp_path: Path) -> None:
    write_catalog(tmp_path, DERIVED)
    Store(tmp_path / ".flow").close()
    log = TaskLog(tmp_path / ".flow", "s/copies")
    log.write("info", "a transaction", documents_in=9_000, seconds=2.0)
    assert rate(tmp_path) == 4_500

    assert flowctl(tmp_path, "reset", "--task", "s/copies")[0] == 0
    assert rate(tmp_path) is None

    log.write("info", "a transaction", documents_in=1, seconds=4.0)
    assert rate(tmp_path) == 0.2


def test_logs_show_durations_in_milliseconds(tmp_path: Path) -> None:
    write_catalog(tmp_path, DERIVED)
    Store(tmp_path / ".flow").close()
    TaskLog(tmp_path / ".flow", "s/copies").write("info", "done", seconds=0.32741109, documents_in=10**15 + 1)

    assert "done  seconds=0.327 documents_in=1000000000000001" in flowctl(tmp_path, "logs", "-o", "table")[1]


def test_status_does_not_report_disabled_tasks_as_failed(tmp_path: Path) -> None:
    text = DERIVED.replace("SELECT $id}", "SELECT 'x' AS id}")
    write_catalog(tmp_path, text)
    (tmp_path / "events.jsonl").write_text('{"id": 1}')
    assert flowctl(tmp_path, "ingest", "--collection", "s/events", "events.jsonl")[0] == 0
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 1
    assert json.loads(flowctl(tmp_path, "status", "-o", "json")[1])["state"] == "failed"

    write_catalog(tmp_path, text.replace("derive: {", "derive: {shards: {disable: true}, "))
    status, out, err = flowctl(tmp_path, "status", "-o", "json")

    assert (status, json.loads(out)["state"], err) == (0, "disabled", "")
    assert "published an invalid document" in json.loads(out)["error"]


def test_status_reports_the_transactions_that_an_edit_awaits(tmp_path: Path) -> None:
    write_catalog(tmp_path, DERIVED)
    root = tmp_path / ".flow"
    Store(root).close()
    begin_wait(root, "s/copies", ["s/other", "s/third"])

    _, out, err = flowctl(tmp_path, "status", "-o", "json")

    wait = json.loads(out)["edit waits for"]
    assert wait["tasks"] == ["s/other", "s/third"]
    assert (
        err == f"s/copies: an edit has waited since {wait['since']} for the end of transactions of s/other, s/third\n"
    )
    begin_wait(root, "s/copies", ["s/copies"])
    assert "for the end of its own transaction\n" in flowctl(tmp_path, "status")[2]

    log = log_file(root, "s/copies")
    reported = log.read_text()
    log.write_text(reported.replace(this_process(), "_").replace('"process":"_"', f'"process":"{gone()}"'))
    assert json.loads(flowctl(tmp_path, "status", "-o", "json")[1])["edit waits for"] is None
    log.write_text(reported)
    end_wait(root, "s/copies")
    assert json.loads(flowctl(tmp_path, "status", "-o", "json")[1])["edit waits for"] is None


def gone() -> str:
    """A process of this machine that has ended."""
    host, _, *rest = this_process().split(":")
    with subprocess.Popen(["true"]) as process:
        pass
    return ":".join([host, str(process.pid), *rest])


def test_status_advises_more_shards_for_tasks_that_are_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalog(tmp_path, DERIVED)
    (tmp_path / "events.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(300)))
    assert flowctl(tmp_path, "run", "--until-idle", "--shards", "1")[0] == 0
    assert flowctl(tmp_path, "ingest", "--collection", "s/events", "events.jsonl")[0] == 0
    TaskLog(tmp_path / ".flow", "s/copies").write("info", "a transaction", documents_in=4, seconds=2.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    store = Store(tmp_path / ".flow", wall=lambda: wall_clock() + 2_000_000)  # a tick later, all are due
    row, _ = task_row(store, load(tmp_path / "flow.yaml").derivations["s/copies"])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone, _ = task_row(store, load(tmp_path / "flow.yaml").derivations["s/copies"])
    store.close()

    assert row["advice"] == (
        "s/copies needs about 2m 30s for 300 due documents with its 1 shard, and this machine has 8 cores: more shards"
        " may help: flowctl split --task s/copies --shards 2"
    )
    assert alone["advice"] is None
