"""`flowctl ingest` of files as they come: JSON of any form, delimiters, folders; and its check without an ingestion."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest
from forked_flowctl import flowctl

from derive.storage.metadata.opening import is_data_folder

CATALOG = """\
collections:
  a/b:
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, at: {type: string}, n: {type: number}}
    key: [/id]
"""
PRETTY = '{\n  "id": 1\n}\n{\n  "id": 2\n}\n'
ARRAY = '[\n  {"id": 1},\n  {"id": 2}\n]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    return tmp_path


def ids(folder: Path) -> list[int]:
    status, out, err = flowctl(folder, "collections", "read", "--collection", "a/b")
    assert status == 0, err
    return [orjson.loads(line)["id"] for line in out.splitlines()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("a.json", ARRAY, []),
        ("a.json", PRETTY, []),
        ("a.json", '{"id":1}\n{\n"id":2}', []),
        ("a.json", '[{"id":1},{"id":2}]', []),
        ("a.txt", PRETTY, []),
        ("-", ARRAY, []),
        ("-", PRETTY, []),
        ("-", '{"id":1}{"id":2}', []),
        ("a.jsonl", ARRAY, ["--format", "json"]),
        ("a.csv", "id;n\n1;2.5\n2;\n", ["--delimiter", ";"]),
        ("a.txt", "id\tn\n1\t2.5\n2\t\n", ["--format", "csv", "--delimiter", "tab"]),
        ("a.tsv", "id\tn\n1\t2.5\n2\t\n", []),
        ("a.tsv", "id|n\n1|2.5\n2|\n", ["--delimiter", "|"]),
    ],
)
def test_ingest_reads_json_of_any_form_and_csv_of_any_delimiter(
    folder: Path, name: str, text: str, arguments: list[str]
) -> None:
    if name != "-":
        (folder / name).write_text(text)

    status, _, err = flowctl(folder, "ingest", "--collection", "a/b", *arguments, name, text=text)

    assert status == 0, err
    assert ids(folder) == [1, 2]


def test_ingest_of_a_folder_loads_its_files_in_the_order_of_their_paths(folder: Path) -> None:
    within = folder / "in"
    (within / "b").mkdir(parents=True)
    (within / ".hidden").mkdir()
    (within / "c.json").write_text('[{"id":4}]')
    (within / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id":1}\n'))
    (within / "b" / "x.tsv").write_text("id\tn\n2\t\n")
    (within / "b" / "y.ndjson").write_text('{"id":3}\n')
    (within / "notes.txt").write_text("notes")
    (within / ".hidden" / "z.jsonl").write_text('{"id":5}\n')

    status, out, err = flowctl(folder, "ingest", "--collection", "a/b", "-o", "json", "in")

    assert status == 0, err
    assert [orjson.loads(line)["file"] for line in out.splitlines()] == [
        "in/a.jsonl.gz", "in/b/x.tsv", "in/b/y.ndjson", "in/c.json",
    ]  # fmt: skip
    assert ids(folder) == [1, 2, 3, 4]


def test_dry_run_counts_documents_and_ingests_nothing(folder: Path) -> None:
    (folder / "a.json").write_text(ARRAY)

    status, out, err = flowctl(folder, "ingest", "--collection", "a/b", "--dry-run", "-o", "json", "a.json")

    assert (status, err) == (0, "a.json: 2 documents would be ingested into 'a/b'\n")
    assert orjson.loads(out)["documents"] == 2
    assert not is_data_folder(folder / ".flow")
    assert flowctl(folder, "ingest", "--collection", "a/b", "a.json")[0] == 0
    status, _, err = flowctl(folder, "ingest", "--collection", "a/b", "--dry-run", "a.json")
    assert (status, err) == (0, "a.json: 2 documents would be ingested into 'a/b'\n")
    assert ids(folder) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["bad.jsonl", "good.jsonl"], 1, ["bad.jsonl: 2 documents are not valid:", "bad.jsonl:1: document [\"x\"] of 'a/b' fails its schema at '/id'", "bad.jsonl:3: not JSON: unexpected end of data in column 8", "good.jsonl: 1 document would be ingested into 'a/b'"]),
        (["bad.json"], 1, ["bad.json:3: not JSON: unexpected character, expected a JSON value in column 10"]),
        (["--clock", "/at", "late.jsonl", "early.jsonl"], 1, ["late.jsonl: 1 document would", "early.jsonl:1: the time 2024-05-01T09:00:00.000000Z is below the upper of 'a/b', 2024-05-02T09:00:00.000001Z"]),
        (["--clock", "/at", "early.jsonl", "late.jsonl"], 0, ["early.jsonl: 1 document would", "late.jsonl: 1 document would"]),
        (["--clock", "/at", "good.jsonl"], 1, ["good.jsonl:1: the clock /at must be an RFC 3339 time, but is no value"]),
        (["--load-id", "x", "good.jsonl"], 2, ["--dry-run ingests nothing, so it cannot be combined with --load-id"]),
    ],
)  # fmt: skip
def test_dry_run_lists_the_first_errors_of_each_file(
    folder: Path, arguments: list[str], status: int, said: list[str]
) -> None:
    (folder / "bad.jsonl").write_text('{"id":"x"}\n{"id":2}\n{"id":3\n')
    (folder / "bad.json").write_text('[\n  {"id": 1},\n  {"id": x}\n]')
    (folder / "good.jsonl").write_text('{"id":1}\n')
    (folder / "early.jsonl").write_text('{"id":1,"at":"2024-05-01T09:00:00Z"}\n')
    (folder / "late.jsonl").write_text('{"id":1,"at":"2024-05-02T09:00:00Z"}\n')

    code, _, err = flowctl(folder, "ingest", "--collection", "a/b", "--dry-run", *arguments)

    assert code == status
    assert [text for text in said if text not in err] == []
    assert not is_data_folder(folder / ".flow")
