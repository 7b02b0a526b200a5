"""Settings that do nothing here: each is told, with its place, where it asks for something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from derive.catalog.build import build
from derive.catalog.language.json_schema import NO_EFFECT, catalog_schema

CATALOG = """
collections:
  a/source:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    # collection
  a/derived:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: t, source: a/source, shuffle: any, lambda: SELECT $id}]
      # derive
materializations:
  a/view:
    endpoint: {connector: {image: materialize-sqlite, config: {path: x.db}}}
    bindings:
      - source: a/source
        resource: {table: t}
        # binding
    # materialization
tests:
  a/test:
    description: one
    steps: []
    # test
"""
REMOVE, FLOWCTL_RESET = "leave it out of the catalog to remove it", "'flowctl reset' starts a task over"
TICK = "'maxTxnDuration' is the tick"

SETTINGS = [
    ("collection", "reset: true", "a/source", FLOWCTL_RESET),
    ("collection", "delete: true", "a/source", REMOVE),
    ("collection", "expectPubId: 'ff'", "a/source", None),
    ("collection", "journals: {fragments: {retention: 1d}}", "a/source", "'flowctl compact' says what is kept"),
    ("derive", "shards: {minTxnDuration: 5s}", "a/derived", TICK),
    ("derive", "shards: {hotStandbys: 1}", "a/derived", None),
    ("derive", "shards: {ringBufferSize: 1}", "a/derived", None),
    ("derive", "shards: {readChannelSize: 1}", "a/derived", None),
    ("materialization", "shards: {minTxnDuration: 5s}", "a/view", TICK),
    ("materialization", "shards: {hotStandbys: 2}", "a/view", None),
    ("materialization", "reset: true", "a/view", FLOWCTL_RESET),
    ("materialization", "delete: true", "a/view", REMOVE),
    ("materialization", "expectPubId: 'ff'", "a/view", None),
    *(
        (place, "onIncompatibleSchemaChange: abort", "a/view", "a task whose schema no longer fits stops, and says why")
        for place in ("binding", "materialization")
    ),
    ("test", "delete: true", "a/test", REMOVE),
    ("test", "expectPubId: 'ff'", "a/test", None),
]


def written(tmp_path: Path, place: str, setting: str) -> Path:
    path = tmp_path / "flow.yaml"
    path.write_text(CATALOG.replace(f"# {place}\n", f"{setting}\n"))
    return path


@pytest.mark.parametrize(("place", "setting", "entity", "hint"), SETTINGS)
def test_a_setting_without_effect_is_told(
    place: str, setting: str, entity: str, hint: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, place, setting)
    name = setting.removeprefix("shards: {").partition(":")[0]

    built = build(path)

    assert built.issues == ()
    (note,) = built.notes
    assert (note.code, note.message, note.hint) == ("N008", f"'{name}' of '{entity}' has no effect here", hint)
    line = path.read_text().split("\n")[note.position.line - 1]
    assert line[note.position.column - 1 :].startswith(f"{name}:")


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("collection", "reset: false"),
        ("derive", "shards: {minTxnDuration: 0s, hotStandbys: 0, ringBufferSize: 65536}"),
        ("materialization", "delete: false"),
        ("collection", "x-anything: {reset: true}"),
    ],
)
def test_a_setting_that_asks_for_nothing_is_not_told(place: str, setting: str, tmp_path: Path) -> None:
    assert build(written(tmp_path, place, setting)).notes == ()


def without_effect(schema: Any) -> set[str]:
    """Return the properties that a schema marks; fail if one is only described so."""
    names = set()
    if isinstance(schema, dict):
        for name, child in schema.get("properties", {}).items():
            is_marked = isinstance(child, dict) and NO_EFFECT in child
            described = "of no effect" in child.get("description", "") if isinstance(child, dict) else False
            assert is_marked or not described or name in ("flags", "source", "fragments"), name
            names |= {name} if is_marked else set()
        for child in schema.values():
            names |= without_effect(child)
    for child in schema if isinstance(schema, list) else ():
        names |= without_effect(child)
    return names


def test_each_setting_without_effect_is_in_the_table() -> None:
    tried = {setting.removeprefix("shards: {").partition(":")[0] for _, setting, _, _ in SETTINGS}

    assert without_effect(catalog_schema()) - {"protobuf"} == tried


@pytest.mark.parametrize(
    ("name", "hint"),
    [("macadr", "did you mean 'macaddr'?"), ("password", None), ("datetime", "did you mean 'date-time'?")],
)
def test_a_format_that_is_not_checked_is_told(name: str, hint: str | None, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(CATALOG.replace("{id: {type: integer}}", f"{{id: {{type: integer}}, x: {{format: {name}}}}}", 1))

    (note,) = build(path).notes

    assert (note.code, note.message, note.hint) == ("N009", f"no value is checked for the format '{name}'", hint)
    assert note.position.line == 4


def test_formats_that_are_checked_are_not_told(tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    names = ["integer", "number", "macaddr", "macaddr8", "sha256", "duration", "uuid", "date", "date-time", "ipv4"]
    fields = ", ".join(f"f{index}: {{format: {name}}}" for index, name in enumerate(names))
    path.write_text(CATALOG.replace("{id: {type: integer}}", f"{{id: {{type: integer}}, {fields}}}", 1))

    assert build(path).notes == ()
