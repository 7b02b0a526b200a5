"""Redacted values are in no file of the data folder, in no endpoint and in nothing that is printed."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_catalog
from forked_flowctl import flowctl

from derive.catalog import load
from derive.document.exact import dump_exact
from derive.errors import StorageError
from derive.schema.redaction import Redactor
from derive.storage.folder_id import redactor_of

SECRET = "SECRET"
"""In all redacted values. No file spells it but what is ingested: lambdas put it together."""

CATALOG = """
collections:
  in/people:
    key: [/id]
    schema: &people
      type: object
      required: [id, ssn, mail]
      properties:
        id: { type: integer }
        n: { type: integer }
        ssn: { type: string, pattern: '^S', redact: { strategy: block } }
        mail: { type: string, redact: { strategy: sha256 } }
        pay: { type: [number, string], redact: { strategy: sha256 } }
        home:
          type: object
          properties: { street: { type: string, redact: { strategy: sha256 } }, town: { type: string } }
        phones: { type: array, items: { type: object, properties: { number: { redact: { strategy: block } } } } }
  in/plain:
    key: [/id]
    schema: { type: object, required: [id], properties: { id: { type: integer }, bad: {} } }
  out/sql:
    key: [/id]
    schema: *people
    derive:
      using: { sqlite: {} }
      redactSalt: c2FsdA==
      transforms:
        - name: t
          source: in/plain
          shuffle: any
          lambda: >
            select $id, 'SEC' || 'RET-' || $id as ssn, 'SEC' || 'RET-' || $id as mail,
            json_object('street', 'SEC' || 'RET-' || $id, 'town', 'x') as home, $bad as n
  out/typescript:
    key: [/id]
    schema: *people
    derive:
      using: { typescript: { module: module.ts } }
      transforms: [{ name: t, source: in/plain, shuffle: any }]
  out/astray:
    key: [/id]
    schema: *people
    derive:
      using: { typescript: { module: astray.ts } }
      transforms: [{ name: t, source: in/plain, shuffle: any }]
  out/again:
    key: [/id]
    schema: *people
    derive:
      using: { sqlite: {} }
      transforms: [{ name: t, source: in/people, shuffle: any, lambda: "select json($flow_document)" }]
materializations:
  out/endpoint:
    endpoint: { connector: { image: materialize-sqlite, config: { path: ENDPOINT } } }
    bindings:
      - { source: in/people, resource: { table: people }, fields: { recommended: true } }
      - { source: out/sql, resource: { table: sql }, fields: { recommended: true } }
      - { source: out/typescript, resource: { table: typescript }, fields: { recommended: true } }
tests:
  a/test:
    - ingest:
        collection: in/people
        documents: [{ id: 1, ssn: S-1, mail: m, pay: 12, home: { street: s, town: t }, phones: [{ number: 1 }] }]
    - verify: { collection: out/again, documents: [{ id: 1, home: { town: t } }] }
