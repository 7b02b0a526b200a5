"""`flowctl preview`: the effects of documents, and differences to stored results, with nothing committed or left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any

import orjson
import pytest
from checkout import REPOSITORY
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.cli.preview import with_preview
from derive.errors import FlowError, LambdaError, SchemaViolation, StorageError, document_fact

CATALOG = """\
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id, item, count]
      properties: {id: {type: integer}, item: {type: string}, count: {type: integer}, at: {type: string}}
  shop/stock:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, left: {type: [integer, "null"]}}}
    derive:
      using:
        sqlite:
          migrations:
            - |
              CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL, packed BLOB) WITHOUT ROWID;
              CREATE TABLE seen (id INTEGER NOT NULL);
              CREATE VIRTUAL TABLE words USING fts5(item);
              INSERT INTO stock VALUES ('tea', 10, NULL);
      transforms:
        - name: fromOrders
          source: shop/orders
          shuffle: {key: [/item]}
          lambda: |
            INSERT INTO stock VALUES ($item, 0, x'01') ON CONFLICT DO NOTHING;
            UPDATE stock SET count = count - $count WHERE item = $item;
            DELETE FROM stock WHERE item = $item AND count = 0;
            DELETE FROM seen;
            INSERT INTO seen VALUES ($id);
            INSERT INTO words VALUES ($item);
            SELECT $item, (SELECT count FROM stock WHERE item = $item) AS left;
  shop/late:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, times: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms:
        - name: fromStock
          source: shop/stock
          shuffle: any
          readDelay: 1h
          lambda: SELECT $item, 1 AS times;
        - name: again
          source: shop/late
          shuffle: any
          lambda: SELECT $item, $times + 1 AS times WHERE $times < 3;
"""
ORDERS = [("tea", 4), ("cup", 1), ("tea", 6), ("cup", 2), ("pot", 1)]
RUN = ["run", "--until-idle", "--shards", "4", "--local-documents", "1000000"]
PREVIEW = ["preview", "--task", "shop/stock"]
WITH_DENO = {**BARE, "PATH": os.environ["PATH"]}
COMPACTED = "the history of 'shop/orders' before 2024-01-01T00:00:04.000000Z is compacted"


def lines_of(orders: list[tuple[str, int]]) -> str:
    documents = [
        {"id": number, "item": item, "count": count, "at": f"2024-01-01T00:00:{number:02d}Z"}
        for number, (item, count) in enumerate(orders, 1)
    ]
    return b"\n".join(map(orjson.dumps, documents)).decode() + "\n"


def listed(folder: Path) -> list[tuple[str, int]]:
    """Return the paths and sizes of all files of the data folder, SQLite's own aside."""
    files = [path for path in (folder / ".flow").rglob("*") if not path.name.startswith("metadata.db-")]
    return sorted((str(path), path.stat().st_size if path.is_file() else 0) for path in files)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose derivations have run with four shards, and which no test changes."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "flow.yaml").write_text(CATALOG)
    load = ["ingest", "--collection", "shop/orders", "--clock", "/at"]
    status, _, err = flowctl(folder, *load, text=lines_of(ORDERS))
    assert status == 0, err
    status, _, err = flowctl(folder, *RUN)
    assert status == 0, err
    return folder


def preview(folder: Path, *arguments: str, env: dict[str, str] = BARE) -> tuple[list[Any], str]:
    """Return the rows and the notes of a preview, which leaves nothing behind."""
    before = listed(folder)
    with tempfile.TemporaryDirectory() as scratch:
        status, out, err = flowctl(folder, *arguments, env={**env, "TMPDIR": scratch})
        assert list(Path(scratch).glob("flowctl-*")) == []
    assert status == 0, err
    assert listed(folder) == before
    return [orjson.loads(line) for line in out.split("\n") if line], err


