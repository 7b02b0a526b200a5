"""`flowctl state`: the states of a task's shards at its last commit, read without stopping or changing anything."""

from __future__ import annotations

import os
import select
import signal
import tempfile
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import cast

import orjson
import pytest
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.errors import UsageError
from derive.protocol.specs import DerivationSpec
from derive.shard.inspection import shard_of_key

CATALOG = """\
collections:
  shop/deliveries:
    key: [/id]
    schema:
      type: object
      required: [id, item, count]
      properties: {id: {type: integer}, item: {type: string}, count: {type: integer}}
  shop/stock:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, left: {type: integer}}}
    derive:
      using:
        sqlite:
          migrations:
            - |
              CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL, packed BLOB);
              CREATE TABLE seen (id INTEGER PRIMARY KEY);
              CREATE VIRTUAL TABLE words USING fts5(item);
      transforms:
        - name: fromDeliveries
          source: shop/deliveries
          shuffle: {key: [/item]}
          lambda: |
            INSERT INTO stock VALUES ($item, $count, x'01') ON CONFLICT DO UPDATE SET count = count + excluded.count;
            INSERT INTO seen VALUES ($id);
            INSERT INTO words VALUES ($item);
            SELECT $item, (SELECT count FROM stock WHERE item = $item) AS left;
  shop/copies:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: t, source: shop/deliveries, shuffle: any, lambda: SELECT $id;}]
"""
TOTALS = """\
  shop/totals:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, total: {type: integer}}}
    derive:
      using: {typescript: {module: totals.ts}}
      transforms: [{name: fromDeliveries, source: shop/deliveries, shuffle: {key: [/item]}}]
"""
MODULE = """\
import { Document, IDerivation, SourceFromDeliveries } from 'flow/shop/totals.ts';

type State = { totals?: Record<string, number>; last?: string };

export class Derivation extends IDerivation {
    state: { totals: Record<string, number>; last: string };

    constructor(open: { state: State }) {
        super(open);
        this.state = { totals: {}, last: '', ...open.state };
    }

    fromDeliveries({ doc }: { doc: SourceFromDeliveries }): Document[] {
        this.state.totals[doc.item] = (this.state.totals[doc.item] ?? 0) + doc.count;
        this.state.last = doc.item;
        return [{ item: doc.item, total: this.state.totals[doc.item] }];
    }

    override startCommit() {
        return { state: { updated: this.state, mergePatch: false } };
    }
}
"""
ITEMS = ["tea", "cup", "rye", "jam", "bun", "oil"]
OWNERS = {"tea": 1, "cup": 3, "rye": 0, "jam": 1, "bun": 2, "oil": 1}
RUN = ["run", "--until-idle", "--shards", "4", "--local-documents", "1000000"]
STATE = ["state", "--task", "shop/stock"]


def ingest(folder: Path, first: int) -> None:
    lines = [{"id": first + at, "item": item, "count": first + at} for at, item in enumerate(ITEMS)]
    text = b"\n".join(map(orjson.dumps, lines)).decode() + "\n"
    status, _, err = flowctl(folder, "ingest", "--collection", "shop/deliveries", text=text)
    assert status == 0, err


def rows(folder: Path, *arguments: str) -> list[dict[str, object]]:
    before = listed(folder)
    status, out, err = flowctl(folder, *arguments)
    assert status == 0, err
    assert listed(folder) == before
    return [orjson.loads(line) for line in out.splitlines()]


def listed(folder: Path) -> list[tuple[str, int]]:
    """Return the paths of all files of the data folder, SQLite's own aside, with the sizes of states."""
    files = [path for path in (folder / ".flow").rglob("*") if not path.name.startswith("metadata.db-")]
    return sorted((str(path), path.stat().st_size if path.name.startswith("state.db") else 0) for path in files)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose derivations have run with four shards, and which no test changes."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "flow.yaml").write_text(CATALOG)
    ingest(folder, 1)
    ingest(folder, 11)
    status, _, err = flowctl(folder, *RUN)
    assert status == 0, err
    return folder


def test_state_unites_the_tables_of_all_shards(stored: Path) -> None:
    found = rows(stored, *STATE, "SELECT flow_shard, item, count, packed FROM stock ORDER BY item")

    expected = [(OWNERS[item], item, 12 + 2 * at, "AQ==") for at, item in enumerate(ITEMS)]
    assert [tuple(row.values()) for row in found] == sorted(expected, key=lambda row: row[1])
    tables = {str(row["table"]): row for row in rows(stored, *STATE)}
    assert {name: (row["rows"], row["columns"]) for name, row in tables.items()} == {
        "seen": (12, "id"),
        "stock": (6, "item, count, packed"),
        "words": (12, "item"),
    }