"""
MODULE = """
import { Document, IDerivation, SourceT } from "flow/out/typescript.ts";
export class Derivation extends IDerivation {
    t(read: { doc: SourceT }): Document[] {
        const secret = "SEC" + "RET-" + read.doc.id;
        return [{ id: read.doc.id, ssn: secret, mail: secret, home: { street: secret }, phones: [{ number: secret }] }] as
            unknown as Document[];
    }
}
"""

ASTRAY = """
import { Document, IDerivation, SourceT } from "flow/out/astray.ts";
export class Derivation extends IDerivation {
    t(read: { doc: SourceT }): Document[] {
        return PUBLISHED as unknown as Document[];
    }
}
"""


class Folder:
    """A catalog in a folder, and what commands have printed about it."""

    def __init__(self, path: Path) -> None:
        self.path, self.endpoint = path, path.parent / "endpoint"
        self.endpoint.mkdir()
        self.printed = ""
        text = CATALOG.replace("ENDPOINT", str(self.endpoint / "x.db"))
        (path / "flow.yaml").write_text(text)
        (path / "module.ts").write_text(MODULE)
        (path / "astray.ts").write_text(ASTRAY.replace("PUBLISHED", "[]"))

    def flowctl(self, *arguments: str, code: int = 0) -> str:
        env = os.environ | {"FLOW_DATA": str(self.path.parent / "data")}
        status, out, err = flowctl(self.path, *arguments, env=env)
        self.printed += out + err
        assert status == code, out + err
        return out + err

    def check(self) -> None:
        """Fail if a redacted value is in a file of the data folder or of the endpoint, or was printed."""
        assert SECRET not in self.printed
        files = [
            file for root in ("data", "endpoint") for file in (self.path.parent / root).rglob("*") if file.is_file()
        ]
        assert len(files) > 10
        for file in files:
            content = file.read_bytes()
            assert SECRET.encode() not in content, file
            if file.suffix == ".parquet":
                table = pq.ParquetFile(file).read()
                assert SECRET not in str(table.to_pydict()), file


def person(number: int) -> dict[str, object]:
    return {
        "id": number,
        "ssn": f"SECRET-{number}",
        "mail": f"{number}@SECRET",
        "pay": f"SECRET-{number}",
        "home": {"street": f"SECRET {number}", "town": "x"},
        "phones": [{"number": f"SECRET-{number}", "kind": "a"}],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "catalog").mkdir()
    return Folder(tmp_path / "catalog")


@pytest.mark.deno
def test_redacted_values_are_neither_stored_nor_printed(folder: Folder) -> None:
    """A redacted value is in no file and on no screen, by any way in and with any error."""
    path = folder.path
    (path / "a.jsonl").write_text("".join(json.dumps(person(number)) + "\n" for number in range(300)))
    (path / "b.csv").write_text(
        "id,ssn,mail,pay\n" + "".join(f"{n},SECRET-{n},SECRET,SECRET\n" for n in range(300, 400))
    )
    people = [person(number) for number in range(400, 500)]
    pq.write_table(pa.Table.from_pylist(people), path / "c.parquet")
    bad = [
        b'{"id":"x","ssn":"SECRET","mail":"SECRET"}',
        b'{"id":1,"ssn":"SECRET","mail":"SECRET","home":[{"street":"SECRET"}]}',
        b'{"id":1,"ssn":"SECRET","mail":"SECRET","phones":"SECRET"}',
        b'["SECRET"]',
        b'"SECRET"',
        b'{"ssn":"SECRET",',
        b'{"id":1,"ssn":SECRET,"mail":"SECRET"}',
        b'{"ssn":"SECRET","mail":"SECRET"}',
    ]
    (path / "bad.jsonl").write_bytes(b"\n".join(bad))
    (path / "bad.csv").write_text("id,ssn,mail\n1,SECRET\nx,SECRET,SECRET\n1,SECRET,SECRET,SECRET\n")
    column = pa.array([Decimal("12345678901234567.0123456789")], pa.decimal128(38, 10))
    pq.write_table(pa.table({"id": [1], "mail": column, "ssn": ["SECRET"]}), path / "bad.parquet")
    (path / "plain.jsonl").write_text("".join(f'{{"id":{number},"bad":1}}\n' for number in range(200)))
    (path / "few.jsonl").write_text('{"id":1000,"bad":1}\n')
    (path / "wrong.jsonl").write_text('{"id":1001,"bad":"no number"}\n')

    folder.flowctl("test")
    folder.flowctl("ingest", "--collection", "in/people", "a.jsonl", "b.csv", "c.parquet")
    for name in ("bad.jsonl", "bad.csv"):
        assert "not valid" in folder.flowctl("ingest", "--collection", "in/people", name, code=1)
    folder.flowctl("ingest", "--collection", "in/people", "bad.parquet")
    folder.flowctl("ingest", "--collection", "in/plain", "plain.jsonl")
    folder.flowctl("run", "--until-idle")
    folder.flowctl("ingest", "--collection", "in/plain", "few.jsonl")
    folder.flowctl("run", "--until-idle")
    for name in ("in/people", "out/sql", "out/typescript", "out/again"):
        assert folder.flowctl("collections", "read", "--collection", name).count("sha256:") >= 200
    folder.flowctl("sql", "-c", 'select * from "in/people" limit 3')
    folder.flowctl("ingest", "--collection", "in/plain", "wrong.jsonl")
    assert "published an invalid document" in folder.flowctl("run", "--until-idle", code=1)
    folder.flowctl("status")
    folder.flowctl("logs")
    assert (folder.endpoint / "x.db").exists()
    folder.check()


def test_salt_comes_from_the_derivation_or_the_folder(folder: Folder) -> None:
    (folder.path / "plain.jsonl").write_text('{"id":1,"bad":1}\n')
    (folder.path / "a.jsonl").write_text(json.dumps(person(1)) + "\n")
    folder.flowctl("ingest", "--collection", "in/plain", "plain.jsonl")
    folder.flowctl("ingest", "--collection", "in/people", "a.jsonl")
    folder.flowctl("run", "--until-idle", "--task", "out/sql", "--task", "out/again")
    spec = load(folder.path / "flow.yaml").collections["out/sql"]
    assert spec.redaction is not None

    (derived,) = folder.flowctl("collections", "read", "--collection", "out/sql").splitlines()
    (ingested,) = folder.flowctl("collections", "read", "--collection", "in/people").splitlines()
    again = folder.flowctl("collections", "read", "--collection", "out/again").splitlines()

    assert json.loads(derived)["mail"] == Redactor(spec.redaction, b"salt").redact({"mail": "SECRET-1"})["mail"]
    salt = (folder.path.parent / "data" / "folder-id").read_bytes()
    assert json.loads(ingested) == Redactor(spec.redaction, salt).redact(person(1))
    assert again == [ingested]


HASHED = """
collections:
  in/hashed:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties:
        id: { type: integer }
        at: { type: string }
        count: { type: integer, redact: { strategy: sha256 } }
        share: { type: number, redact: { strategy: sha256 } }
        is: { type: boolean, redact: { strategy: sha256 } }
        name: { type: string, redact: { strategy: sha256 } }
        list: { type: array, redact: { strategy: sha256 } }
