"""`collections read` of some documents: by key, by a condition of SQL, the first ones, and the versions of a key."""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path
from subprocess import PIPE

import orjson
import pytest
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS

from derive.catalog import load
from derive.contents.reads import packed_key
from derive.document.key import pack
from derive.errors import UsageError
from derive.storage.store import Store
from derive.storage.table_types import TableColumn

CATALOG = """\
collections:
  a/b:
    schema:
      type: object
      properties:
        id: {type: string}
        day: {type: integer}
        at: {type: string}
        n: {type: number, reduce: {strategy: sum}}
        note: {type: [string, "null"]}
      required: [id, day]
      reduce: {strategy: merge}
    key: [/id, /day]
  a/c:
    schema: {type: object, properties: {id: {type: string}, at: {type: string}}, required: [id]}
    key: [/id]
  sql/public/t:
    schema: {type: object, properties: {n: {type: integer}}, required: [n]}
    key: [/n]
"""
READ = ["collections", "read", "--collection", "a/b"]
DOCUMENTS = [
    ("ann", 1, 1.0, "x"),
    ("ben", 1, 2.0, None),
    ("ann", 1, 3.0, None),
    ("ann", 2, 5.0, "y"),
    ("ben", 1, 8.0, "x"),
]


def ingest(folder: Path, documents: list[tuple[str, int, float, str | None]], first: int) -> None:
    lines = [
        orjson.dumps({"id": id_, "day": day, "n": n, "note": note, "at": f"1970-01-01T00:00:{first + number:02d}Z"})
        for number, (id_, day, n, note) in enumerate(documents)
    ]
    status, _, err = flowctl(
        folder, "ingest", "--collection", "a/b", "--clock", "/at", text=b"\n".join(lines).decode() + "\n"
    )
    assert status == 0, err


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that no test changes."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "flow.yaml").write_text(CATALOG)
    ingest(folder, DOCUMENTS[:3], 1)
    ingest(folder, DOCUMENTS[3:], 4)
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return shutil.copytree(stored, tmp_path / "copy")


def read(folder: Path, *arguments: str) -> list[object]:
    status, out, err = flowctl(folder, *READ, *arguments)
    assert status == 0, err
    return [orjson.loads(line) for line in out.splitlines()]


def amounts(folder: Path, *arguments: str) -> list[float]:
    return [document["n"] for document in read(folder, *arguments) if isinstance(document, dict)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--key", '["ann",1]'], [1, 3]),
        (["--key", '["ann",1.0]'], [1, 3]),  # 1.0 equals 1
        (["--key", '["ann",2]', "--key", '["ben",1]'], [2, 5, 8]),
        (["--key", '["eve",1]'], []),
        (["--key", '["ann",1]', "--reduce"], [4]),
        (["--key", '["ben",1]', "--reduce", "--as-of", "1970-01-01T00:00:04Z"], [2]),
        (["--key", '["ben",1]', "--since", "1970-01-01T00:00:04Z"], [8]),
        (["--limit", "2"], [1, 2]),
        (["--reduce", "--limit", "2"], [4, 5]),
        (["--where", "n > 2"], [3, 5, 8]),
        (["--where", "n > 2 AND note IS NOT NULL", "--limit", "1"], [5]),
        (["--reduce", "--where", "n >= 4 AND id LIKE 'a%'"], [4, 5]),
        (["--reduce", "--where", "flow_published_at > '1970-01-01T00:00:04Z'"], [10]),
        (["--where", "flow_document ->> 'note' = 'x'"], [1, 8]),
        (["--where", "false"], []),
        (["--where", "n > 1", "--key", '["ann",1]'], [3]),
    ],
)
def test_selected_documents_are_read(stored: Path, arguments: list[str], expected: list[float]) -> None:
    assert amounts(stored, *arguments) == expected


def test_condition_selects_the_rows_that_sql_selects(folder: Path) -> None:
    for condition in ("n > 2", "note = 'x' OR day = 2", "note IS DISTINCT FROM 'x'", "lower(id) = 'ben'"):
        query = f'SELECT n FROM "a/b" WHERE {condition} ORDER BY id, day'
        status, out, err = flowctl(folder, "sql", "-o", "json", "-c", query)
        assert status == 0, err
        expected = [orjson.loads(line)["n"] for line in out.splitlines()]
        assert amounts(folder, "--reduce", "--where", condition) == expected


def test_history_of_a_key_has_its_contents_at_each_time(stored: Path) -> None:
    versions = read(stored, "--history", "--key", '["ann",1]')

    assert [version["published_at"] for version in versions if isinstance(version, dict)] == [
        "1970-01-01T00:00:01.000000Z",
        "1970-01-01T00:00:03.000000Z",
    ]
    for version in versions:
        assert isinstance(version, dict)
        [document] = read(stored, "--reduce", "--key", '["ann",1]', "--as-of", version["published_at"])
        assert version["document"] == document
    last = ["--history", "--key", '["ann",1]', "--since", "1970-01-01T00:00:02Z"]
    assert read(stored, *last) == versions[1:]
    assert read(stored, "--history", "--key", '["ann",1]', "--where", "n < 2") == versions[:1]
    assert read(stored, "--history", "--key", '["ann",1]', "--as-of", "1970-01-01T00:00:02Z") == versions[:1]


