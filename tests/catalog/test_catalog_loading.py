"""Loading: every construct of a catalog is taken in, from wherever it is written, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.catalog.definitions import CatalogDef, StepDef
from derive.catalog.loading.loader import Loader
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


def test_every_construct_is_taken_in(tmp_path: Path) -> None:
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
    assert [(each.kind, each.description, each.documents) for each in steps] == [
        ("ingest", "one", ({"id": 1},)),
        ("verify", "", ({"id": 1},)),
    ]
    assert catalog.tests["a/steps"].description == "of steps"


def test_what_has_no_effect_here_is_noted_and_no_error(tmp_path: Path) -> None:
    _, loader = loaded(write_catalog(tmp_path, WHOLE, **FILES))

    assert [(each.code, each.message, each.position.line) for each in loader.notes] == [
        ("N008", "'journals' of 'a/source' has no effect here", 9),
        ("N008", "'expectPubId' of 'a/source' has no effect here", 10),
        ("N002", "'flags' of the shards of 'a/sql' are ignored", 20),
        ("N001", "capture 'a/capture' is not run here", 40),
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
    ("    key: *key\n    projections", "    key: /id\n    projections", [("E010", 7, 10, "'key' must be an array", None)]),
    ("documents: [{id: 1}], description: one", "documents: [{id: 1}, 2], description: one",
     [("E601", 52, 59, "'documents' must be an array of objects", None)]),
    ("[CREATE TABLE t(a);, build.sql]", "[CREATE TABLE t(a);, 'build.sql#first']",
     [("E003", 17, 57, "cannot load the migration build.sql#first: only schemas have parts that '#' can name",
       "a string without any space is taken for the name of a file")]),
    ("import: []", "import: ['other.yaml#part']", [("E003", 2, 10, "cannot import other.yaml#part: only schemas have parts that '#' can name", None)]),
    ("documents: found.json", "documents: gone.json", [("E003", 53, 73, "cannot load documents gone.json: No such file or directory", None)]),
    ("documents: found.json", "documents: two.sql", [("E601", 53, 73, "two.sql must hold an array of objects", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), TABLE)
def test_faults_are_told_once_where_they_are(
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


def test_files_may_import_one_another_and_are_loaded_once(tmp_path: Path) -> None:
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


def test_a_number_beyond_reach_and_a_tag_are_no_yaml_of_ours(tmp_path: Path) -> None:
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
def test_read_schemas_made_of_the_write_schema(reference: str, document: object, fits: bool, tmp_path: Path) -> None:
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
         "a bare null is no type: write it in quotes"),
    ],
)  # fmt: skip
def test_faults_of_schemas(
    read: str, line: int, column: int, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_catalog(tmp_path, PAIR.format(read=read))

    assert [each[:4] for each in issues(Path("flow.yaml"))] == [(code, line, column, message)]


def test_a_missing_schema_is_told_in_the_file_that_refers_to_it(
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


def test_a_second_definition_names_the_first(tmp_path: Path) -> None:
    text = "tests: {a/b: []}\n"
    (tmp_path / "one.yaml").write_text(text)
    write_catalog(tmp_path, "import: [one.yaml]\n" + text)

    with pytest.raises(CatalogError) as caught:
        load(tmp_path / "flow.yaml")

    issue: Issue = caught.value.issues[0]
    assert issue.message.startswith("test 'a/b' is defined a second time; first at ")
    assert (Path(issue.position.file).name, issue.message[-13:]) == ("one.yaml", "flow.yaml:2:9")


def test_what_is_left_empty_is_nothing(tmp_path: Path) -> None:
    spec = load(write_catalog(tmp_path, "import:\ncollections:\ntests:\ncaptures:\nmaterializations:\n"))

    assert (spec.collections, spec.tests) == ({}, {})