def test_state_of_a_key_is_read_from_its_shard(stored: Path) -> None:
    for item in ("tea", "oil"):
        found = rows(stored, *STATE, "--key", f'"{item}"', "SELECT flow_shard, item FROM stock")
        assert {row["flow_shard"] for row in found} == {OWNERS[item]}
        assert {row["item"] for row in found} == {other for other in ITEMS if OWNERS[other] == OWNERS[item]}
    [counted] = rows(stored, *STATE, f"SELECT count(*) AS n FROM shard{OWNERS['tea']}.words WHERE words MATCH 'tea'")
    assert counted == {"n": 2}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DELETE FROM shard1.stock"], "the query may only read the tables of the state"),
        (["CREATE TABLE t (a)"], "the query may only read the tables of the state"),
        (["ATTACH 'other.db' AS other"], "the query may only read the tables of the state"),
        (["PRAGMA shard1.journal_mode = DELETE"], "the query may only read the tables of the state"),
        (["SELECT 1; SELECT 2"], "the query has more than one statement"),
        (["SELECT missing FROM stock"], "the query fails: no such column: missing\n  --> SQL:1:8"),
        (["SELECT 1 AS a, 2 AS a"], "two columns of the query have the name 'a'"),
        (["SELECT CAST(x'ff' AS TEXT) AS a"], "the query returns a text that is not valid UTF-8"),
        (["--key", "7", "SELECT 1"], "a shuffle key of 'shop/stock' is [string], and not 7"),
        (["--key", "[tea", "SELECT 1"], "--key is not JSON: [tea"),
        (
            [
                "--timeout",
                "0.2",
                "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
            ],
            "the query took longer than 0.2 s",
        ),
        (
            ["--memory", "16", "SELECT group_concat(hex(zeroblob(4000000))) FROM stock, stock AS other"],
            "the query needs more than 16 MB",
        ),
    ],
)
def test_state_refuses_writes_and_expensive_queries(stored: Path, arguments: list[str], message: str) -> None:
    before = listed(stored)
    status, out, err = flowctl(stored, *STATE, *arguments)

    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}"), err
    assert listed(stored) == before


def test_key_of_a_shard_may_be_a_number_beyond_a_double() -> None:
    shuffle = SimpleNamespace(kind="key", key_types=["integer"])
    spec = cast(DerivationSpec, SimpleNamespace(transforms=[SimpleNamespace(shuffle=shuffle)], name="shop/stock"))

    assert shard_of_key(spec, 10**400, 1) == shard_of_key(spec, 1.0, 1) == 0
    with pytest.raises(UsageError, match="and not 1.5"):
        shard_of_key(spec, 1.5, 1)


def test_state_without_tables_says_so(stored: Path) -> None:
    status, out, err = flowctl(stored, "state", "--task", "shop/copies")
    assert (status, out) == (0, "")
    assert "'shop/copies' has no tables" in err


