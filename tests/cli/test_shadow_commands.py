"""`flowctl run --shadow`, `diff`, `swap` and `shadow drop` as commands: what they refuse, what they print, and one live swap."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

CATALOG = """
collections:
  s/orders:
    schema: {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
  s/sums:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, sum: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive:
      using: {sqlite: {}}
      transforms: [{name: add, source: s/orders, shuffle: any, lambda: "SELECT iif($n % 2, 'odd', 'even') AS k, $n AS sum;"}]
materializations:
  s/stored:
    endpoint: {connector: {image: IMAGE, config: CONFIG}}
    bindings: [{source: s/sums, resource: RESOURCE}]
"""
SQLITE = ("materialize-sqlite", "{path: stored.db}", "{table: sums}")
DELTAS = ("materialize-sqlite", "{path: stored.db}", "{table: sums, delta_updates: true}")


def text_of(image: str, config: str, resource: str, factor: str = "") -> str:
    text = CATALOG.replace("IMAGE", image).replace("CONFIG", config).replace("RESOURCE", resource)
    return text.replace("$n AS sum", f"$n{factor} AS sum")


def ingest(folder: Path, *numbers: int) -> None:
    lines = "".join(f'{{"id": {number}, "n": {number}}}\n' for number in numbers)
    assert flowctl(folder, "ingest", "--collection", "s/orders", "-", text=lines)[0] == 0


def sums(folder: Path) -> dict[str, int]:
    out = flowctl(folder, "collections", "read", "--collection", "s/sums", "--reduce")[1]
    return {row["k"]: row["sum"] for row in map(json.loads, out.splitlines())}


def stored(folder: Path) -> dict[str, int]:
    with closing(sqlite3.connect(folder / "stored.db")) as database:
        return dict(database.execute("SELECT k, sum FROM sums").fetchall())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("template"), SQLITE)


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A folder that has derived three orders, and whose lambda is edited."""
    return shutil.copytree(template, tmp_path / "project")


def begun(folder: Path, endpoint: tuple[str, str, str]) -> Path:
    write_catalog(folder, text_of(*endpoint))
    ingest(folder, 1, 2, 3)
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    write_catalog(folder, text_of(*endpoint, factor=" * 10"))
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hold"], "--hold needs --shadow"),
        (["--shadow", "--watch"], "--shadow brings one edit of the catalog into force"),
        (["--shadow", "--task", "s/sums"], "--shadow runs all tasks"),
    ],
)
def test_shadow_refuses_other_options_of_run(options: list[str], message: str, tmp_path: Path) -> None:
    write_catalog(tmp_path, text_of(*SQLITE))
    status, _, err = flowctl(tmp_path, "run", *options)
    assert status == 2
    assert message in err


def test_commands_report_a_missing_shadow(tmp_path: Path) -> None:
    write_catalog(tmp_path, text_of(*SQLITE))
    ingest(tmp_path, 1)
    for command in (["diff"], ["swap"], ["shadow", "drop"]):
        status, _, err = flowctl(tmp_path, *command)
        assert status == 2
        assert "there is no shadow" in err
    for options in (["--until-idle"], []):
        status, _, err = flowctl(tmp_path, "run", "--shadow", *options)
        assert status == 2
        assert "no derivation was edited since it ran" in err


