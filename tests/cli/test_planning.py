"""`flowctl plan` from outside, and edits that wait: `plan`, `status` and `run` agree, and each recommended command works."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
from pathlib import Path

import pytest
from checkout import REPOSITORY, installed_site
from conftest import write_catalog
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS

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


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the catalog has run, with two documents."""
    folder = tmp_path_factory.mktemp("template")
    write_catalog(folder, CATALOG)
    ingest(folder, '{"id": 1}\n{"id": 2}\n')
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "project")


@pytest.fixture
def waiting(folder: Path) -> Path:
    """A folder with an edit that waits, and a third document."""
    write_catalog(folder, RENAMED)
    ingest(folder, '{"id": 3}\n')
    assert total(folder) == 2
    return folder


def ingest(folder: Path, text: str) -> None:
    assert flowctl(folder, "ingest", "--collection", "w/events", text=text)[0] == 0


def total(folder: Path) -> int:
    out = flowctl(folder, "collections", "read", "--collection", "w/sums", "--reduce")[1]
    return int(json.loads(out)["n"])


def test_plan_shows_text_in_80_columns_and_json(folder: Path) -> None:
    plan = ("plan", "--exit-code")
    assert flowctl(folder, *plan, "-o", "table") == (
        0,
        "w/sums: unchanged\nw/large: unchanged\n2 tasks: 2 unchanged\n",
        "",
    )
    write_catalog(folder, RENAMED.replace("SELECT $k, $n", "SELECT $k, 2 * $n AS n"))
    status, out, err = flowctl(folder, *plan, "-o", "table")
    assert (status, err) == (3, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "w/sums: waits\n  since: name: of -> since\n    WAITS: transform 'of' was removed" in out
    assert "write 'formerly: of' at 'since'" in out
    assert "  to accept the waiting edit:\n    flowctl run --accept w/sums\n" in out
    assert "      -SELECT $k, $n\n      +SELECT $k, 2 * $n AS n\n    new documents only: applies to" in out
    assert out.endswith("2 tasks: 1 waits, 1 changed\n")
    status, out, err = flowctl(folder, *plan, "-o", "json", "--task", "w/sums")
    (row,) = map(json.loads, out.splitlines())
    assert (row["task"], row["status"], row["documents"]) == ("w/sums", "waits", 2)
    assert [(change["part"], change["effect"], change["documents"]) for change in row["changes"]] == [
        ("since: name", "waits", 2)
    ]
    status, _, err = flowctl(folder, "plan", "--task", "w/sum")
    assert (status, "did you mean 'w/sums'?" in err) == (2, True)


def test_plan_shows_tasks_that_follow_a_truncated_source(folder: Path) -> None:
    """The plan agrees with the run: `of` reads the new relation from its start, and the results of the old one go."""
    truncate = ("collections", "truncate", "--collection", "w/events")
    assert flowctl(folder, *truncate)[0] == 0
    ingest(folder, '{"id": 3}\n')
    write_catalog(folder, CATALOG.replace("source: w/events,", "source: w/events, onSourceReset: follow,"))
    _, out, _ = flowctl(folder, "plan", "--task", "w/sums", "-o", "json")
    (row,) = map(json.loads, out.splitlines())
    (change,) = [change for change in row["changes"] if change["effect"] == "from the start"]
    assert (row["status"], change["documents"]) == ("changed", 1)
    assert change["part"] == "of: relation of 'w/events'"
    assert change["meaning"].endswith(": the task starts over")

    assert flowctl(folder, "run", "--until-idle", "--task", "w/sums")[0] == 0
    assert total(folder) == 1
    assert json.loads(flowctl(folder, "plan", "--task", "w/sums", "-o", "json")[1])["status"] == "unchanged"


@pytest.mark.torture  # test_evolution.py in one process
def test_plan_refuses_an_edited_migration_after_a_run_has_failed(tmp_path: Path) -> None:
    catalog = CATALOG.replace("using: {sqlite: {}}", "using: {sqlite: {migrations: [CREATE TABLE t (a)]}}", 1)
    catalog = catalog.replace(
        "shuffle: any, lambda: \"SELECT 'all'",
        "shuffle: {key: [/id]}, lambda: \"INSERT INTO t VALUES ($id); SELECT 'all'",
    )
    edited = catalog.replace("CREATE TABLE t (a)", "CREATE TABLE t (b)").replace("1 AS n", "2 AS n")
    plan, run = ("plan", "--task", "w/sums", "-o", "json"), ("run", "--until-idle", "--task", "w/sums", "--shards", "1")
    write_catalog(tmp_path, catalog)
    ingest(tmp_path, '{"id": 1}\n')
    assert flowctl(tmp_path, *run)[0] == 0
    write_catalog(tmp_path, edited)
    assert flowctl(tmp_path, *run)[0] == 1  # even without documents
    ingest(tmp_path, '{"id": 2}\n')
    assert flowctl(tmp_path, *run)[0] == 1
    assert json.loads(flowctl(tmp_path, *plan)[1])["status"] == "refused"
    write_catalog(tmp_path, catalog)
    assert json.loads(flowctl(tmp_path, *plan)[1])["status"] == "unchanged"
    assert flowctl(tmp_path, *run)[0] == 0
    assert (total(tmp_path), json.loads(flowctl(tmp_path, *plan)[1])["status"]) == (2, "unchanged")


def test_plan_shows_integers_beyond_64_bits(folder: Path) -> None:
    write_catalog(folder, CATALOG.replace("n: {type: integer}}", "n: {type: integer, maximum: 100000000000000000000}}"))
    status, out, _ = flowctl(folder, "plan", "-o", "json", "--task", "w/large")
    (row,) = map(json.loads, out.splitlines())
    assert (status, [change["after"] for change in row["changes"]][-1:]) == (0, [10**20])


def test_plan_changes_nothing_and_needs_no_data_folder(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    status, out, err = flowctl(tmp_path, "plan", "-o", "table")
    assert (status, out, err) == (0, "w/sums: added\nw/large: added\n2 tasks: 2 added\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["flow.yaml"]


class Terminal:
    """A command on a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = Flowctl([*arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder)
        os.close(theirs)
        self.output = ""

    def read(self, until: str | None = None) -> None:
        """Read up to a text, or until the command ends."""
        while until is None or until not in self.output:
            assert select.select([self._ours], [], [], PATIENCE_SECONDS)[0], self.output
            try:
                self.output += os.read(self._ours, 4096).decode()
            except OSError:  # the process has closed the terminal
                assert until is None, self.output
                break

    def answer(self, text: str) -> None:
        self.read("[y/N]")
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Return the exit code, after the end of the command."""
        self.read()
        os.close(self._ours)
        return self.process.wait(PATIENCE_SECONDS)


def answered(folder: Path, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal, and answer its question; return its exit code and its words."""
    terminal = Terminal(folder, *arguments)
    terminal.answer(answer)
    status = terminal.end()
    return status, " ".join(re.sub(r"\x1b\[[\d;]*m", "", terminal.output).split())  # without colours and line ends


def test_watch_asks_about_an_edit_and_continues_with_other_tasks(folder: Path) -> None:
    terminal = Terminal(folder, "run", "--watch")
    terminal.read("running 2 tasks; stop with")
    assert flowctl(folder, "plan", "-o", "table")[1].endswith("2 tasks: 2 unchanged\n")  # beside a run
    write_catalog(folder, RENAMED)
    terminal.read("w/sums restarts, 1 task continues")
    terminal.answer("yes\n")
    assert "accept this edit of 'w/sums'? [y/N]" in terminal.output
    terminal.read("has read 2 documents of 'w/events'")
    terminal.read("w/sums had its edit accepted: w/sums restarts, 1 task continues")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0, terminal.output
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    assert total(folder) == 4


def test_run_asks_on_a_terminal_before_it_accepts_an_edit(folder: Path) -> None:
    write_catalog(folder, RENAMED)
    status, output = answered(folder, "\n", "run", "--until-idle")
    assert status == 1
    assert "2 documents of 'w/events'" in output
    assert "w/sums waits until its edit is accepted" in output
    assert output.count("to start over: flowctl reset --task w/sums") == 1
    assert total(folder) == 2
    status, output = answered(folder, "y\n", "run", "--until-idle")
    assert (status, total(folder)) == (0, 4)
    assert "has read 2 documents of 'w/events'" in output


STORED = """
collections:
  w/orders:
    key: [/id]
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, paid: {type: integer, reduce: {strategy: sum}}, note: {type: string}}
materializations:
  w/reports:
    endpoint: {connector: {image: materialize-sqlite, config: {path: reports.db}}}
    bindings: [{resource: {table: orders}, source: w/orders}]
"""


def test_plan_shows_columns_and_reductions_of_materializations(tmp_path: Path) -> None:
    installed_site(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])}

    def planned(text: str) -> tuple[str, list[tuple[str, str]]]:
        write_catalog(tmp_path, text)
        status, out, err = flowctl(tmp_path, "plan", "-o", "json", env=environment)
        assert status == 0, err
        (row,) = map(json.loads, out.splitlines())
        return row["status"], [(change["part"], change["effect"]) for change in row["changes"]]

    assert planned(STORED)[0] == "added"
    (tmp_path / "orders.jsonl").write_text('{"id": 1, "paid": 2, "note": "a"}\n')
    flowctl(tmp_path, "ingest", "--collection", "w/orders", "orders.jsonl")
    assert flowctl(tmp_path, "run", "--until-idle", env=environment)[0] == 0
    assert planned(STORED) == ("unchanged", [])
    name = "w/orders -> orders"
    status, changes = planned(STORED.replace("note: {type: string}", "note: {type: string}, paidAt: {type: string}"))
    assert (status, changes[0]) == ("changed", (f"{name}: field paidAt", "endpoint"))
    status, changes = planned(STORED.replace("source: w/orders}", "source: w/orders, fields: {exclude: [note]}}"))
    assert status == "changed"
    assert changes[:2] == [(f"{name}: fields/exclude", "endpoint"), (f"{name}: field note", "endpoint")]
    status, changes = planned(STORED.replace("source: w/orders}", "source: w/orders, backfill: 1}"))
    assert (status, changes[0]) == ("changed", (f"{name}: backfill", "from the start"))
    edited = STORED.replace("{strategy: sum}", "{strategy: maximize}")
    status, changes = planned(edited)
    assert (status, changes[0]) == ("waits", (name, "waits"))
    code, _, err = flowctl(tmp_path, "run", "--until-idle", env=environment)
    assert code == 1
    assert "w/reports waits until its edit is accepted" in err


# Edits that wait.


def state(folder: Path) -> list[object]:
    rows = map(json.loads, flowctl(folder, "status", "-o", "json")[1].splitlines())
    return [(row["task"], row["state"], row["error"] is None, len(row["unaccepted"])) for row in rows]


def recommended_commands(folder: Path) -> list[list[str]]:
    """Return the commands that the error of a run recommends."""
    status, _, err = flowctl(folder, "run", "--until-idle")
    assert status == 1
    assert "w/sums waits until its edit is accepted; the other tasks continue" in err
    assert "2 documents of 'w/events' (from 20" in err
    return [command.split() for command in re.findall(r"flowctl ((?:run|reset)[^;)\n]*)", err)]


def test_waiting_edit_is_shown_until_it_is_undone(waiting: Path) -> None:
    shown = [("w/sums", "waiting", False, 1), ("w/large", "idle", True, 0)]
    assert state(waiting) == shown
    assert recommended_commands(waiting) == [["run", "--accept", "w/sums"], ["reset", "--task", "w/sums", "--cascade"]]
    assert state(waiting) == shown
    _, _, err = flowctl(waiting, "status", "-o", "json")
    assert "waits for acceptance: transform 'of' was removed, and 'since' reads its source 'w/events'" in err
    status, _, err = flowctl(waiting, "run", "--accept", "w/sum", "--until-idle")
    assert (status, "did you mean 'w/sums'?" in err) == (2, True)
    for text in (RENAMED.replace("{name: since,", "{name: since, formerly: of,"), CATALOG):
        write_catalog(waiting, text)
        assert state(waiting) == [("w/sums", "behind", True, 0), ("w/large", "idle", True, 0)]
    status, _, err = flowctl(waiting, "run", "--accept", "w/sums", "--until-idle")
    assert (status, total(waiting)) == (0, 3)
    assert "w/sums: no edit waited to be accepted" in err
    assert flowctl(waiting, "status", "-o", "json")[2] == ""


def test_recommended_commands_let_a_waiting_task_continue(waiting: Path) -> None:
    accept, reset = recommended_commands(waiting)
    status, _, err = flowctl(waiting, *accept, "--until-idle")
    assert status == 0
    assert "'since' reads its source 'w/events': 'since' has read 2 documents" in err
    assert "again, as was accepted" in err
    assert total(waiting) == 5
    _, _, err = flowctl(waiting, "status", "-o", "json")
    assert "to remove the results, start over: flowctl reset --task w/sums --cascade" in err
    assert flowctl(waiting, *reset)[0] == 0
    assert flowctl(waiting, "run", "--until-idle")[0] == 0
    assert total(waiting) == 3
    assert flowctl(waiting, "status", "-o", "json")[2] == ""


@pytest.mark.torture  # test_rereading.py in one process
def test_renamed_transform_of_the_readme_never_doubles_a_sum_unasked(tmp_path: Path) -> None:
    catalog = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```\n")[0]
    renamed = catalog.replace("name: fromOrders", "name: add")
    orders = [(1, "ann", 20), (2, "ben", 5.5), (3, "ann", 1.5)]
    text = "".join(json.dumps({"id": id_, "customer": who, "amount": spent}) + "\n" for id_, who, spent in orders)

    def spent() -> dict[str, float]:
        out = flowctl(tmp_path, "collections", "read", "--collection", "shop/spending", "--reduce")[1]
        return {row["customer"]: row["spent"] for row in map(json.loads, out.splitlines())}

    write_catalog(tmp_path, catalog)
    assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text=text)[0] == 0
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    write_catalog(tmp_path, renamed)
    plan = json.loads(flowctl(tmp_path, "plan")[1])
    assert (plan["task"], plan["status"]) == ("shop/spending", "waits")
    for _ in range(2):
        status, _, err = flowctl(tmp_path, "run", "--until-idle")
        assert status == 1
        assert "'add' would read 3 documents of 'shop/orders'" in err
        assert spent() == {"ann": 21.5, "ben": 5.5}
    write_catalog(tmp_path, renamed.replace("name: add", "name: add\n          formerly: fromOrders"))
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    assert spent() == {"ann": 21.5, "ben": 5.5}
