"""Bundling keeps every word of a schema, and leads every reference to a place inside it."""

from __future__ import annotations

from derive.document.pointer import JSON
from derive.schema.index import bundle
from derive.schema.validator import compile_validator

FILES = {
    "/c/bank.yaml": {"$defs": {"id": {"type": "integer"}}, "type": "object", "properties": {"next": {"$ref": "node.yaml"}}},
    "/c/node.yaml": {"type": ["object", "null"], "properties": {"id": {"$ref": "bank.yaml#/$defs/id"}, "next": {"$ref": "#"}}},
    "/c/anchored.yaml": {"$defs": {"x": {"$anchor": "Here", "type": "string"}}},
}  # fmt: skip


def bundled(schema: JSON) -> JSON:
    return bundle(schema, "/c/flow.yaml", FILES.__getitem__)


def test_a_schema_that_is_only_a_file_is_that_file() -> None:
    assert bundled({"$ref": "bank.yaml"})["type"] == "object"


def test_documents_that_refer_to_one_another_validate() -> None:
    validator = compile_validator(bundled({"$ref": "bank.yaml"}), name="x")

    assert validator.is_valid({"next": {"id": 1, "next": {"id": 2, "next": None}}})
    assert not validator.is_valid({"next": {"id": 1, "next": {"id": "2"}}})


def test_siblings_of_a_reference_stay() -> None:
    found = bundled({"properties": {"x": {"$ref": "bank.yaml#/$defs/id", "reduce": {"strategy": "sum"}}}})

    assert found["properties"]["x"] == {"$ref": "#/$defs/bank.yaml/$defs/id", "reduce": {"strategy": "sum"}}
    assert found["$defs"]["bank.yaml"]["$defs"]["id"] == {"type": "integer"}


def test_anchors_of_other_files() -> None:
    validator = compile_validator(bundled({"properties": {"x": {"$ref": "anchored.yaml#Here"}}}), name="x")

    assert validator.is_valid({"x": "text"})
    assert not validator.is_valid({"x": 1})


def test_properties_named_like_keywords_are_properties() -> None:
    found = bundled({"properties": {"default": {"$ref": "bank.yaml#/$defs/id"}, "$ref": {"type": "string"}}})

    assert found["properties"]["default"] == {"$ref": "#/$defs/bank.yaml/$defs/id"}
    assert found["properties"]["$ref"] == {"type": "string"}


def test_values_are_not_schemas() -> None:
    found = bundled({"const": {"$ref": "gone.yaml"}, "default": {"$ref": "gone.yaml"}})

    assert found == {"const": {"$ref": "gone.yaml"}, "default": {"$ref": "gone.yaml"}}