def test_held_shadow_is_shown_and_replaces_after_swap(folder: Path) -> None:
    status, _, err = flowctl(folder, "run", "--shadow", "--hold", "--until-idle")
    assert status == 0, err
    assert "compare it: flowctl diff; bring it into force: flowctl swap" in err
    _, out, err = flowctl(folder, "status", "-o", "json")
    assert [json.loads(line)["task"] for line in out.splitlines()] == ["s/sums", "s/sums@2", "s/stored"]
    assert "s/sums@2: the shadow of 's/sums' is at 20" in err
    assert "the shadows replace the live version after: flowctl swap" in err
    assert '"task":"s/sums@2"' in flowctl(folder, "logs")[1]
    assert '"task":"s/sums"' not in flowctl(folder, "logs", "--task", "s/sums@2")[1]
    status, out, err = flowctl(folder, "why", "--collection", "s/sums@2", "--key", '["even"]')
    assert status == 0, err
    explained = json.loads(out)
    assert (explained["value"], explained["equal"]) == ({"k": "even", "sum": 20}, True)
    assert flowctl(folder, "verify", "--replay", "--collection", "s/sums@2")[0] == 0
    out = flowctl(folder, "collections", "read", "--collection", "s/sums@2", "--reduce")[1]
    assert [json.loads(line)["sum"] for line in out.splitlines()] == [20, 40]
    assert flowctl(folder, "state", "--task", "s/sums@2")[0] == 0
    status, _, err = flowctl(folder, "run", "--until-idle")
    assert status == 2
    assert "a run without it would apply the edit at once" in err
    _, out, err = flowctl(folder, "diff", "--limit", "1")
    assert json.loads(out) == {
        "collection": "s/sums",
        "key": ["even"],
        "before": {"k": "even", "sum": 2},
        "after": {"k": "even", "sum": 20},
    }
    assert "s/sums: at least 1 key of the contents at 20" in err
    assert sums(folder) == stored(folder) == {"odd": 4, "even": 2}
    status, _, err = flowctl(folder, "swap")
    assert status == 0, err
    at = err.partition("in force from ")[2].split()[0]
    assert flowctl(folder, "sql", "-c", 'CREATE VIEW v AS SELECT * FROM "s/sums"')[0] == 0
    status, _, err = flowctl(folder, "why", "--view", "v", "--row", '{"k": "even"}')
    assert status == 0
    assert f"documents of 's/sums' before {at} belong to a former version, and are not explained" in err
    ingest(folder, 5)
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    why = ("why", "--collection", "s/sums", "--key", '["even"]', "--as-of")
    status, _, err = flowctl(folder, *why, "2020-01-01T00:00:00Z")
    assert status == 2
    assert f"the contents of 's/sums' before {at} belong to a former version" in err
    assert json.loads(flowctl(folder, *why, at)[1])["equal"]
    assert sums(folder) == stored(folder) == {"odd": 90, "even": 20}
    assert flowctl(folder, "verify", "--replay")[0] == 0
    for command in ("why", "--key", '["even"]'), ("collections read",), ("verify", "--replay"):
        status, _, err = flowctl(folder, *command[0].split(), "--collection", "s/sums@2", *command[1:])
        assert status == 2
        assert "there is no shadow 's/sums@2'" in err
        assert "the version in force is 's/sums'" in err


def test_status_and_plan_report_a_shadow_after_another_edit(folder: Path) -> None:
    hold = ("run", "--shadow", "--hold", "--until-idle")
    status, _, err = flowctl(folder, *hold, "--accept", "s/store")
    assert status == 2
    assert "did you mean 's/stored'?" in err
    assert "there is no shadow" in flowctl(folder, "diff")[2]
    assert flowctl(folder, *hold)[0] == 0
    for command in "split", "plan":
        status, _, err = flowctl(folder, command, "--task", "s/sums@2")
        assert status == 2
        assert "a name with '@' is a shadow of 's/sums'" in err
    write_catalog(folder, text_of(*SQLITE, factor=" * 7"))
    _, _, err = flowctl(folder, "status")
    assert "s/sums@2: the shadow of 's/sums' is at 20" in err
    assert "the shadow is outdated" in err
    assert "flowctl swap" not in err
    plan = json.loads(flowctl(folder, "plan", "--task", "s/sums")[1])
    assert plan["notes"] == ["a shadow of the task exists, so a run without --shadow refuses the task"]
    assert [one["command"] for one in plan["commands"]] == ["flowctl run --shadow", "flowctl shadow drop"]
    write_catalog(folder, text_of(*SQLITE, factor=" * 10"))
    status, _, err = flowctl(folder, "swap", "--accept", "s/store")
    assert status == 2
    assert "did you mean 's/stored'?" in err
    assert flowctl(folder, "swap")[0] == 0