def test_state_needs_a_task_with_state(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    ingest(tmp_path, 1)
    status, _, err = flowctl(tmp_path, *STATE)
    assert (status, err.splitlines()[0]) == (2, "error: 'shop/stock' has no state: it has never run")
    status, _, err = flowctl(stored, "state", "--task", "shop/copies", "--key", "1")
    assert err.startswith("error: 'shop/copies' has no shuffle key: each of its documents may come to any shard")
    assert rows(stored, "state", "--task", "shop/copies") == []


def test_interrupted_state_command_leaves_no_copy(stored: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sql = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
        environment = {**BARE, "TMPDIR": scratch}
        for stop in (signal.SIGINT, signal.SIGTERM):
            with Flowctl([*STATE, sql], cwd=stored, env=environment, stdout=PIPE, stderr=PIPE) as process:
                assert process.stdout is not None
                assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
                assert list(Path(scratch).iterdir()), "the copies are elsewhere"
                process.send_signal(stop)
                process.communicate(timeout=PATIENCE_SECONDS)
            assert (process.returncode, list(Path(scratch).iterdir())) == (130, [])


def test_state_command_shows_the_last_commit(tmp_path: Path) -> None:
    """A prepared transaction that was never committed is not shown."""
    (tmp_path / "flow.yaml").write_text(CATALOG)
    ingest(tmp_path, 1)
    assert flowctl(tmp_path, *RUN)[0] == 0
    committed = rows(tmp_path, *STATE, "SELECT * FROM stock ORDER BY item")
    ingest(tmp_path, 11)
    killed, _, _ = flowctl(tmp_path, *RUN, env={**BARE, "FLOW_FAILPOINT": "state.committed:2"})
    assert killed == -signal.SIGKILL

    assert rows(tmp_path, *STATE, "SELECT * FROM stock ORDER BY item") == committed
    assert flowctl(tmp_path, *RUN)[0] == 0
    sums = "SELECT sum(count) AS sum FROM stock"
    assert rows(tmp_path, *STATE, sums) == [{"sum": sum(range(1, 7)) + sum(range(11, 17))}]


def test_state_of_a_running_task_does_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    ingest(tmp_path, 1)
    run = [argument for argument in RUN if argument != "--until-idle"]
    follow = ["collections", "read", "--collection", "shop/stock", "--follow", "--limit"]
    with Flowctl(
        [*run, "--task", "shop/stock"], cwd=tmp_path, env=BARE, stdout=PIPE, stderr=PIPE, text=True
    ) as running:
        for number in (1, 2, 3):
            assert flowctl(tmp_path, *follow, str(number * len(ITEMS)))[0] == 0
            status, out, err = flowctl(tmp_path, *STATE, "SELECT count(*) AS seen FROM seen")
            assert (status, out) == (0, f'{{"seen":{number * len(ITEMS)}}}\n'), err
            ingest(tmp_path, 10 * number + 1)
        running.send_signal(signal.SIGINT)
        _, err_text = running.communicate(timeout=PATIENCE_SECONDS)
    assert "error" not in err_text
    assert not list((tmp_path / ".flow").rglob("backup.lock"))


@pytest.mark.deno
def test_state_of_a_module_is_shown_by_key(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG + TOTALS)
    (tmp_path / "totals.ts").write_text(MODULE)
    ingest(tmp_path, 1)
    environment = {**BARE, "PATH": os.environ["PATH"]}
    status, _, err = flowctl(tmp_path, *RUN, "--task", "shop/totals", env=environment)
    assert status == 0, err

    found = rows(tmp_path, "state", "--task", "shop/totals", "SELECT * FROM state WHERE field = 'totals' ORDER BY key")
    assert [tuple(row.values()) for row in found] == sorted(
        [(OWNERS[item], "totals", item, at + 1) for at, item in enumerate(ITEMS)], key=lambda row: row[2]
    )
    for key in ('"rye"', '["rye"]'):
        assert rows(tmp_path, "state", "--task", "shop/totals", "--key", key) == [
            {"flow_shard": OWNERS["rye"], "field": "totals", "key": "rye", "value": 3}
        ]
    last = rows(tmp_path, "state", "--task", "shop/totals", "--key", '"tea"', "SELECT * FROM state WHERE key IS NULL")
    assert [(row["field"], orjson.loads(str(row["value"])) in ITEMS) for row in last] == [("last", True)]


PYTHON = """\
  shop/counts:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, total: {type: integer}}}
    derive:
      using: {python: {module: counts.py}}
      transforms: [{name: fromDeliveries, source: shop/deliveries, shuffle: {key: [/item]}}]
"""
COUNTS = """\
from collections.abc import AsyncIterator

from shop.counts import Document, IDerivation, Request


class Derivation(IDerivation):
    async def from_deliveries(self, read: Request.ReadFromDeliveries) -> AsyncIterator[Document]:
        self.state = {"total": self.state.get("total", 0) + read.doc.count}
        print("counted", read.doc.item)
        yield Document(item=read.doc.item, total=self.state["total"])
"""


def test_state_and_previews_of_a_python_module(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG + PYTHON)
    (tmp_path / "counts.py").write_text(COUNTS)
    ingest(tmp_path, 1)
    ingest(tmp_path, 11)
    status, _, err = flowctl(tmp_path, *RUN, "--task", "shop/counts")
    assert status == 0, err

    task = ("--task", "shop/counts")
    assert rows(tmp_path, "state", *task, "--key", '"rye"') == [
        {"flow_shard": OWNERS["rye"], "key": "rye", "keys": '["rye"]', "state": '{"total":16}'}
    ]
    tables = rows(tmp_path, "state", *task)
    assert [(row["table"], row["rows"], row["shards"]) for row in tables] == [
        ("state", 0, "0, 1, 2, 3"),
        ("keys", len(ITEMS), "0, 1, 2, 3"),
    ]
    assert rows(tmp_path, "preview", *task, "--diff") == []
    (shown,) = rows(tmp_path, "preview", *task, "--show-state", "--limit", "1")
    assert shown["published"] == [{"item": "tea", "total": 1}]
    assert shown["state"] == [{"table": "state", "at": '/["tea"]', "new": {"total": 1}}]
    [logged] = cast("list[dict[str, str]]", shown["log"])
    place = "transform 'fromDeliveries', document "
    assert (logged["level"], logged["message"].split("{")[0]) == ("info", f"counted tea  ({place}")
