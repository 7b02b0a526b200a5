"""Loading: every construct of a catalog is taken in, from wherever it is written, and once."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from patience import PATIENCE_SECONDS

from derive.catalog import load
from derive.catalog.definitions import CatalogDef, StepDef
from derive.catalog.language.json_schema import ADDRESS, DURATION, POINTER, STEP_TIME, TICK, TIME, TOKEN, catalog_schema
from derive.catalog.loading import Loader, Resources
from derive.document.clock import parse_duration
from derive.errors import CatalogError, Issue
from derive.schema.validator import compile_part

WHOLE = """\
$schema: flow.schema.json
import: []
x-keys: &key [/id]
collections:
  a/source:
    schema: {type: object, properties: {id: {type: integer}, who: {type: string}}}
    key: *key
    projections: {kind: {location: /who, partition: true}, again: /who}
    journals: {fragments: {compressionCodec: GZIP, flushInterval: 24h, length: 512, retention: 30 days}}
    expectPubId: '00112233'
    delete: false
    reset: false
  a/sql:
    schema: {type: object, properties: {id: {type: integer}}}
    key: *key
    derive:
      using: {sqlite: {migrations: [CREATE TABLE t(a);, build.sql]}}
      shuffleKeyTypes: [integer]
      redactSalt: c2FsdA==
      shards: {maxTxnDuration: 2s, minTxnDuration: 0s, hotStandbys: 0, ringBufferSize: 65536, readChannelSize: 4096, logLevel: info, flags: {a-flag: 'on'}}
      transforms:
        - &first
          name: first
          source: {name: a/source, partitions: {include: {kind: [x]}, exclude: {}}, notBefore: 2023-01-01T00:00:00Z}
          shuffle: {key: *key}
          lambda: SELECT $id;
          priority: 2
          readDelay: 1m 1500ms
          backfill: 3
        - {<<: *first, name: second, shuffle: {lambda: SELECT 1;}, lambda: two.sql}
        - {<<: *first, name: off, disable: true, source: not/there}
  a/script:
    schema: {type: object, properties: {id: {type: integer}}}
    key: *key
    derive:
      using: {typescript: {module: module.ts}}
      transforms: [{name: all, source: a/source, shuffle: any, lambda: {readOnly: true}}]
      shards: {disable: true}
captures:
  a/capture:
    endpoint: {connector: {image: ghcr.io/a/b:v1, config: config.yaml}}
    bindings: [{resource: {name: x}, target: a/source}]
    autoDiscover: {addNewBindings: true}
    interval: 5m
materializations:
  a/view:
    endpoint: {local: {command: [python, -m, view], config: {path: view.db}}}
    bindings:
      - {resource: {table: t}, source: a/sql, fields: {recommended: true, exclude: [flow_document], require: {id: {}}}}
tests:
  a/list:
    - ingest: {collection: a/source, documents: [{id: 1}], description: one}
    - verify: {collection: {name: a/source, partitions: {}}, documents: found.json}
  a/steps: {description: of steps, steps: [verify: {collection: a/source, documents: [], partitions: {}}]}