def test_preview_shows_what_each_document_published_and_changed(stored: Path) -> None:
    rows, _ = preview(stored, *PREVIEW, "--show-state", "--limit", "3")

    assert rows[0]["transform"] == "fromOrders"
    assert (rows[0]["source"], rows[0]["published_at"]) == ("shop/orders", "2024-01-01T00:00:01.000000Z")
    assert [row["document"]["id"] for row in rows] == [1, 2, 3]
    assert [row["published"] for row in rows] == [
        [{"item": "tea", "left": 6}],
        [{"item": "cup", "left": -1}],
        [{"item": "tea", "left": None}],
    ]
    assert [row["state"] for row in rows] == [
        [
            {
                "table": "stock",
                "old": {"item": "tea", "count": 10, "packed": None},
                "new": {"item": "tea", "count": 6, "packed": None},
            },
            {"table": "seen", "new": {"id": 1}},
        ],
        [
            {"table": "stock", "new": {"item": "cup", "count": -1, "packed": "AQ=="}},
            {"table": "seen", "old": {"id": 1}, "new": {"id": 2}},
        ],
        [
            {"table": "stock", "old": {"item": "tea", "count": 6, "packed": None}},
            {"table": "seen", "old": {"id": 2}, "new": {"id": 3}},
        ],
    ]


def test_preview_from_a_time_processes_earlier_documents_first(stored: Path) -> None:
    rows, _ = preview(stored, *PREVIEW, "--from", "2024-01-01T00:00:03Z", "--limit", "2")

    assert [(row["document"]["id"], row["published"][0]["left"]) for row in rows] == [(3, None), (4, -3)]
    delayed, _ = preview(stored, "preview", "--task", "shop/late", "--from", "2024-01-01T00:00:03Z")
    assert [row["document"]["left"] for row in delayed if row["transform"] == "fromStock"] == [None, -3, -1]


def test_preview_runs_several_derivations_in_order_with_their_delays(stored: Path) -> None:
    rows, _ = preview(stored, *PREVIEW, "--task", "shop/late", "--limit", "1")

    assert [(row["task"], row["transform"], row["at"][:19], row["published"]) for row in rows] == [
        ("shop/stock", "fromOrders", "2024-01-01T00:00:01", [{"item": "tea", "left": 6}]),
        ("shop/late", "fromStock", "2024-01-01T01:00:01", [{"item": "tea", "times": 1}]),
        ("shop/late", "again", "2024-01-01T01:00:02", [{"item": "tea", "times": 2}]),
        ("shop/late", "again", "2024-01-01T01:00:03", [{"item": "tea", "times": 3}]),
        ("shop/late", "again", "2024-01-01T01:00:04", []),
    ]


def test_preview_of_a_reader_takes_stored_derived_documents(stored: Path) -> None:
    rows, _ = preview(stored, "preview", "--task", "shop/late", "--limit", "2")

    assert [row["document"]["left"] for row in rows if row["transform"] == "fromStock"] == [6, -1]