def test_delta_updates_are_not_sent_again_unless_accepted(tmp_path: Path) -> None:
    folder = begun(tmp_path, DELTAS)
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")
    assert status == 2
    assert "'s/stored' would send all delta updates of s/sums -> sums again" in err
    assert sums(folder) == {"odd": 4, "even": 2}
    assert flowctl(folder, "run", "--shadow", "--until-idle", "--accept", "s/stored")[0] == 0
    assert sums(folder) == {"odd": 40, "even": 20}


def wait_for(process: Flowctl, told: Path, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, told.read_text()
        assert time.monotonic() < deadline, told.read_text()
        time.sleep(0.05)


@pytest.mark.torture  # test_shadow_laws.py in one process
def test_run_swaps_while_documents_arrive(folder: Path) -> None:
    told = folder / "told"
    with told.open("ab") as stream:
        command = ["run", "--shadow", "--shards", "1", "--source", str(folder / "flow.yaml")]
        process = Flowctl(command, stderr=stream)
    numbers = iter(range(4, 1000))
    count = 3
    while "the new version is in force" not in told.read_text():
        count = next(numbers)
        ingest(folder, count)
        assert process.poll() is None, told.read_text()
    ingest(folder, count + 1)
    every = range(1, count + 2)
    expected = {"odd": 10 * sum(n for n in every if n % 2), "even": 10 * sum(n for n in every if not n % 2)}
    wait_for(process, told, lambda: sums(folder) == expected)
    wait_for(process, told, lambda: stored(folder) == expected)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")  # a supervisor repeats the command
    assert status == 0
    assert "the catalog is in force, and there is no shadow" in err


def begin_held(folder: Path) -> tuple[Flowctl, Path]:
    """A run that holds a shadow beside the live version, and what it says."""
    told = folder / "told"
    with told.open("ab") as stream:
        command = ["run", "--shadow", "--hold", "--shards", "1", "--source", str(folder / "flow.yaml")]
        process = Flowctl(command, stderr=stream)
    wait_for(process, told, lambda: "running 3 tasks" in told.read_text())
    return process, told


def test_running_shadow_is_swapped_by_another_process(folder: Path) -> None:
    process, told = begin_held(folder)
    ingest(folder, 4)
    wait_for(process, told, lambda: sums(folder) == {"odd": 4, "even": 6})
    status, _, err = flowctl(folder, "swap")
    assert status == 0
    assert "the running flowctl swaps as soon as" in err
    wait_for(process, told, lambda: "s/sums: the new version is in force from 20" in told.read_text())
    wait_for(process, told, lambda: stored(folder) == {"odd": 40, "even": 60})
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


def test_running_shadow_is_given_up_by_another_process(folder: Path) -> None:
    process, told = begin_held(folder)
    assert flowctl(folder, "shadow", "drop")[0] == 0
    ingest(folder, 5)
    assert process.wait(PATIENCE_SECONDS) == 2
    assert "another process has dropped the shadow, so this run ends" in told.read_text()
    assert sums(folder) == {"odd": 4, "even": 2}


def test_shadow_refuses_an_edit_that_the_endpoint_refuses(folder: Path) -> None:
    text = text_of(*SQLITE).replace("key: [/k]", "key: [/k, /sign]").replace("[k]", "[k, sign]")
    text = text.replace("AS k,", "AS k, 1 AS sign,").replace(
        "{type: string}, sum", "{type: string}, sign: {type: integer}, sum"
    )
    write_catalog(folder, text)
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")
    assert status == 2
    assert "'s/stored' would stop, and keep the rows of the former version: the connector no longer accepts" in err
    assert sums(folder) == stored(folder) == {"odd": 4, "even": 2}


def test_load_that_a_shadow_has_read_is_undone_after_its_end(tmp_path: Path) -> None:
    write_catalog(tmp_path, text_of(*SQLITE).partition("materializations")[0])
    line = '{"id": 1, "n": 1}\n'
    assert flowctl(tmp_path, "ingest", "--collection", "s/orders", "--load-id", "a", "-", text=line)[0] == 0
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    write_catalog(tmp_path, text_of(*SQLITE, factor=" * 10").partition("materializations")[0])
    assert flowctl(tmp_path, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    undo = ["ingestions", "undo", "--collection", "s/orders", "--load-id", "a", "--reset-readers"]
    status, _, err = flowctl(tmp_path, *undo)
    assert status == 1
    assert "'s/sums@2' has read up to" in err
    assert "drop the shadow: flowctl shadow drop" in err
    assert "--reset-readers" not in err
    assert flowctl(tmp_path, "shadow", "drop")[0] == 0
    assert flowctl(tmp_path, *undo)[0] == 0


BOUND = """
collections:
  s/orders:
    schema: {type: object, required: [id], properties: {id: {type: integer}, n: {type: integer}, note: {type: string}}}
    key: [/id]
materializations:
  s/stored:
    endpoint: {connector: {image: IMAGE, config: CONFIG}}
    bindings: [{source: s/orders, resource: RESOURCE, fields: {exclude: [note]}}]
"""
RAISED = "fields: {exclude: [n]}, backfill: 1"


def begin_bound(folder: Path, image: str = "materialize-sqlite", config: str = "{path: stored.db}") -> Path:
    """A folder that has stored three orders, and whose binding is edited."""
    resource = "{path: orders, format: jsonl}" if image == "materialize-files" else "{table: orders}"
    text = BOUND.replace("IMAGE", image).replace("CONFIG", config).replace("RESOURCE", resource)
    write_catalog(folder, text)
    ingest(folder, 1, 2, 3)
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    write_catalog(folder, text.replace("fields: {exclude: [note]}", RAISED))
    return folder


def orders(folder: Path, table: str = "orders") -> list[int]:
    with closing(sqlite3.connect(folder / "stored.db")) as database:
        return [number for (number,) in database.execute(f'SELECT id FROM "{table}" ORDER BY id')]


def second_tables(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "stored.db")) as database:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE '%refill%'"
        return [name for (name,) in database.execute(query)]


def test_shadow_of_a_binding_is_held_compared_and_swapped(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    status, _, err = flowctl(folder, "run", "--shadow", "--hold", "--until-idle")
    assert status == 0, err
    assert "a second table is filled beside the table of 's/orders -> orders'" in err
    assert "the shadow of 's/stored' is complete; compare it: flowctl diff" in err
    status, _, err = flowctl(folder, "run", "--until-idle")
    assert status == 2
    assert "a shadow of s/stored is being filled" in err
    line = '{"id": 4, "n": 4, "note": "four"}\n'
    assert flowctl(folder, "ingest", "--collection", "s/orders", "-", text=line)[0] == 0
    assert flowctl(folder, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    (beside,) = second_tables(folder)
    assert orders(folder) == orders(folder, beside) == [1, 2, 3, 4]
    _, _, err = flowctl(folder, "status")
    assert "s/stored: the second table of 's/orders -> orders' is filled up to 20" in err
    assert "the rows of the second tables replace the live rows after: flowctl swap" in err
    _, out, err = flowctl(folder, "diff")
    shown = {"task": "s/stored", "collection": "s/orders", "table": "orders"}
    assert [json.loads(row) for row in out.splitlines()] == [
        {**shown, "key": [4], "before": {"note": None}, "after": {"note": "four"}}
    ]
    assert "rows of 'orders' that the swap changes: 0 inserted, 1 updated, 0 deleted" in err
    status, _, err = flowctl(folder, "swap")
    assert status == 0, err
    assert second_tables(folder) == []
    ingest(folder, 5)
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    assert orders(folder) == [1, 2, 3, 4, 5]
    assert flowctl(folder, "diff")[0] == 2


def test_run_swaps_a_binding_and_continues(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")
    assert status == 0, err
    assert "s/stored: the rows of the second table replace the former rows" in err
    assert second_tables(folder) == []
    assert orders(folder) == [1, 2, 3]


def test_shadow_that_has_stopped_is_not_reported_as_complete(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    assert flowctl(folder, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    (beside,) = second_tables(folder)
    with closing(sqlite3.connect(folder / "stored.db")) as database:
        refuse = "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        database.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {beside} {refuse}")
    ingest(folder, 4)
    status, _, err = flowctl(folder, "run", "--shadow", "--hold", "--until-idle")
    assert status == 1
    assert "the shadow of 's/stored' stopped, and its live rows continue" in err
    assert "is complete" not in err
    assert orders(folder) == [1, 2, 3, 4]


def test_shadow_of_a_stopped_materialization_is_not_swapped(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    assert flowctl(folder, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    assert flowctl(folder, "collections", "truncate", "--collection", "s/orders")[0] == 0
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")
    assert status == 1
    assert "s/stored stopped" in err
    assert "the second table replace the former rows" not in err
    assert len(second_tables(folder)) == 1
    assert flowctl(folder, "shadow", "drop")[0] == 0
    assert second_tables(folder) == []
    assert orders(folder) == [1, 2, 3]


@pytest.mark.torture  # test_binding_shadow.py edits the catalog beside a shadow
def test_swap_after_another_edit_leaves_the_shadow_held(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    assert flowctl(folder, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    catalog = folder / "flow.yaml"
    edited = catalog.read_text()
    catalog.write_text(edited.replace("backfill: 1", "backfill: 2"))
    status, _, err = flowctl(folder, "swap")
    assert status == 2
    assert "the catalog was edited since the shadow began" in err
    catalog.write_text(edited)
    assert "replace the live rows after: flowctl swap" in flowctl(folder, "status")[2]
    assert flowctl(folder, "swap")[0] == 0
    assert second_tables(folder) == []


def test_running_shadow_of_a_binding_is_given_up_by_another_process(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    told = folder / "told"
    with told.open("ab") as stream:
        process = Flowctl(["run", "--shadow", "--hold", "--source", str(folder / "flow.yaml")], stderr=stream)
    wait_for(process, told, lambda: second_tables(folder))
    status, _, err = flowctl(folder, "shadow", "drop")
    assert status == 0, err
    assert "s/stored: the second table of 's/orders -> orders' was dropped" in err
    ingest(folder, 5)
    assert process.wait(PATIENCE_SECONDS) in (1, 2)  # the run may notice that it is fenced before the shadow is gone
    ends = "another process has dropped the shadow of s/stored", "runs 's/stored' now"
    assert any(end in told.read_text() for end in ends), told.read_text()
    assert second_tables(folder) == []
    assert orders(folder) == [1, 2, 3]


def test_endpoint_without_tables_refuses_a_shadow(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path, "materialize-files", "{path: files}")
    status, _, err = flowctl(folder, "run", "--shadow", "--until-idle")
    assert status == 2
    assert "'s/stored' cannot fill a table beside that of 's/orders -> orders': delta updates are not replaced" in err
    assert "let the next run apply the edit: flowctl run" in err


@pytest.mark.torture  # test_shadow_kills.py kills swaps
def test_decided_swap_is_not_held_after_a_kill(tmp_path: Path) -> None:
    folder = begin_bound(tmp_path)
    hold = ("run", "--shadow", "--hold", "--until-idle")
    assert flowctl(folder, *hold)[0] == 0
    killed = flowctl(folder, "swap", env={**BARE, "FLOW_FAILPOINT": "swap.committed"})
    assert killed[0] == -signal.SIGKILL
    assert len(second_tables(folder)) == 1
    status, _, err = flowctl(folder, *hold)
    assert status == 0, err
    assert "is complete; compare it" not in err
    assert second_tables(folder) == []
    assert orders(folder) == [1, 2, 3]


PAIR = """
collections:
  s/orders:
    schema: {type: object, required: [id], properties: {id: {type: integer}, n: {type: [integer, string]}}}
    key: [/id]
  s/good:
    schema: {type: object, required: [id], properties: {id: {type: integer}, version: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: t, source: s/orders, shuffle: any, lambda: "SELECT $id, 1 AS version"}]}
  s/bad:
    schema: {type: object, required: [id], properties: {id: {type: integer}, version: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: t, source: s/orders, shuffle: any, lambda: "SELECT $id, 1 AS version"}]}
materializations:
  s/stored:
    endpoint: {connector: {image: materialize-sqlite, config: {path: stored.db}}}
    bindings: [{source: s/good, resource: {table: good}}, {source: s/bad, resource: {table: bad}}]
"""


def test_tables_of_a_swap_wait_for_one_another(tmp_path: Path) -> None:
    """A derivation of the group fails after the swap: the rows of both tables stay, until one table no longer waits."""

    def versions(table: str) -> set[tuple[int]]:
        with closing(sqlite3.connect(tmp_path / "stored.db")) as database:
            return set(database.execute(f"SELECT version FROM {table}"))

    write_catalog(tmp_path, PAIR)
    ingest(tmp_path, 1, 2)
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    good = PAIR.replace("1 AS version", "2 AS version")
    bad = "json_extract($n, '$') + 2 - $n AS version".join(good.rsplit("2 AS version", 1))
    write_catalog(tmp_path, bad)
    assert flowctl(tmp_path, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    line = '{"id": 3, "n": "not JSON"}\n'
    assert flowctl(tmp_path, "ingest", "--collection", "s/orders", "-", text=line)[0] == 0
    tick = int(time.time()) + 1
    while time.time() < tick:  # from then on, the refill of the failing derivation needs the document
        time.sleep(0.02)
    assert flowctl(tmp_path, "swap")[0] == 0
    status, _, err = flowctl(tmp_path, "run", "--until-idle")
    assert status == 1
    assert "s/bad stopped" in err
    assert versions("good") == versions("bad") == {(1,)}
    write_catalog(tmp_path, bad.replace(", {source: s/bad, resource: {table: bad}}", ""))
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 1
    assert (versions("good"), versions("bad")) == ({(2,)}, {(1,)})
    write_catalog(tmp_path, good)
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    assert versions("good") == versions("bad") == {(2,)}


def test_live_documents_are_explained_beside_a_shadow_with_another_key(tmp_path: Path) -> None:
    text = text_of(*SQLITE).partition("materializations")[0]
    write_catalog(tmp_path, text)
    ingest(tmp_path, 1, 2, 3)
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
    keyed = text.replace("key: [/k]", "key: [/k, /sign]").replace("required: [k]", "required: [k, sign]")
    keyed = keyed.replace("properties: {k:", "properties: {sign: {type: integer}, k:").replace(
        "AS k,", "AS k, 1 AS sign,"
    )
    write_catalog(tmp_path, keyed)
    assert flowctl(tmp_path, "run", "--shadow", "--hold", "--until-idle")[0] == 0
    status, _, err = flowctl(tmp_path, "verify", "--replay")
    assert status == 0, err
    for name, key in (("s/sums", '["odd"]'), ("s/sums@2", '["odd", 1]')):
        status, out, err = flowctl(tmp_path, "why", "--collection", name, "--key", key)
        assert status == 0, err
        assert json.loads(out)["value"]["sum"] == 4
    write_catalog(tmp_path, keyed.replace("1 AS sign", "2 AS sign"))
    status, _, err = flowctl(tmp_path, "why", "--collection", "s/sums@2", "--key", '["odd", 1]')
    assert status == 2
    assert "the catalog was edited since the shadow began" in err


def test_split_says_that_a_shadow_keeps_its_shards(folder: Path) -> None:
    assert flowctl(folder, "run", "--shadow", "--hold", "--until-idle", "--shards", "1")[0] == 0
    status, _, err = flowctl(folder, "split", "--task", "s/sums", "--shards", "4")
    assert (status, err.splitlines()) == (
        0,
        [
            "s/sums has 4 shards",
            "the swap keeps the number of shards of s/sums@2 (1): split the task again after it",
        ],
    )