"""
FILES = {
    "build__sql": "CREATE TABLE u(b);",
    "two__sql": "SELECT 2;",
    "module__ts": "export {};",
    "found__json": '[\n\t{"id": 1}]',
}


def loaded(path: Path) -> tuple[CatalogDef, Loader]:
    loader = Loader()
    return loader.load(path), loader


def issues(path: Path) -> list[tuple[str, int, int, str, str | None]]:
    with pytest.raises(CatalogError) as caught:
        load(path)
    return [
        (each.code, each.position.line, each.position.column, each.message, each.hint) for each in caught.value.issues
    ]


def test_loader_reads_every_construct(tmp_path: Path) -> None:
    catalog, loader = loaded(write_catalog(tmp_path, WHOLE, **FILES))

    assert loader.report.issues == []
    assert [*catalog.collections, *catalog.tests] == ["a/source", "a/sql", "a/script", "a/list", "a/steps"]
    assert catalog.captures["a/capture"]["interval"].value == "5m"
    assert catalog.materializations["a/view"].bindings[0].source.name.value == "a/sql"
    derive = catalog.collections["a/sql"].derive
    assert derive is not None
    assert [each.text for each in derive.connector_config.migrations] == ["CREATE TABLE t(a);", "CREATE TABLE u(b);"]
    assert (derive.connector, derive.tick, derive.disabled) == ("sqlite", 2_000_000, False)
    first, second = derive.transforms  # the third is disabled
    assert (first.priority, first.read_delay, first.backfill) == (2, 61_000_000, 3)
    scripts = [first.script, second.script, second.shuffle_script]
    assert [each and each.text for each in scripts] == ["SELECT $id;", "SELECT 2;", "SELECT 1;"]
    script = catalog.collections["a/script"].derive
    assert script is not None
    assert (script.connector_config.module.text, script.disabled, script.transforms[0].script) == (
        "export {};",
        True,
        None,
    )
    steps = [each for each in catalog.tests["a/list"].steps if isinstance(each, StepDef)]
    assert [(each.kind, each.documents) for each in steps] == [("ingest", ({"id": 1},)), ("verify", ({"id": 1},))]


def test_settings_without_effect_are_notes(tmp_path: Path) -> None:
    _, loader = loaded(write_catalog(tmp_path, WHOLE, **FILES))

    assert [(each.code, each.message, each.position.line) for each in loader.notes] == [
        ("N008", "'journals' of 'a/source' has no effect", 9),
        ("N008", "'expectPubId' of 'a/source' has no effect", 10),
        ("N002", "'flags' of the shards of 'a/sql' are ignored", 20),
        ("N001", "capture 'a/capture' is not run", 40),
    ]


TABLE = [
    # what is replaced, by what, and all issues
    ("      transforms:\n        - &first", "      transform:\n        - &first",
     [("E011", 21, 7, "'derive' of 'a/sql' has no property 'transform'", "did you mean 'transforms'?")]),
    ("    journals:", "    journal:", [("E011", 9, 5, "collection 'a/source' has no property 'journal'", "did you mean 'journals'?")]),
    ("    schema: {type: object, properties: {id: {type: integer}, who", "    shema: {type: object, properties: {id: {type: integer}, who",
     [("E011", 6, 5, "collection 'a/source' has no property 'shema'", "did you mean 'schema'?")]),
    ("logLevel: info", "logLevel: loud", [("E010", 20, 128, "'logLevel' must be one of: error, warn, info, debug, trace", None)]),
    ("priority: 2", "priority: -2", [("E010", 27, 21, "'priority' must be an integer from 0 to 4294967295", None)]),
    ("maxTxnDuration: 2s", "maxTxnDuration: 0s",
     [("E013", 20, 32, "'maxTxnDuration' is not a duration longer than 0s, such as '1s' or '5m': '0s'", None)]),
    ("interval: 5m", "interval: often", [("E013", 44, 15, "'interval' is not a duration such as '15m', '24h' or '1h 30s': 'often'", None)]),
    ("target: a/source", "target: 5", [("E010", 42, 46, "'target' must be a string", None)]),
    ("    key: *key\n    projections", "    key: /id\n    projections", [("E010", 7, 10, "'key' must be an array", "did you mean '[/id]'?")]),
    ("    key: *key\n    projections", "    key: id\n    projections", [("E010", 7, 10, "'key' must be an array", "did you mean '[/id]'?")]),
    ("documents: [{id: 1}], description: one", "documents: [{id: 1}, 2], description: one",
     [("E601", 52, 59, "'documents' must be an array of objects", None)]),
    ("[CREATE TABLE t(a);, build.sql]", "[CREATE TABLE t(a);, 'build.sql#first']",
     [("E003", 17, 57, "cannot load the migration build.sql#first: only schemas have parts that '#' can name",
       "a string without spaces is the name of a file")]),
    ("import: []", "import: ['other.yaml#part']", [("E003", 2, 10, "cannot import other.yaml#part: only schemas have parts that '#' can name", None)]),
    ("documents: found.json", "documents: gone.json", [("E003", 53, 73, "cannot load documents gone.json: No such file or directory", None)]),
    ("documents: found.json", "documents: two.sql", [("E601", 53, 73, "two.sql must hold an array of objects", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), TABLE)
def test_loader_reports_each_fault_once_at_its_position(
    old: str,
    new: str,
    expected: list[tuple[str, int, int, str, str | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert WHOLE.count(old) == 1
    monkeypatch.chdir(tmp_path)
    write_catalog(tmp_path, WHOLE.replace(old, new), **FILES)

    assert issues(Path("flow.yaml")) == expected


def test_files_that_import_one_another_are_loaded_once(tmp_path: Path) -> None:
    collection = "{schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.yaml").write_text(
        f"import: [../flow.yaml, other.yaml, '{(tmp_path / 'flow.yaml').as_uri()}']\ncollections:\n  a/two: {collection}\n"
    )
    write_catalog(tmp_path, f"import: [sub/other.yaml, ./sub/../sub/other.yaml]\ncollections:\n  a/one: {collection}\n")

    assert sorted(load(tmp_path / "sub" / ".." / "flow.yaml").collections) == ["a/one", "a/two"]


def test_a_catalog_may_be_json(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string", "title": "\U0001f600"}}}
    catalog = {"collections": {"a/b": {"schema": schema, "key": ["/id"]}}}
    (tmp_path / "flow.json").write_text(json.dumps(catalog, indent="\t"))

    assert load(tmp_path / "flow.json").collections["a/b"].write_schema["properties"]["id"]["title"] == "\U0001f600"


def test_oversized_numbers_and_tags_are_refused(tmp_path: Path) -> None:
    for text, line in (
        ("x-a: !secret b", 1),
        ("x-a:\n  1e999", 2),
        (f"x-a: {'9' * 5000}", 1),
        (f"x-a: {'[' * 300}{']' * 300}", 1),
        ("x-a: {<<: 5}", 1),
    ):
        (tmp_path / "flow.yaml").write_text(text)

        [(code, at, *_)] = issues(tmp_path / "flow.yaml")
        assert (code, at) == ("E001", line)


PAIR = """\
collections:
  a/b:
    writeSchema: {{type: object, required: [id], properties: {{id: {{type: integer}}, at: {{type: string, format: date}}}}}}
    readSchema: {read}
    key: [/id]
