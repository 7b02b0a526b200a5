"""Where a schema says what a document breaks: in the catalog, in a file of its own, or in what that refers to."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.errors import DocumentError

CATALOG = """\
collections:
  a/inline:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties:
        id: {type: integer}
        deep: {items: {$ref: "parts.yaml#/$defs/short"}}
  a/file:
    key: [/id]
    schema: whole.yaml
"""
FILES = {
    "parts__yaml": "$defs:\n  short:\n    type: string\n    maxLength: 3\n",
    "whole__yaml": "type: object\nrequired: [id]\nproperties:\n  id: {type: string,\n       minLength: 2}\n",
}


@pytest.mark.parametrize(
    ("collection", "document", "written"),
    [
        ("a/inline", {"id": "x"}, "flow.yaml:8:14"),
        ("a/inline", {}, "flow.yaml:6:7"),
        ("a/inline", {"id": 1, "deep": ["ab", "long"]}, "parts.yaml:4:5"),
        ("a/file", {"id": "x"}, "whole.yaml:5:8"),
        ("a/file", {"id": 7}, "whole.yaml:4:8"),
    ],
)
def test_violation_has_the_position_of_its_keyword(
    collection: str, document: dict[str, object], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_catalog(tmp_path, CATALOG, **FILES)
    world = World(tmp_path / "data", load(Path("flow.yaml")))

    with pytest.raises(DocumentError, match=f"which is at {written}"):
        world.ingest(collection, [document], clock=None)


def test_pickled_schema_keeps_its_positions(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG, **FILES)
    spec = load(tmp_path / "flow.yaml").collections["a/inline"]
    sent = pickle.loads(pickle.dumps(spec))

    assert type(sent.write_positions) is dict
    assert sent.write_positions["/required"].line == 6
    assert dict(spec.write_positions) == sent.write_positions
