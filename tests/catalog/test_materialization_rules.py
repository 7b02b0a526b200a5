"""Materializations in catalogs: what is built of them, and everything that may be wrong with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.catalog.build import build
from derive.position import Position
from derive.protocol.specs import (
    AddressEndpoint,
    CatalogSpec,
    ConnectorEndpoint,
    LocalEndpoint,
    MaterializationSpec,
    SelectorSpec,
)

BASE = """\
collections:
  a/source:
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, who: {type: string}}
    key: [/id]
    projections: {part: {location: /who, partition: true}, number: /id}
materializations:
  a/view:
    endpoint:
      connector:
        image: ghcr.io/estuary/materialize-postgres:v1
        config: {address: "localhost:5432", password: "${env:DB_PASSWORD}"}
    bindings:
      - resource: {table: rows, delta_updates: false}
        source: a/source
      - resource: {schema: public, table: chosen}
        source: {name: a/source, partitions: {include: {part: [ann]}}, notBefore: 2024-01-01T00:00:00Z, notAfter: 2025-01-01T00:00:00Z}
        fields: {recommended: 1, require: {who: {size: 5}}, include: {number: {}}, exclude: [part], groupBy: [number]}
        priority: 2
        backfill: 3
      - resource: {table: gone}
        source: not/there
        disable: true
    shards: {maxTxnDuration: 5s}