"""


@pytest.mark.parametrize(
    ("reference", "document", "fits"),
    [
        ("flow://write-schema", {"id": 1, "at": "2024-01-01"}, True),
        ("flow://write-schema", {"id": "1"}, False),
        # `type`, `required` and `format` are gone
        ("flow://relaxed-write-schema", {"id": "1", "at": 5}, True),
        # nothing has been inferred, so no document passes
        ("flow://inferred-schema", {"id": 1}, False),
        ("flow://inferred-schema", {"_meta": {"inferredSchemaIsNotAvailable": True}}, True),
    ],
)
def test_read_schemas_refer_to_the_write_schema(reference: str, document: object, fits: bool, tmp_path: Path) -> None:
    read = f"{{type: object, allOf: [{{$ref: '{reference}'}}]}}"
    catalog, loader = loaded(write_catalog(tmp_path, PAIR.format(read=read)))

    assert loader.report.issues == []
    read_schema = catalog.collections["a/b"].read.schema
    assert compile_part(read_schema, "", name="a/b")(document) == fits


@pytest.mark.parametrize(
    ("read", "line", "column", "code", "message"),
    [
        ("{$ref: 'flow://wite-schema'}", 4, 24, "E003", "there is no schema flow://wite-schema"),
        ("{$ref: gone.yaml}", 4, 24, "E003", "cannot load schema gone.yaml: No such file or directory"),
        ("{type: object, properties: {id: {type: [integer, null]}}}", 4, 66, "E403",
         "null without quotes is not a type, but the value null"),
    ],
)  # fmt: skip
def test_loader_reports_faults_of_schemas(
    read: str, line: int, column: int, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_catalog(tmp_path, PAIR.format(read=read))

    assert [each[:4] for each in issues(Path("flow.yaml"))] == [(code, line, column, message)]


def test_a_missing_schema_is_reported_in_the_file_that_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "id.yaml").write_text("type: object\nproperties:\n  id: {$ref: gone.yaml}\n")
    write_catalog(tmp_path, PAIR.format(read="id.yaml"))

    with pytest.raises(CatalogError) as caught:
        load("flow.yaml")

    assert [str(each.position) for each in caught.value.issues] == ["id.yaml:3:14"]


def test_schemas_refer_to_definitions_and_anchors_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "parts.yaml").write_text("$defs: {id: {type: integer}, who: {$anchor: who, type: string}}\n")
    read = "{type: object, properties: {id: {$ref: 'parts.yaml#/$defs/id'}, who: {$ref: 'parts.yaml#who'}}}"
    spec = load(
        write_catalog(tmp_path, PAIR.format(read=read).replace("key: [/id]", "key: [/id]\n    projections: {}"))
    )

    types = {each.field: each.types for each in spec.collections["a/b"].projections}
    assert types["id"] == {"integer"}
    assert types["who"] == {"string"}


def test_second_definition_error_names_the_first_definition(tmp_path: Path) -> None:
    text = "tests: {a/b: []}\n"
    (tmp_path / "one.yaml").write_text(text)
    write_catalog(tmp_path, "import: [one.yaml]\n" + text)

    with pytest.raises(CatalogError) as caught:
        load(tmp_path / "flow.yaml")

    issue: Issue = caught.value.issues[0]
    assert issue.message.startswith("test 'a/b' is defined a second time; first at ")
    assert (Path(issue.position.file).name, issue.message[-13:]) == ("one.yaml", "flow.yaml:2:9")


def test_empty_sections_have_no_entries(tmp_path: Path) -> None:
    spec = load(write_catalog(tmp_path, "import:\ncollections:\ntests:\ncaptures:\nmaterializations:\n"))

    assert (spec.collections, spec.tests) == ({}, {})


# Resources at http(s) addresses: what is there is loaded, and what is not is said, soon.


PAGES = {
    "/flow.yaml": b"import: [sub/more.yaml]\n",
    "/sub/more.yaml": b"import: [../flow.yaml]\ncollections:\n  a/b: {schema: b.schema.yaml, key: [/id]}\n",
    "/sub/b.schema.yaml": b"type: object\nproperties: {id: {type: integer}}\n",
    "/latin": b"\xe9",
    "/import.yaml": b"import: ['file:///dev/null']\n",
    "/schema.yaml": b"collections: {a/b: {key: [/id], schema: 'file:///dev/null'}}\n",
    "/inner.yaml": b"collections: {a/b: {key: [/id], schema: {$ref: 'file:///dev/null'}}}\n",
    "/named.yaml": b"collections: {a/b: {key: [/id], schema: {$id: 'file:///dev/x', $ref: 'file:///dev/null'}}}\n",
    "/sql.yaml": b"""collections:
  a/b: {key: [/id], schema: {type: object, required: [id], properties: {id: {type: integer}}}}
  a/c:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: t, source: a/b, shuffle: any, lambda: 'file:///dev/null'}]
