"""Integers beyond what a key can hold are errors that name the document, wherever they turn up."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.errors import DocumentError, FlowError

HUGE = 1 << 255 * 8
CATALOG = """
collections:
  l/source:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}, n: {type: integer}}}
  l/target:
    key: [/n]
    schema: {type: object, required: [n], properties: {n: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: fromSource, source: l/source, shuffle: SHUFFLE, lambda: "SELECT json($flow_document)"}]
"""


@pytest.mark.parametrize(
    ("shuffle", "shards", "message"),
    [
        ("any", 1, "transform 'fromSource' of 'l/target' published a document without a key: an integer of 256 bytes"),
        ("{key: [/id]}", 2, "transform 'fromSource' of 'l/target' published a document without a key: an integer of"),
        ("{key: [/n]}", 2, "transform 'fromSource' of 'l/target' cannot shuffle a document: an integer of 256 bytes"),
    ],
)
def test_a_derived_key_that_is_too_large_is_told_with_its_document(
    shuffle: str, shards: int, message: str, tmp_path: Path
) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG.replace("SHUFFLE", shuffle))))
    world.ingest("l/source", [{"id": 1, "n": 1}, {"id": 2, "n": HUGE}], clock=None)
    world.wall += 10_000_000
    with pytest.raises(FlowError) as caught:
        world.step(shards=shards)
    assert caught.value.message.startswith(message)
    assert '{"id":2,"n":1262383049' in caught.value.message
    assert caught.value.position is not None


def test_an_ingested_key_that_is_too_large_is_told_with_its_line(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG.replace("SHUFFLE", "any"))))
    with pytest.raises(DocumentError) as caught:
        world.ingest(
            "l/source", [{"id": 1}, {"id": HUGE}, {"id": HUGE - 1}, {"id": HUGE, "n": "no number"}], clock=None
        )
    assert caught.value.message.split("\n")[0] == "test: 2 documents are not valid:"
    # Both are named, the invalid one without its key.
    assert "  test:2: an integer of 256 bytes cannot be part of a key: it may have 255" in caught.value.message
    assert "  test:4: document of 'l/source' fails its schema at '/n'" in caught.value.message