def test_diff_without_documents_names_all_stored_keys(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    assert flowctl(folder, "collections", "truncate", "--collection", "shop/orders")[0] == 0

    rows, err = preview(folder, *PREVIEW, "--diff")
    assert [row["key"] for row in rows] == ['["cup"]', '["pot"]', '["tea"]']
    assert "3 keys would differ" in err
    assert preview(folder, *PREVIEW) == ([], "no document was processed\n")


def test_preview_refuses_a_disabled_derivation(tmp_path: Path) -> None:
    disabled = CATALOG.replace("    derive:\n", "    derive:\n      shards: {disable: true}\n", 1)
    (tmp_path / "flow.yaml").write_text(disabled)
    status, _, err = flowctl(tmp_path, *PREVIEW)
    assert (status, err.splitlines()[0]) == (2, "error: 'shop/stock' is disabled, so it has no effects")


def test_compacted_history_is_noted(stored: Path, tmp_path: Path) -> None:
    """A preview, the versions of a key and a plan of a second reading say that earlier documents are reduced."""
    folder = shutil.copytree(stored, tmp_path / "copy")
    assert COMPACTED not in flowctl(folder, *PREVIEW)[2]
    assert flowctl(folder, "compact", "--since", "2024-01-01T00:00:04Z", "--collection", "shop/orders")[0] == 0

    assert COMPACTED in flowctl(folder, *PREVIEW)[2]
    assert (
        COMPACTED in flowctl(folder, "collections", "read", "--collection", "shop/orders", "--key", "1", "--history")[2]
    )
    plan = ("plan", "--task", "shop/stock", "-o", "json")
    assert orjson.loads(flowctl(folder, *plan)[1])["notes"] == []
    again = CATALOG.replace("- name: fromOrders", "- name: fromOrders\n          backfill: 1")
    (folder / "flow.yaml").write_text(again)
    assert orjson.loads(flowctl(folder, *plan)[1])["notes"] == [
        f"{COMPACTED}: reading it from the start gives one document per key"
    ]


def test_preview_of_a_fixture_needs_no_stored_documents(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    (tmp_path / ".flow").mkdir()
    (tmp_path / "orders.yaml").write_text("- {id: 7, item: tea, count: 1}\n- {id: 8, item: tea, count: 2}\n")
    (tmp_path / "orders.jsonl").write_text('{"id":7,"item":"tea","count":1}\n{"id":8,"item":"tea","count":2}\n')
    (tmp_path / "separated.jsonl").write_text(
        '{"id":7,"item":"tea","count":1,"x":"a\u2028b\x85c"}\r\n', encoding="utf-8"
    )
    (tmp_path / "both.json").write_text('{"shop/orders":[{"id":7,"item":"tea","count":1}]}')
    for name, expected in (
        ("orders.yaml", [9, 7]),
        ("orders.jsonl", [9, 7]),
        ("both.json", [9]),
        ("separated.jsonl", [9]),
    ):
        rows, _ = preview(tmp_path, *PREVIEW, "--fixture", name)
        assert [row["published"][0]["left"] for row in rows] == expected
        assert rows[0]["at"].startswith("2024-01-01T00:00:00")


def test_diff_of_an_unchanged_catalog_is_empty(stored: Path) -> None:
    for limit in ([], ["--limit", "2"], ["--limit", "4"]):
        rows, err = preview(stored, *PREVIEW, "--task", "shop/late", "--diff", *limit)
        assert (rows, err) == ([], "no key would differ\n")


def test_diff_of_an_edited_catalog_names_keys_and_places(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    edited = CATALOG.replace("SELECT $item, (SELECT", "SELECT $item, 2 * (SELECT")
    (folder / "flow.yaml").write_text(
        edited.replace("lambda: SELECT $item, 1 AS times", "lambda: SELECT $item, 1 AS times WHERE $item <> 'pot'")
    )

    rows, err = preview(folder, *PREVIEW, "--task", "shop/late", "--diff")
    assert rows == [
        {"task": "shop/stock", "key": '["cup"]', "at": "/left", "stored": -3, "preview": -6},
        {"task": "shop/stock", "key": '["pot"]', "at": "/left", "stored": -1, "preview": -2},
        {"task": "shop/late", "key": '["pot"]', "at": "", "stored": {"item": "pot", "times": 3}},
    ]
    assert err == "3 keys would differ\n"
    rows, _ = preview(folder, *PREVIEW, "--diff", "--limit", "2")
    assert [(row["key"], row["stored"], row["preview"]) for row in rows] == [('["cup"]', -1, -2), ('["tea"]', 6, 12)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--fixture", "flow.yaml", "--limit", "1"],
            "all documents of a fixture are processed, so --fixture cannot be",
        ),
        (
            ["--fixture", "flow.yaml", "--diff"],
            "--fixture cannot be combined with --diff: the stored results follow from",
        ),
        (["--collection", "shop/orders"], "--collection needs --fixture"),
        (["--diff", "--show-state"], "--diff shows no single documents, so it cannot be combined with --show-state"),
        (["--diff", "--from", "2024-01-01T00:00:00Z"], "--diff shows no single documents, so it cannot be combined"),
        (
            ["--from", "noon"],
            "--from takes a time such as 2024-01-31T12:00:00Z, or a duration before now such as 1h, not noon",
        ),
        (
            ["--fixture", "flow.yaml"],
            "the fixture flow.yaml is neither a list of documents nor a mapping to such lists",
        ),
    ],
)
def test_preview_refuses_invalid_and_contradictory_options(stored: Path, arguments: list[str], message: str) -> None:
    status, out, err = flowctl(stored, *PREVIEW, *arguments)

    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}"), err