""",
}


class Pages(BaseHTTPRequestHandler):
    """Serves `PAGES`; `/silent` never answers, `/slow` drips, `/short` stops early, `/endless` never stops.

    `/noise` is no HTTP.
    """

    over = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.over.wait(PATIENCE_SECONDS)
            return
        if self.path == "/noise":
            self.wfile.write(b"no HTTP at all\r\n\r\n")
            return
        page = PAGES.get(self.path)
        if page is None and self.path not in ("/slow", "/short", "/endless"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(page or b"") or 1000))
        self.end_headers()
        self.wfile.write(page or b"a")
        while self.path == "/endless" and not self.over.is_set():
            try:
                self.wfile.write(bytes(1 << 20))
            except OSError:
                return
        while self.path == "/slow" and not self.over.wait(0.05):
            self.wfile.write(b"a")

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:  # of clients that have gone away
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    Pages.over.clear()
    with Server(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Pages.over.set()
        server.shutdown()
        thread.join()


def issue_of(folder: Path, reference: str, seconds: float = 5) -> Issue:
    (folder / "flow.yaml").write_text(f"import: ['{reference}']\n")
    loader = Loader(Resources(seconds=seconds))
    loader.load(folder / "flow.yaml")
    [issue] = loader.report.issues
    assert loader.incomplete
    return issue


def test_remote_catalogs_load_remote_files(tmp_path: Path, address: str) -> None:
    (tmp_path / "flow.yaml").write_text(f"import: ['{address}/flow.yaml']\n")
    loader = Loader()

    catalog = loader.load(tmp_path / "flow.yaml")

    assert loader.report.issues == []
    assert catalog.collections["a/b"].write.schema == {"type": "object", "properties": {"id": {"type": "integer"}}}
    assert catalog.collections["a/b"].at.position.file == f"{address}/sub/more.yaml"


@pytest.mark.parametrize(
    ("path", "seconds", "said"),
    [
        ("/gone.yaml", 5, "HTTP 404 Not Found"),
        # no answer, and an answer that never ends, one byte at a time
        ("/silent", 0.3, "timed out"),
        ("/slow", 0.3, "timed out"),
        ("/short", 5, "the answer ends after 1 of 1,000 bytes"),
        ("/endless", 30, "it has more than 32 MiB, the limit of a file that a catalog names"),
        ("/noise", 5, "invalid answer: BadStatusLine"),
        ("/latin", 5, "it is not UTF-8 text (byte 0)"),
    ],
)
def test_unloadable_addresses_are_reported(path: str, seconds: float, said: str, tmp_path: Path, address: str) -> None:
    issue = issue_of(tmp_path, address + path, seconds)

    assert (issue.code, issue.message) == ("E003", f"cannot load {address}{path}: {said}")
    assert (issue.position.line, issue.position.column) == (1, 10)


def test_missing_catalog_is_reported_with_the_commands_that_name_or_create_one(tmp_path: Path) -> None:
    loader = Loader()
    loader.load(tmp_path / "flow.yaml")

    (issue,) = loader.report.issues
    assert issue.message.endswith("flow.yaml: No such file or directory")
    assert issue.hint == "create a catalog: flowctl init; or name an existing one: --source FILE"
    assert issue_of(tmp_path, "gone.yaml").hint is None  # an import that is missing is another mistake


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (".", "did you mean flow.yaml?"),
        ("flow.yml", "did you mean flow.yaml?"),
        ("empty", "name a file of the folder: --source FILE"),
        ("no/flow.yaml", "create a catalog: flowctl init; or name an existing one: --source FILE"),
    ],
)
def test_similar_name_of_a_catalog_is_suggested(
    source: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "flow.yaml").write_text("")
    loader = Loader()
    loader.load(Path(source))

    assert [issue.hint for issue in loader.report.issues] == [hint]


@pytest.mark.parametrize(
    "reference", ["http://[::1/flow.yaml", "http://127.0.0.1:port/", "http://127.0.0.1:1/", "a\\0b"]
)
def test_invalid_addresses_are_refused(reference: str, tmp_path: Path) -> None:
    assert issue_of(tmp_path, reference).code == "E003"


@pytest.mark.parametrize("page", ["import", "schema", "inner", "named", "sql"])
def test_remote_catalog_cannot_name_local_files(page: str, tmp_path: Path, address: str) -> None:
    (tmp_path / "flow.yaml").write_text(f"import: ['{address}/{page}.yaml']\n")
    loader = Loader()
    loader.load(tmp_path / "flow.yaml")

    [issue] = loader.report.issues
    assert issue.code == "E003"
    assert issue.message.endswith("a catalog at an http(s) address may name only files at http(s) addresses")


@pytest.mark.parametrize("reference", ["/dev/zero", "file:///dev/zero"])
@pytest.mark.parametrize(
    "text",
    [
        "import: ['{}']\n",
        "collections: {{a/b: {{key: [/id], schema: '{}'}}}}\n",
        "collections: {{a/b: {{key: [/id], schema: {{$ref: '{}'}}}}}}\n",
        "tests: {{a/b: [{{ingest: {{collection: a/b, documents: '{}'}}}}]}}\n",
    ],
)
def test_endless_file_is_refused(text: str, reference: str, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(text.format(reference))
    loader = Loader()
    loader.load(tmp_path / "flow.yaml")

    assert [issue.message.partition(": ")[2] for issue in loader.report.issues] == [
        "it has more than 32 MiB, the limit of a file that a catalog names"
    ]


def test_a_local_schema_may_name_a_file_by_its_url(tmp_path: Path) -> None:
    schema = tmp_path / "b c.schema.yaml"
    schema.write_text("type: object\nproperties: {id: {type: integer}}\n")
    url = schema.as_uri()
    (tmp_path / "flow.yaml").write_text(f"collections: {{a/b: {{key: [/id], schema: '{url}'}}}}\n")
    loader = Loader()

    catalog = loader.load(tmp_path / "flow.yaml")

    assert loader.report.issues == []
    assert catalog.collections["a/b"].write.positions["/properties/id"].line == 2


# The JSON Schema and the loader agree: what one accepts the other loads, and what one refuses the other names.


SCHEMA = catalog_schema()
TEXTS = {
    POINTER["pattern"]: ["/id", "/a~1b"],
    TIME["pattern"]: ["2023-01-01T00:00:00Z", "2024-02-29T23:59:59.5+01:00"],
    DURATION["pattern"]: ["15m", "1 hour", "0s"],
    TICK["pattern"]: ["1h 30s"],
    STEP_TIME["pattern"]: ["2024-02-29T23:59:59Z", "+20m", "+1h 30s"],
    r"^[A-Za-z_][A-Za-z0-9_]*$": ["TOKEN"],
    ADDRESS["pattern"]: ["localhost:5000", "[::1]:80"],
    f"^{TOKEN}$": ["one", "Two-2", "drei.3"],
    f"^({TOKEN})?$": ["former", ""],
}
JUDGE = Draft202012Validator(SCHEMA)
# None of these strings names a file: each has a space in it.
GARBAGE: list[Any] = [None, True, 5, -1, 1.5, 2**40, "x y", " ", "a b/c", [], {}, [5], [None], {"k": 1}, [{}], ["/id"], [["x y"]], "any ",
           "15 m", {"x-note": 1}, {"name": "a b"}, {"schema": {}}, [{"ingest": {}, "verify": {}}], {"sqlite": {}, "typescript": {}}]  # fmt: skip


def resolve(schema: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def values(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that a part of the schema describes, most of them accepted by it."""
    schema = resolve(schema)
    if schema.get("title") == "Schema":
        return st.just({"type": "object", "properties": {"id": {"type": "integer"}}})
    if "if" in schema and "properties" not in schema:
        return st.one_of(values(schema["then"], depth), values(schema["else"], depth))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    types = schema.get("type", ["string", "object", "array", "boolean"])
    types = [types] if isinstance(types, str) else [each for each in types if each != "null"]
    return st.one_of([of_type(each, schema, depth) for each in types])


