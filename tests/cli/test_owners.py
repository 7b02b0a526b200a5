"""Commands ask who owns a collection: what is refused is told with what to do instead, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import write_catalog
from forked_flowctl import flowctl

COLLECTIONS = """
collections:
  o/x: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  o/source: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  sql/public/t: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  sql/public/mv: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  sql/public/later: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
"""
DERIVING = """
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: o/source, shuffle: any, lambda: SELECT $id;}]}
"""
DERIVED = COLLECTIONS.replace("key: [/id]}", "key: [/id]", 1).replace("{schema", "\n    schema", 1)
DERIVED = DERIVED.replace("}}}, key: [/id]\n", "}}}\n    key: [/id]" + DERIVING, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_catalog(tmp_path, COLLECTIONS)
    (tmp_path / "one.jsonl").write_text('{"id": 1}\n')
    return tmp_path


def test_ingest_refuses_relations_of_sql(folder: Path) -> None:
    makes = [
        "CREATE TABLE t (id bigint)",
        "INSERT INTO t VALUES (7)",
        "CREATE MATERIALIZED VIEW mv AS SELECT id FROM t",
    ]
    assert flowctl(folder, "sql", *(part for text in makes for part in ("-c", text)))[0] == 0
    before = flowctl(folder, "collections", "list", "-o", "json")

    for name, what in (
        ("t", 'belongs to the table "t" of SQL, so nothing can be ingested into it'),
        ("mv", 'is the materialized view "mv" of SQL, so nothing can be ingested into it'),
        ("later", 'belongs to the table "later" of SQL, so nothing can be ingested into it'),
    ):
        status, out, err = flowctl(folder, "ingest", "--collection", f"sql/public/{name}", "one.jsonl")
        assert (status, out) == (1, "")
        assert f"'sql/public/{name}' {what}" in err

    assert flowctl(folder, "collections", "list", "-o", "json") == before


def test_ingested_collections_are_neither_derived_nor_reset(folder: Path) -> None:
    assert flowctl(folder, "ingest", "--collection", "o/x", "one.jsonl")[0] == 0
    write_catalog(folder, DERIVED)
    said = "'o/x' holds documents that were ingested, or are being ingested, so nothing can be derived into it"

    status, out, _ = flowctl(folder, "check", "-o", "json")
    issue = json.loads(out)
    assert (status, issue["code"], issue["message"], issue["line"]) == (1, "E106", said, 3)
    status, _, err = flowctl(folder, "check", "--data", str(folder / "elsewhere"))
    assert (status, "no errors" in err) == (0, True)
    for command in (["run", "--until-idle"], ["reset", "--task", "o/x"]):
        status, _, err = flowctl(folder, *command)
        assert (status, said in err) == (1, True)
    assert flowctl(folder, "collections", "read", "--collection", "o/x")[1] == '{"id":1}\n'


def test_derivation_with_a_name_of_sql_is_refused(folder: Path) -> None:
    write_catalog(folder, DERIVED.replace("o/x", "sql/public/x"))

    status, out, _ = flowctl(folder, "check", "-o", "json")

    assert status == 1
    assert json.loads(out)["code"] == "E105"