def test_failed_lambda_ends_a_preview_after_earlier_documents(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    (folder / "flow.yaml").write_text(
        CATALOG.replace("INSERT INTO seen VALUES ($id);", "INSERT INTO seen VALUES (iif($id = 2, NULL, $id));")
    )

    status, out, err = flowctl(folder, *PREVIEW)

    assert (status, len(out.splitlines())) == (1, 1)
    assert "NOT NULL constraint failed: seen.id" in err


def test_interrupted_preview_leaves_no_folder(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    (folder / "flow.yaml").write_text(CATALOG.replace("WHERE $times < 3", "WHERE $times >= 0"))  # has no end
    before = listed(folder)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = ["preview", "--task", "shop/late", "--limit", "1"]
    with Flowctl(command, cwd=folder, env={**BARE, "TMPDIR": str(scratch)}, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
        assert list(scratch.iterdir()), "the folder is elsewhere"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, list(scratch.iterdir()), listed(folder)) == (130, [], before)


@pytest.mark.torture  # test_preview_laws.py has random catalogs
@pytest.mark.deno
def test_previews_of_the_bank_equal_its_stored_results(tmp_path: Path) -> None:
    """A preview of a chain with a delay, a cycle and TypeScript gives the stored results."""
    folder = shutil.copytree(REPOSITORY / "examples" / "acmebank", tmp_path / "bank")
    names = ["alice", "bob", "carol", "dave"]
    transfers = [
        {"id": number, "sender": names[number % 4], "recipient": names[(number * 7 + 1) % 3], "amount": 30 + number * 5}
        for number in range(40)
    ]
    text = b"\n".join(map(orjson.dumps, transfers)).decode() + "\n"
    status, _, err = flowctl(folder, "ingest", "--collection", "acmeBank/transfers", text=text)
    assert status == 0, err
    status, _, err = flowctl(folder, *RUN, env=WITH_DENO)
    assert status == 0, err
    tasks = ["last-large-send", "first-send", "grouped-transfers", "transfer-outcomes", "balances"]
    chosen = [part for task in tasks for part in ("--task", f"acmeBank/{task}")]

    assert preview(folder, "preview", *chosen, "--diff", env=WITH_DENO) == ([], "no key would differ\n")
    rows, _ = preview(folder, "preview", *chosen, "--limit", "3", env=WITH_DENO)
    assert {row["task"] for row in rows} == {f"acmeBank/{task}" for task in tasks}


MODULE = """\
import { Document, IDerivation, SourceFromOrders } from 'flow/shop/totals.ts';

export class Derivation extends IDerivation {
    totals: Record<string, number>;
    changed: Record<string, number> = {};

    constructor(open: { state: { totals?: Record<string, number> } }) {
        super(open);
        this.totals = open.state.totals ?? {};
    }

    fromOrders({ doc }: { doc: SourceFromOrders }): Document[] {
        console.warn('order', doc.id);
        this.changed[doc.item] = this.totals[doc.item] = (this.totals[doc.item] ?? 0) + doc.count;
        return [];
    }

    override flush(): Document[] {
        return [{ item: 'all', total: 1 }];
    }

    override startCommit() {
        const updated = { totals: this.changed };
        this.changed = {};
        return { state: { updated, mergePatch: true } };
    }
}
"""
TOTALS = """\
  shop/totals:
    key: [/item]
    schema: {type: object, required: [item], properties: {item: {type: string}, total: {type: integer}}}
    derive:
      using: {typescript: {module: totals.ts}}
      transforms: [{name: fromOrders, source: shop/orders, shuffle: {key: [/item]}}]
"""


@pytest.mark.deno
def test_preview_of_a_module_shows_messages_state_and_flushes(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    (folder / "flow.yaml").write_text(CATALOG + TOTALS)
    (folder / "totals.ts").write_text(MODULE)

    rows, _ = preview(folder, "preview", "--task", "shop/totals", "--show-state", "--limit", "3", env=WITH_DENO)

    assert [(row["transform"], row["published"]) for row in rows] == [
        ("fromOrders", []),
        (None, [{"item": "all", "total": 1}]),
    ] * 3
    assert [row["log"] for row in rows[::2]] == [[{"level": "warn", "message": f"order {id_}"}] for id_ in (1, 2, 3)]
    assert [[(change["at"], change.get("old"), change["new"]) for change in row["state"]] for row in rows[::2]] == [
        [("/totals/tea", None, 4)],
        [("/totals/cup", None, 1)],
        [("/totals/tea", 4, 10)],
    ]


def test_messages_of_sql_are_in_the_log_and_in_previews(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "copy")
    (folder / "flow.yaml").write_text(
        CATALOG.replace("lambda: SELECT $item, 1 AS times", "lambda: SELECT console_log($item) AS item, 1 AS times")
    )
    rows, _ = preview(folder, "preview", "--task", "shop/late", "--limit", "1")
    message = 'tea  (transform \'fromStock\', document {"item":"tea","left":6})'
    assert rows[0]["log"] == [{"level": "info", "message": message}]
    assert rows[0]["published"] == [{"item": "tea", "times": 1}]
    catalog = (folder / "flow.yaml").read_text()
    (folder / "flow.yaml").write_text(
        catalog.replace("console_log($item)", "console_log('two' || char(10) || 'lines')")
    )
    _, shown, _ = flowctl(folder, "preview", "--task", "shop/late", "--limit", "1", "-o", "table")
    assert "\n  info       two\n             lines  (transform 'fromStock'," in shown
    (folder / "flow.yaml").write_text(catalog)

    assert flowctl(folder, "reset", "--task", "shop/late")[0] == 0
    assert flowctl(folder, *RUN)[0] == 0
    status, out, _ = flowctl(folder, "logs", "--task", "shop/late", "-o", "json")
    said = [orjson.loads(line) for line in out.splitlines()]
    assert (status, next(entry["message"] for entry in said if entry.get("by") == "lambda")) == (0, message)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            LambdaError("the lambda failed", facts=[document_fact("{}")]),
            "to see the effects of each document, without a run: flowctl preview --task a/b --limit 1000",
        ),
        (LambdaError("migration 1 was edited", hint="undo the edit"), "undo the edit"),
        (
            SchemaViolation("transform 't' of 'a/b' published an invalid document", facts=[document_fact("{}")]),
            (
                "to put such source documents aside: 'onViolation: quarantine' at the transform;"
                " to see the effects of each document, without a run: flowctl preview --task a/b --limit 1000"
            ),
        ),
        (
            SchemaViolation("flush() of 'a/b' published an invalid document", facts=[document_fact("{}")]),
            "to see the effects of each document, without a run: flowctl preview --task a/b --limit 1000",
        ),
        (SchemaViolation("transform 't' of 'a/b' reads an invalid document"), None),
        (StorageError("the disk is full"), None),
    ],
)
@pytest.mark.parametrize("task", ["a/b", "a/b@2"])
def test_error_of_a_lambda_names_the_preview_of_its_task(task: str, error: FlowError, hint: str | None) -> None:
    hinted = with_preview(task, error)
    assert (hinted.message, hinted.hint, type(hinted)) == (error.message, hint, type(error))
    assert hinted.to_json() == {**error.to_json(), "hint": hint}
