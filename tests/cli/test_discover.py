"""`flowctl discover`: the schema accepts all documents that were read, and the key is the one that a person expects."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import examples
from forked_flowctl import flowctl
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.cli.inputs import listed_files
from derive.document.pointer import JSON
from derive.protocol.specs import CatalogSpec
from derive.schema.discovery import Discovery
from derive.schema.validator import compile_validator
from derive.storage.inputs.line import csv_rows

TEXTS = st.sampled_from(
    ["", "a", "b", "2024-05-01", "2024-05-01T09:00:00Z", "ann@example.com", "1.2.3.4", "~/", "null"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES: st.SearchStrategy[JSON] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), min_size=1, max_size=12))
def test_discovered_schema_accepts_all_documents(documents: list[dict[str, JSON]]) -> None:
    discovery = Discovery()
    for document in documents * 5:  # repeated, so that enumerations occur
        discovery.add(document)

    validator = compile_validator(discovery.schema(), name="x")

    assert [document for document in documents if not validator.is_valid(document)] == []
    key = discovery.key()
    assert len(key.pointers) <= 3
    assert key.distinct <= len(documents)


@pytest.mark.parametrize("seed", range(8))
def test_discovered_collection_accepts_all_rows_of_csv(
    tmp_path: Path, catalog_of: Callable[..., CatalogSpec], seed: int
) -> None:
    rng = random.Random(seed)
    pools = [["1", "2.5", "1e3"], ["true", "null", ""], ["01", "7"], ["null"], ['"{""a"":1}"', "[1]"], ["x", '"1,5"']]
    rows = ["id,a,b,c"] + [
        ",".join([str(number), *(rng.choice(rng.choice(pools[column : column + 3])) for column in range(3))])
        for number in range(rng.randint(1, 40))
    ]
    text = "\n".join(rows).encode()
    (tmp_path / "rows.csv").write_bytes(text)

    status, found, err = flowctl(tmp_path, "discover", "rows.csv")

    assert (status, err) == (0, "")
    spec = catalog_of(found).collections["rows"]
    assert spec.key == ("/id",)
    validator = compile_validator(spec.write_schema, name="rows")
    documents = [document for _, document in csv_rows(io.BytesIO(text), spec, "rows.csv")]
    assert len(documents) == len(rows) - 1
    assert [document for document in documents if not validator.is_valid(document)] == []


ODD = ["", "null", "yes", "1", "1e3", "0o7", "0x1", ".5", "~", "a: b", "#c", "- d", "a.b", "a/b", "x\ny", "é", "\u2028"]


def test_discovered_yaml_keeps_every_name_and_text(tmp_path: Path, catalog_of: Callable[..., CatalogSpec]) -> None:
    """YAML 1.1, which PyYAML writes, and YAML 1.2, which catalogs are, differ in their numbers."""
    documents = [{"id": number, **dict.fromkeys(ODD, number), "e": text} for number, text in enumerate(ODD[:9] * 10)]
    text = "".join(orjson.dumps(document).decode() + "\n" for document in documents)
    discovery = Discovery()
    for document in documents:
        discovery.add(document)

    status, found, err = flowctl(tmp_path, "discover", text=text)

    assert (status, err) == (0, "")
    schema = catalog_of(found).collections["documents"].write_schema
    assert schema == discovery.schema()
    assert sorted(schema["properties"]["e"]["enum"]) == sorted(ODD[:9])


@pytest.mark.parametrize(
    ("documents", "key", "others"),
    [
        ([{"amount": 1, "id": 1}, {"amount": 2, "id": 2}], ["/id"], [["/amount"]]),
        ([{"at": "2024-05-01", "name": "a"}, {"at": "2024-05-02", "name": "b"}], ["/name"], [["/at"]]),
        ([{"n": 1, "order_id": -1}, {"n": 2, "order_id": -2}], ["/order_id"], [["/n"]]),
        ([{"x": {"sku": "a"}, "n": 1.5}, {"x": {"sku": "b"}, "n": 2.5}], ["/x/sku"], []),
        ([{"o": 1, "l": 1}, {"o": 1, "l": 2}, {"o": 2, "l": 1}], ["/o", "/l"], []),
        ([{"a": x, "b": y, "c": z} for x in "ab" for y in "ab" for z in "ab"], ["/a", "/b", "/c"], []),
        ([{"id": 1, "n": 1}, {"id": None, "n": 2}, {"id": 2, "n": 3}], ["/n"], []),  # not in all documents
        ([{"id": 1, "n": 1}, {"id": "1", "n": 2}], ["/n"], []),  # two types
        ([{"id": 1, "n": 1}, {"id": 1.0, "n": 2}], ["/n"], []),  # equal as keys
        ([{"id": 1, "n": 1}, {"n": 2}], ["/n"], []),
        ([{"id": 1}, {"id": 1}], ["/id"], []),  # not unique
        ([{"a/b": 1, "~": 1}, {"a/b": 2, "~": 1}], ["/a~1b"], []),
        ([{"n": 1.5}, {"n": [2]}], [], []),
    ],
)
def test_key_has_the_fewest_fields_that_are_unique(
    documents: list[dict[str, Any]], key: list[str], others: list[list[str]]
) -> None:
    discovery = Discovery()
    for document in documents:
        discovery.add(document)

    choice = discovery.key()

    assert list(choice.pointers) == key
    assert [list(other) for other in choice.others] == others


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([1, 2.0], {"type": "integer"}),
        ([1, 2.5, None], {"type": ["number", "null"]}),
        (["2024-05-01T09:00:00Z"], {"type": "string", "format": "date-time"}),
        (["2024-05-01", "2024-05-01T09:00:00Z"], {"type": "string"}),
        (["6d1f5a2e-4b7a-4f0e-9d43-0c1f2a3b4c5d", None], {"type": ["string", "null"], "format": "uuid"}),
        (["ann@example.com"], {"type": "string", "format": "email"}),
        (["01234"], {"type": "string"}),
        (["open", "shut"] * 10, {"type": "string", "enum": ["open", "shut"]}),
        (["open", None] * 10 + ["shut"] * 10, {"type": ["string", "null"], "enum": ["open", "shut", None]}),
        (["open", 1] * 20, {"type": ["string", "integer"]}),
        ([None], {}),
        ([[None]], {"type": "array"}),
        ([[1], ["a"], []], {"type": "array", "items": {"type": ["string", "integer"]}}),
        (
            [{"a": 1}, {"a": 1, "b": True}],
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
        ),
        ([{str(name): 1 for name in range(600)}, {}], {"type": "object", "properties": 600}),
        ([{str(name): 1} for name in range(600)], {"type": "object"}),
    ],
)
def test_schema_describes_the_values(values: list[JSON], schema: dict[str, JSON]) -> None:
    discovery = Discovery()
    for value in values:
        discovery.add({"v": value})

    found = discovery.schema()["properties"]["v"]

    if isinstance(schema.get("properties"), int):
        found["properties"] = len(found["properties"])
    assert found == schema


ORDERS = '[{"id": 1, "at": "2024-05-01T09:00:00Z", "null": null},\n {"id": 2, "at": "2024-05-01T09:00:01Z", "null": 5}]'


def test_discover_gives_fields_with_only_nulls_no_type(tmp_path: Path, catalog_of: Callable[..., CatalogSpec]) -> None:
    text = '{"id":1,"a/b":null,"list":[{"x":null}],"some":null}\n{"id":2,"a/b":null,"list":[null],"some":1}\n'

    status, out, err = flowctl(tmp_path, "discover", text=text)

    assert (status, err) == (0, "")
    assert "# /a~1b, /list/*/x have only null, so any value is allowed: write the type.\n" in out
    schema = catalog_of(out).collections["documents"].write_schema
    assert compile_validator(schema, name="x").is_valid({"id": 3, "a/b": "?", "list": [{"x": 5}], "some": 1})
    assert not compile_validator(schema, name="x").is_valid({"id": 3, "a/b": "?", "list": [], "some": "?"})


def test_discover_writes_a_catalog_that_ingests_the_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(ORDERS)
    (tmp_path / "in" / "b.tsv").write_text("id\tat\n3\t2024-05-01T09:00:02Z\n")

    status, out, err = flowctl(tmp_path, "discover", "in", "--name", "shop/orders", "--output", "flow.yaml")

    assert (status, out, err) == (0, "", "flow.yaml defines 'shop/orders'\n")
    assert (tmp_path / "flow.yaml").read_text().splitlines()[:2] == [
        "# flowctl discover read 3 documents of in/a.json, in/b.tsv.",
        "# The key: /id is in all documents, and unique.",
    ]
    assert load(tmp_path / "flow.yaml").collections["shop/orders"].key == ("/id",)
    status, _, err = flowctl(tmp_path, "ingest", "--collection", "shop/orders", "in")
    assert status == 0, err
    read = flowctl(tmp_path, "collections", "read", "--collection", "shop/orders")[1]
    assert [orjson.loads(line)["id"] for line in read.splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "text", "status", "said"),
    [
        (["--format", "json"], '[{"a": 1},\n  {"b": x}]', 1, "standard input:2: not JSON: unexpected character, expected a JSON value in column 9"),
        ([], '{"a": 1}\n[2]\n', 1, "standard input:2: a document is a JSON object, but this is of type array"),
        (["--format", "csv"], 'a,a\n1,2\n', 1, "standard input:1: the header names 'a' twice"),
        (["--format", "csv"], 'a,b\n1\n', 1, "standard input:2: the line has 1 cell, but the header names 2 columns"),
        (["--format", "csv"], 'a;b\n1;2\n', 2, "standard input:1: the header names one column: a;b\n  = another character is between the columns: --delimiter ';'"),
        ([], "", 2, "standard input has no documents"),
        (["--name", "a b"], '{"a": 1}\n', 2, "'a b' is not a name of a collection"),
        (["--output", "there"], '{"a": 1}\n', 2, "there exists"),
        (["--delimiter", ";"], '{"a": 1}\n', 2, "--delimiter is for CSV"),
        (["--format", "csv", "--delimiter", ";;"], "a;b\n", 2, "--delimiter takes one character"),
    ],
)  # fmt: skip
def test_discover_reports_errors_with_positions(
    tmp_path: Path, arguments: list[str], text: str, status: int, said: str
) -> None:
    (tmp_path / "there").touch()

    code, out, err = flowctl(tmp_path, "discover", *arguments, text=text)

    assert (code, out) == (status, "")
    assert said in err
    assert "ingested" not in err


def test_documents_from_a_terminal_are_awaited_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())

    assert (listed_files([]), listed_files(["-"])) == (["-"], ["-"])
    assert capsys.readouterr().err == "reading documents from standard input: end them with Ctrl-D\n"


@pytest.mark.parametrize(
    ("arguments", "text", "lines"),
    [
        (["--documents", "2"], '{"id": 1}\n{"id": 2}\nno JSON\n', ["# flowctl discover read the first 2 documents of standard input.", "# The key: /id is in all documents, and unique.", "collections:", "  documents:"]),
        ([], '{"a": 1, "b": 1}\n{"a": 1, "b": 1}\n{"a": 2, "b": 1}\n', ["# flowctl discover read 3 documents of standard input.", "# No key of up to three fields is unique. /a has the most values: 2."]),
        ([], '{"a": 1, "b": 1}\n{"a": 2, "b": 1}\n{"a": 2, "b": 2}\n', ["# flowctl discover read 3 documents of standard input.", "# The key: /a, /b are in all documents, unique together."]),
        ([], '{"a": []}', ["# flowctl discover read 1 document of standard input.", "# No field is in all documents, so there is no key: add a field that identifies", "# a document."]),
        ([], '{"id": 1}\n{"id": "b"}\n', ["# flowctl discover read 2 documents of standard input.", "# /id (string and integer) is in all documents, but has several types, so there", "# is no key: write one type, or add a field that identifies a document."]),
        ([], '{"id": 1, "n": 1}\n{"id": "b", "n": 2}\n', ["# flowctl discover read 2 documents of standard input.", "# The key: /n is in all documents, and unique.", "# /id has several types (string and integer), so it is no key."]),
    ],
)  # fmt: skip
def test_discover_comments_on_the_documents_and_the_key(
    tmp_path: Path, arguments: list[str], text: str, lines: list[str]
) -> None:
    status, out, err = flowctl(tmp_path, "discover", *arguments, text=text)

    assert (status, err) == (0, "")
    assert out.splitlines()[: len(lines)] == lines