def of_type(kind: str, schema: Any, depth: int) -> st.SearchStrategy[Any]:
    if kind == "object":
        return objects(schema, depth)
    if kind == "array":
        items = st.lists(
            values(schema.get("items", {"type": "integer"}), depth + 1), min_size=schema.get("minItems", 0), max_size=2
        )
        return (
            st.tuples(items, st.just(["mod.ts", "mod.py"])).map(lambda each: [*each[0], *each[1]])
            if "contains" in schema
            else items
        )
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(0, 9)
    return st.sampled_from(TEXTS.get(schema.get("pattern"), ["SELECT 1;", "a text"]))


@st.composite
def objects(draw: st.DrawFn, schema: Any, depth: int) -> dict[str, Any]:
    known = schema.get("properties", {})
    if schema.get("minProperties"):
        names = [draw(st.sampled_from(sorted(known)))]
    elif "address" in known:
        names = draw(st.sampled_from([choice["required"] for choice in schema["oneOf"]]))
    else:
        required = schema.get("required", [])
        others = [each for each in sorted(known) if each not in required and each != "import"]
        names = [
            *required,
            *draw(st.lists(st.sampled_from(others), unique=True, max_size=4) if others else st.just([])),
        ]
    if "schema" in known:
        chosen = {"schema"} if draw(st.booleans()) else {"readSchema", "writeSchema"}
        names = [each for each in names if each not in ("schema", "readSchema", "writeSchema")] + sorted(chosen)
    if "files" in known:
        names = sorted({*names, draw(st.sampled_from(["module", "files"]))})
    found = {name: draw(values(known[name], depth + 1)) for name in names}
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        found |= draw(st.dictionaries(st.sampled_from(["a/b", "c/d", "e"]), values(extra, depth + 1), max_size=2))
    if schema.get("patternProperties") and draw(st.integers(0, 9)) == 0:
        found["x-note"] = "anything"
    return found


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    # The loader does not check the contents of a schema; building does.
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        if name not in ("schema", "readSchema", "writeSchema"):
            yield from paths(child, (*path, name))


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A catalog, most often with one thing put in its place, taken away or misspelt."""
    catalog = copy.deepcopy(draw(values(SCHEMA)))
    path = draw(st.sampled_from([each for each in paths(catalog) if each] or [()]))
    if not path:
        return draw(st.sampled_from([catalog, *GARBAGE]))
    parent = catalog
    for name in path[:-1]:
        parent = parent[name]
    how = draw(st.sampled_from(["leave", "replace", "remove", "misspell"]))
    if how == "replace":
        parent[path[-1]] = draw(st.sampled_from(GARBAGE))
    elif how == "remove":
        del parent[path[-1]]
    elif how == "misspell" and isinstance(parent, dict):
        parent[f"{path[-1]}s"] = parent.pop(path[-1])
    return catalog


def written(folder: Any, catalog: Any) -> Path:
    path: Path = folder.getbasetemp() / "law.flow.yaml"
    path.write_text(json.dumps(catalog))
    # Documents may be in a file of such a name, and so may modules.
    for name in ("SELECT 1;", "a text", "mod.ts", "mod.py"):
        (folder.getbasetemp() / name).write_text("[]")
    return path


@settings(max_examples=examples(100))
@given(catalog=values(SCHEMA))
def test_catalogs_valid_under_the_json_schema_are_loaded_completely(
    tmp_path_factory: pytest.TempPathFactory, catalog: Any
) -> None:
    assert [each.message for each in JUDGE.iter_errors(catalog)] == []

    loader = Loader()
    found = loader.load(written(tmp_path_factory, catalog))

    assert loader.report.issues == []
    assert set(found.collections) == set(catalog.get("collections", {}))
    assert set(found.tests) == set(catalog.get("tests", {}))
    assert set(found.captures) == set(catalog.get("captures", {}))
    assert set(found.materializations) == set(catalog.get("materializations", {}))


@settings(max_examples=examples(150))
@given(catalog=spoiled())
def test_loader_and_json_schema_refuse_the_same_catalogs(
    tmp_path_factory: pytest.TempPathFactory, catalog: Any
) -> None:
    path = written(tmp_path_factory, catalog)

    if JUDGE.is_valid(catalog) or catalog is None:
        loader = Loader()
        loader.load(path)
        assert [each for each in loader.report.issues if each.code != "E003"] == []
    else:
        with pytest.raises(CatalogError) as caught:
            load(path)
        assert all(each.position.line == 1 for each in caught.value.issues)


@given(
    st.lists(
        st.one_of(
            st.integers(0, 99).map(str),
            st.sampled_from(
                ["h", "hour", "m", "ms", "sec", "s", "wks", "days", "us", "usecs", " ", "\n", "x", ".", "-"]
            ),
        )
    ).map("".join)
)
def test_duration_pattern_accepts_what_the_parser_accepts(text: str) -> None:
    try:
        micros = parse_duration(text)
    except ValueError:
        micros = -1

    assert Draft202012Validator(DURATION).is_valid(text) == (micros >= 0)
    assert Draft202012Validator(TICK).is_valid(text) == (micros > 0)


def test_json_schema_describes_every_property() -> None:
    Draft202012Validator.check_schema(SCHEMA)

    def undescribed(schema: Any, path: str) -> Iterator[str]:
        for name, each in schema.get("properties", {}).items():
            if "$ref" not in each and each is not False and "description" not in each:
                yield f"{path}/{name}"
            yield from undescribed(each if isinstance(each, dict) else {}, f"{path}/{name}")
        for name in ("items", "then"):
            if name in schema:
                yield from undescribed(schema[name], f"{path}/{name}")

    parts = {"": SCHEMA, **SCHEMA["$defs"]}
    assert [each for name, part in parts.items() for each in undescribed(part, name)] == []
    assert all("title" in part and "description" in part for part in parts.values())