"""


def test_equal_values_have_equal_hashes_in_all_input_formats(folder: Folder) -> None:
    """A value is taken for what the schema says of it, before it is hashed."""
    (folder.path / "flow.yaml").write_text(HASHED)
    rows = [{"id": 1, "count": 7, "share": 2, "is": True, "name": "7", "list": [1, 2]}]
    (folder.path / "a.jsonl").write_text(json.dumps(rows[0]))
    (folder.path / "b.jsonl").write_text('{"id":2,"count":7,"share":2.0,"is":true,"name":"7","list":[1.0,2e0]}')
    (folder.path / "a.csv").write_text('id,count,share,is,name,list\n3,7,2.00,true,7,"[1, 2]"\n')
    pq.write_table(pa.Table.from_pylist([rows[0] | {"id": 4, "share": 2.0}]), folder.path / "a.parquet")
    exact = pa.array([Decimal("7.0")], pa.decimal128(3, 1)), pa.array([Decimal("2.00")], pa.decimal128(3, 2))
    pq.write_table(pa.table({"id": [5], "count": exact[0], "share": exact[1]}), folder.path / "b.parquet")
    files = ["a.jsonl", "b.jsonl", "a.csv", "a.parquet", "b.parquet"]
    folder.flowctl("ingest", "--collection", "in/hashed", *files)

    read = folder.flowctl("collections", "read", "--collection", "in/hashed").splitlines()

    documents = [{name: value for name, value in json.loads(line).items() if name != "id"} for line in read]
    assert set(documents[0]) == set(rows[0]) - {"id"}
    assert documents[1:4] == [documents[0]] * 3
    assert documents[4] == {name: documents[0][name] for name in ("count", "share")}


def test_restored_folders_continue_with_the_hashes_of_the_original(folder: Folder) -> None:
    """A backup of a restored folder, too: values that come later meet the hashes of those that were there."""
    (folder.path / "flow.yaml").write_text(HASHED)
    data = [str(folder.path.parent / name) for name in ("data", "second", "third")]
    for number, root in enumerate(data):
        if number:
            folder.flowctl("backup", f"backup-{number}", "--data", data[number - 1])
            folder.flowctl("restore", f"backup-{number}", "--data", root)
        (folder.path / "a.jsonl").write_text(f'{{"id":{number},"name":"SECRET"}}')
        folder.flowctl("ingest", "--collection", "in/hashed", "--data", root, "a.jsonl")

    read = folder.flowctl("collections", "read", "--collection", "in/hashed", "--data", data[-1]).splitlines()

    assert [json.loads(line)["id"] for line in read] == [0, 1, 2]
    assert len({json.loads(line)["name"] for line in read}) == 1
    assert len({(Path(root) / "folder-id").read_text() for root in data}) == 3


def test_hashing_fails_without_a_salt(tmp_path: Path) -> None:
    write_catalog(tmp_path, HASHED)
    spec = load(tmp_path / "flow.yaml").collections["in/hashed"]

    with pytest.raises(StorageError, match="has no identifier, which is the salt of hashes"):
        redactor_of(spec, tmp_path / "nowhere")


ASTRAYS = [
    ("a.jsonl", '{"id":"SECRET","count":"x"}\n{"id":1,"at":["SECRET"]}\n'),
    ("a.csv", "SECRET,1\n"),
    ("a.csv", "SECRET,SECRET,id\n1,2,3\n"),
    ("a.csv", "at,id\n2,SECRET\n"),
]


@pytest.mark.parametrize(("name", "text"), ASTRAYS)
def test_misplaced_redacted_value_is_not_printed(folder: Folder, name: str, text: str) -> None:
    (folder.path / "flow.yaml").write_text(HASHED)
    (folder.path / name).write_text(text)

    folder.flowctl("ingest", "--collection", "in/hashed", name, code=1)

    assert "SECRET" not in folder.printed


OTHERS = """
collections:
  in/others:
    key: [/id]
    schema:
      type: object
      properties:
        id: { type: integer }
        closed:
          type: object
          additionalProperties: false
          properties: { x: { type: string, redact: { strategy: sha256 } } }
        mapped: { type: object, additionalProperties: { type: object, properties: { y: { type: integer } } } }
        patterns: { type: object, patternProperties: { '^S': { type: integer } } }
        named: { type: object, propertyNames: { maxLength: 3 } }
        formatted: { type: object, propertyNames: { enum: [one] } }
      required: [id]
      unevaluatedProperties: false
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "document",
    [
        '{"id":1,"SECRET":1}',
        '{"id":1,"closed":{"SECRET":1}}',
        '{"id":1,"mapped":{"SECRET":1}}',
        '{"id":1,"mapped":{"SECRET":{"y":"z"}}}',
        '{"id":1,"patterns":{"SECRET":"z"}}',
        '{"id":1,"named":{"SECRET":1}}',
        '{"id":1,"formatted":{"SECRET":1}}',
    ],
)
def test_unknown_property_name_is_not_printed_with_redaction(folder: Folder, document: str) -> None:
    """Names are not redacted, and a name may be a value in a wrong place: errors show those of the schema only."""
    (folder.path / "flow.yaml").write_text(OTHERS)
    (folder.path / "a.jsonl").write_text(document)

    assert "fails its schema at '" in folder.flowctl("ingest", "--collection", "in/others", "a.jsonl", code=1)

    assert "SECRET" not in folder.printed