"""
CONNECTOR = BASE[BASE.index("      connector:") : BASE.index("    bindings:")]
PLAIN = "      - resource: {table: rows, delta_updates: false}\n        source: a/source"


def catalog(folder: Path, text: str, **files: str) -> CatalogSpec:
    return load(write_catalog(folder, text, **files))


def view(folder: Path, text: str, **files: str) -> MaterializationSpec:
    return catalog(folder, text, **files).materializations["a/view"]


def test_materialization_is_built_from_its_definition(tmp_path: Path) -> None:
    spec = view(tmp_path, BASE)

    assert (spec.name, spec.tick, spec.disabled) == ("a/view", 5_000_000, False)
    assert [read.state_key for read in spec.inputs] == ["a/source -> rows", "a/source -> public.chosen.v3"]
    rows, chosen = spec.bindings
    assert (rows.resource, rows.collection.name) == ({"table": "rows", "delta_updates": False}, "a/source")
    assert (rows.fields.recommended, rows.fields.depth, rows.fields.include) == (True, None, {})
    assert (chosen.input.index, chosen.input.priority, chosen.input.selector) == (
        1,
        2,
        SelectorSpec({"part": ("ann",)}),
    )
    assert (chosen.input.not_before, chosen.input.not_after) == (1_704_067_200_000_000, 1_735_689_600_000_000)
    assert (chosen.fields.recommended, chosen.fields.depth) == (True, 1)
    assert chosen.fields.include == {"who": {"size": 5}, "number": {}}
    assert (chosen.fields.exclude, chosen.fields.key) == (("part",), ("number",))
    assert chosen.fields.position_of("who") == Position(f"{tmp_path}/flow.yaml", 20, 44, 3)
    assert list(spec.sources) == ["a/source"]


def test_endpoint_is_built_from_an_image(tmp_path: Path) -> None:
    endpoint = view(tmp_path, BASE).endpoint

    assert isinstance(endpoint, ConnectorEndpoint)
    assert endpoint.connector == "materialize-postgres"
    assert endpoint.config.written == {"address": "localhost:5432", "password": "${env:DB_PASSWORD}"}
    assert endpoint.config.url == f"{tmp_path}/flow.yaml"
    assert endpoint.config.positions["/password"] == Position(f"{tmp_path}/flow.yaml", 14, 55, 20)


def test_endpoint_is_built_from_a_local_command(tmp_path: Path) -> None:
    local = "      local: {command: [python, -m, mine], config: {path: a.db}, env: {TOKEN: '${file:token}'}}\n"
    endpoint = view(tmp_path, BASE.replace(CONNECTOR, local)).endpoint

    assert isinstance(endpoint, LocalEndpoint)
    assert (endpoint.command, endpoint.folder) == (("python", "-m", "mine"), str(tmp_path))
    assert (endpoint.config.written, endpoint.env.written) == ({"path": "a.db"}, {"TOKEN": "${file:token}"})


def test_endpoint_is_built_from_an_address(tmp_path: Path) -> None:
    endpoint = view(tmp_path, BASE.replace(CONNECTOR, "      address: localhost:5000\n      config: {a: 1}\n")).endpoint

    assert isinstance(endpoint, AddressEndpoint)
    assert (endpoint.address, endpoint.config.written) == ("localhost:5000", {"a": 1})


def test_configuration_and_resource_may_be_in_files(tmp_path: Path) -> None:
    text = BASE.replace('{address: "localhost:5432", password: "${env:DB_PASSWORD}"}', "secrets/config.yaml")
    text = text.replace("{table: rows, delta_updates: false}", "rows.json")
    os.mkdir(tmp_path / "secrets")
    (tmp_path / "secrets" / "config.yaml").write_text("path: ${file:path}\n")
    (tmp_path / "secrets" / "path").write_text("a.db\n")
    spec = view(tmp_path, text, rows__json='{"table": "t"}')

    assert spec.bindings[0].name == "a/source -> t"
    assert spec.endpoint.config.reveal() == {"path": "a.db"}
    assert spec.endpoint.config.positions["/path"].file == f"{tmp_path}/secrets/config.yaml"


def test_a_catalog_is_checked_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_PASSWORD", raising=False)

    assert build(write_catalog(tmp_path, BASE)).issues == ()


def test_materialization_without_bindings_is_valid(tmp_path: Path) -> None:
    endpoint = BASE[: BASE.index("    bindings:")]

    assert view(tmp_path, f"{endpoint}    bindings: []\n    shards: {{disable: true}}\n").disabled


def test_ticks_are_ten_milliseconds_by_default(tmp_path: Path) -> None:
    assert view(tmp_path, BASE.replace("    shards: {maxTxnDuration: 5s}\n", "")).tick == 10_000


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        # a resource is told by what it is called, however it is written to
        ("{table: t}", "{table: u, comment: x}", ["a/source -> t", "a/source -> u"]),
        ("{table: t, schema: s}", "{schema: r, table: t}", ["a/source -> s.t", "a/source -> r.t"]),
        (
            "{path: out/t, format: csv}",
            "{path: out/t, format: parquet}",
            ["a/source -> out/t", "a/source -> out/t (2)"],
        ),
        ("{kind: 5}", "{kind: 6, on: true}", ['a/source -> {"kind":5}', 'a/source -> {"kind":6}']),
        ("{b: [ü], a: {c: 1}}", "{on: true}", ['a/source -> {"a":{"c":1},"b":["ü"]}', "a/source"]),
    ],
)
def test_binding_names_consist_of_source_and_resource(
    first: str, second: str, names: list[str], tmp_path: Path
) -> None:
    binding = "      - {{resource: {}, source: a/source}}\n"
    text = BASE[: BASE.index("      - resource")] + binding.format(first) + binding.format(second)

    assert [read.name for read in view(tmp_path, text).inputs] == names


ISSUES = [
    # what is replaced, by what, and all issues: code, line, column, message, hint
    ("source: a/source\n", "source: a/sourse\n", ("E201", 17, 17, "collection 'a/sourse', referenced by materialization 'a/view', is not defined", "did you mean 'a/source'? (flow.yaml:2:3)")),
    ("partitions: {include: {part", "partitions: {include: {who", ("E306", 19, 57, "'who' is not a logical partition of 'a/source'", "declare it there: 'projections: {who: {location: /who, partition: true}}'")),
    ("notBefore: 2024", "notBefore: 2026", ("E501", 19, 83, "'notBefore' must come before 'notAfter'", None)),
    ("notBefore: 2024-01-01T00:00:00Z", "notBefore: monday", ("E502", 19, 83, "'monday' is not a time such as 2023-01-23T01:00:00Z", None)),
    ("require: {who: {size: 5}}", "require: {woh: {}}", ("E704", 20, 44, "'a/source' has no field 'woh'", "did you mean 'who'?")),
    ("exclude: [part]", "exclude: [everything]", ("E704", 20, 94, "'a/source' has no field 'everything'", "known: flow_document, flow_published_at, id, number, part, who")),
    ("exclude: [part]", "exclude: [who]", ("E705", 20, 94, "the field 'who' is both excluded and included", None)),
    ("groupBy: [number]", "groupBy: [who]", ("E706", 20, 110, "'groupBy' must name the key of 'a/source', which is /id", "derive a collection with that key, and materialize it")),
    ("recommended: 1", "recommended: -1", ("E010", 20, 31, "'recommended' is true, false, or a number of levels", None)),
    ("{schema: public, table: chosen}", "{delta_updates: false, table: rows}", ("E703", 18, 19, "another binding already has this resource, at flow.yaml:16:9", None)),
    ("{schema: public, table: chosen}", "gone.yaml", ("E003", 18, 19, "cannot load the resource gone.yaml: No such file or directory", None)),
    ("{schema: public, table: chosen}", "list.yaml", ("E701", 18, 19, "list.yaml must hold an object: the resource", None)),
    ("{schema: public, table: chosen}", "list.yaml#/0", ("E003", 18, 19, "cannot load the resource list.yaml#/0: only schemas have parts that '#' can name", None)),
    ("- resource: {schema: public, table: chosen}\n        source", "- source", ("E012", 18, 9, "a binding needs a property 'resource'", "such as 'resource: {table: NAME}'; for files, 'resource: {path: NAME}'")),
    ("priority: 2", "priority: high", ("E010", 21, 19, "'priority' must be an integer from 0 to 4294967295", None)),
    ("source: a/source\n", "sauce: a/source\n", ("E011", 17, 9, "a binding has no property 'sauce'", "did you mean 'source'?")),
    (CONNECTOR, "      address: localhost\n      config: {}\n", ("E713", 12, 16, "an address is a host and a port, such as 'localhost:5000'", None)),
    (CONNECTOR, "      address: localhost:5000\n", ("E014", 11, 5, "'endpoint' is one of 'connector', 'local', and 'address' with a 'config' beside it", None)),
    (CONNECTOR, CONNECTOR + "      config: {}\n", ("E014", 11, 5, "'endpoint' is one of 'connector', 'local', and 'address' with a 'config' beside it", None)),
    ("      connector:", "      conector:", ("E011", 12, 7, "'endpoint' has no property 'conector'", "did you mean 'connector'?")),
    ("maxTxnDuration: 5s", "maxTxnDuration: 0s", ("E013", 26, 30, "'maxTxnDuration' is not a duration longer than 0s, such as '1s' or '5m': '0s'", None)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "issue"), ISSUES)
def test_materialization_faults_are_issues(
    old: str, new: str, issue: tuple[str, int, int, str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert BASE.count(old) == 1
    write_catalog(tmp_path, BASE.replace(old, new), list__yaml="[1]")

    built = build("flow.yaml")

    assert [
        (each.code, each.position.line, each.position.column, each.message, each.hint) for each in built.issues
    ] == [issue]
    assert "a/source" in built.spec.collections


def test_unloadable_configuration_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = BASE.replace('{address: "localhost:5432", password: "${env:DB_PASSWORD}"}', "config.yaml")
    write_catalog(tmp_path, text)

    assert [str(each.message) for each in build("flow.yaml").issues] == [
        "cannot load the configuration config.yaml: No such file or directory"
    ]
    (tmp_path / "config.yaml").write_text("a: [")
    assert [each.code for each in build("flow.yaml").issues] == ["E001"]
    (tmp_path / "config.yaml").write_text("text")
    assert [each.code for each in build("flow.yaml").issues] == ["E701"]


NOTES = [
    ("${env:DB_PASSWORD}", "${DB_PASSWORD}", [("N004", 14, 55, "'${DB_PASSWORD}' is not a reference to a secret: the text stays unchanged", "write '${env:DB_PASSWORD}'")]),
    ("${env:DB_PASSWORD}", "$${DB_PASSWORD} $1 {}", []),
    ('"${env:DB_PASSWORD}"}', "x, sops: {mac: y}}", [("N005", 14, 58, "this configuration is encrypted, and has to be decrypted before it is used", None)]),
    ("    bindings:\n", "    source: {capture: a/capture}\n    bindings:\n", [("N003", 15, 5, "the capture that 'a/view' names adds no bindings", "name the collections in 'bindings'")]),
    ("maxTxnDuration: 5s", "flags: {a: b}", [("N002", 26, 14, "'flags' of the shards of 'a/view' are ignored", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "notes"), NOTES)
def test_unusual_materialization_settings_are_notes(
    old: str, new: str, notes: list[tuple[str, int, int, str, str | None]], tmp_path: Path
) -> None:
    assert BASE.count(old) == 1

    built = build(write_catalog(tmp_path, BASE.replace(old, new)))

    assert [
        (each.code, each.position.line, each.position.column, each.message, each.hint) for each in built.notes
    ] == notes
    assert built.issues == ()