def test_history_shows_deletions_as_null(folder: Path) -> None:
    catalog = CATALOG.replace("reduce: {strategy: merge}", "reduce: {strategy: merge, delete: true}")
    (folder / "flow.yaml").write_text(
        catalog.replace("n: {type: number", "gone: {type: boolean}\n        n: {type: number").replace(
            "reduce: {strategy: merge, delete: true}",
            "if: {required: [gone]}\n      then: {reduce: {strategy: merge, "
            "delete: true}}\n      else: {reduce: {strategy: merge}}",
        )
    )
    for number, line in enumerate(('"gone":true', '"n":7')):
        text = f'{{"id":"ann","day":1,{line},"at":"1970-01-01T00:00:{10 + number}Z"}}\n'
        status, _, err = flowctl(folder, "ingest", "--collection", "a/b", "--clock", "/at", text=text)
        assert status == 0, err

    versions = read(folder, "--history", "--key", '["ann",1]', "--since", "1970-01-01T00:00:10Z")

    assert [version["document"] and version["document"]["n"] for version in versions if isinstance(version, dict)] == [
        None,
        7,
    ]
    assert len(read(folder, "--history", "--key", '["ann",1]', "--where", "true")) == 3


def test_followed_key_ends_at_the_limit(folder: Path) -> None:
    arguments = [*READ, "--follow", "--key", '["ann",1]', "--where", "n <> 3", "--limit", "2"]
    with Flowctl(arguments, cwd=folder, env=BARE, stdout=PIPE, stderr=PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert select.select([follower.stdout], [], [], PATIENCE_SECONDS)[0]
        assert orjson.loads(os.read(follower.stdout.fileno(), 1 << 16))["n"] == 1
        ingest(folder, [("ben", 1, 9.0, None), ("ann", 1, 10.0, None), ("ann", 1, 11.0, None)], 10)
        out, err = follower.communicate(timeout=PATIENCE_SECONDS)

    assert (follower.returncode, [orjson.loads(line)["n"] for line in out.splitlines()]) == (0, [10]), err


def test_followed_history_continues_from_the_past(folder: Path) -> None:
    since = ["--since", "1970-01-01T00:00:03Z"]
    arguments = [*READ, "--follow", "--history", "--key", '["ann",1]', *since, "--limit", "2"]
    with Flowctl(arguments, cwd=folder, env=BARE, stdout=PIPE, stderr=PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert select.select([follower.stdout], [], [], PATIENCE_SECONDS)[0]
        assert orjson.loads(os.read(follower.stdout.fileno(), 1 << 16))["document"]["n"] == 4
        ingest(folder, [("ann", 1, 10.0, None)], 10)
        out, err = follower.communicate(timeout=PATIENCE_SECONDS)

    assert [orjson.loads(line)["document"]["n"] for line in out.splitlines()] == [14], err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--key", "ann"],
            "--key is not JSON: ann\n  = a key is a JSON array with a value for each of [/id, /day], and texts have quotes: --key '[\"ann\", 7]'",
        ),
        (["--key", '"ann"'], "a key of 'a/b' has 2 values, of /id, /day; [\"ann\"] has 1"),
        (["--key", '["ann","1"]'], "/day of a key of 'a/b' is integer, and \"1\" is string"),
        (["--history"], "--history prints the versions of one key, so it needs one --key"),
        (["--history", "--key", "1", "--key", "2"], "--history prints the versions of one key, so it needs one --key"),
        (
            ["--history", "--key", "1", "--reduce"],
            "--history reduces the documents of each version, so it cannot be combined with --reduce",
        ),
        (
            ["--history", "--key", "1", "--uuid"],
            "--history prints the time of each version, so it cannot be combined with --uuid",
        ),
        (
            ["--history", "--key", "1", "--partitions", "{}"],
            "--history needs all documents of the key, so it cannot be combined with --partitions",
        ),
    ],
)
def test_contradictory_selections_are_refused(stored: Path, arguments: list[str], message: str) -> None:
    status, _, err = flowctl(stored, *READ, *arguments)

    assert (status, err) == (2, f"error: {message}\n")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("condition", "sqlstate", "column", "message"),
    [
        ("n > 1 AND amount = 2", "42703", 11, 'column "amount" does not exist'),
        ("n >", "42601", 4, "syntax error at end of input"),
        ("n", "42804", 1, "argument of WHERE must be type boolean, not type double precision"),
        ("n > 1; DROP TABLE t", "42601", 6, 'syntax error at or near ";"'),
        ("n > (SELECT 1)", "0A000", 1, "the condition cannot have a subquery"),
        ("n > $1", "42P02", 1, "the condition cannot have parameters"),
        ("count(*) > 1", "42803", 1, "aggregate functions are not allowed in WHERE"),
    ],
)
def test_invalid_conditions_are_errors_with_positions(
    stored: Path, condition: str, sqlstate: str, column: int, message: str
) -> None:
    status, out, err = flowctl(stored, *READ, "--where", condition)

    assert (status, out) == (1, "")
    assert err.startswith(f"error[{sqlstate}]: {message}\n  --> --where:1:{column}\n")


def test_history_of_a_table_is_refused(folder: Path) -> None:
    store = Store(folder / ".flow")
    table = store.tables.create("sql/public/t", [TableColumn("n", "bigint")])
    assert table.name == "sql/public/t"
    store.close()

    status, _, err = flowctl(folder, "collections", "read", "--collection", "sql/public/t", "--history", "--key", "1")

    assert status == 2
    assert err.startswith(
        "error: 'sql/public/t' is a table: its rows are inserted and deleted, so a key has no versions"
    )


def test_packed_key_takes_a_value_or_an_array(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    spec = load(tmp_path / "flow.yaml").collections["a/c"]

    assert packed_key(spec, "x") == packed_key(spec, ["x"]) == pack(["x"])
    with pytest.raises(UsageError, match="is string, and null is null"):
        packed_key(spec, None)