@pytest.mark.parametrize("value", ['"SECRET"', "7391846"])
def test_invalid_time_is_not_printed_with_redaction(folder: Folder, value: str) -> None:
    (folder.path / "flow.yaml").write_text(HASHED.replace("at: { type: string }", "at: {}"))
    (folder.path / "a.jsonl").write_text(f'{{"id":1,"at":{value}}}')

    said = folder.flowctl("ingest", "--collection", "in/hashed", "--clock", "/at", "a.jsonl", code=1)

    assert "an RFC 3339 time" in said
    assert value not in said.replace(str(folder.path), "")


@pytest.mark.deno
@pytest.mark.sampled(1)
@pytest.mark.parametrize("published", ['["SEC" + "RET"]', '[["SEC" + "RET"]]', '[{ id: "SEC" + "RET" }]'])
def test_invalid_documents_of_modules_are_not_printed(folder: Folder, published: str) -> None:
    (folder.path / "astray.ts").write_text(ASTRAY.replace("PUBLISHED", published))
    (folder.path / "plain.jsonl").write_text('{"id":1,"bad":1}\n')
    folder.flowctl("ingest", "--collection", "in/plain", "plain.jsonl")

    assert "document" in folder.flowctl("run", "--until-idle", "--task", "out/astray", code=1)

    assert "SECRET" not in folder.printed


def test_compressed_inputs_and_dumps_are_redacted(folder: Folder) -> None:
    with gzip.open(folder.path / "a.jsonl.gz", "wb") as file:
        file.write(dump_exact(person(1)))
    folder.flowctl("ingest", "--collection", "in/people", "a.jsonl.gz")

    assert "SECRET" not in folder.flowctl("collections", "read", "--collection", "in/people")
