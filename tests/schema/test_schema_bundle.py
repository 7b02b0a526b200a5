"""Bundling keeps every word of a schema, and leads every reference to a place inside it."""

from __future__ import annotations

import pytest

from derive.document.pointer import JSON
from derive.errors import SchemaError
from derive.position import Position
from derive.schema.bundle import bundle, bundle_documents
from derive.schema.validator import compile_validator

FILES = {
    "/c/bank.yaml": {"$defs": {"id": {"type": "integer"}}, "type": "object", "properties": {"next": {"$ref": "node.yaml"}}},
    "/c/node.yaml": {"type": ["object", "null"], "properties": {"id": {"$ref": "bank.yaml#/$defs/id"}, "next": {"$ref": "#"}}},
    "/c/anchored.yaml": {"$defs": {"x": {"$anchor": "Here", "type": "string"}}},
}  # fmt: skip


def bundled(schema: JSON) -> JSON:
    return bundle(schema, "/c/flow.yaml", FILES.__getitem__)


def test_reference_to_a_file_bundles_to_that_file() -> None:
    assert bundled({"$ref": "bank.yaml"})["type"] == "object"


def test_documents_that_refer_to_one_another_validate() -> None:
    validator = compile_validator(bundled({"$ref": "bank.yaml"}), name="x")

    assert validator.is_valid({"next": {"id": 1, "next": {"id": 2, "next": None}}})
    assert not validator.is_valid({"next": {"id": 1, "next": {"id": "2"}}})


def test_keywords_beside_a_reference_stay() -> None:
    found = bundled({"properties": {"x": {"$ref": "bank.yaml#/$defs/id", "reduce": {"strategy": "sum"}}}})

    assert found["properties"]["x"] == {"$ref": "#/$defs/bank.yaml/$defs/id", "reduce": {"strategy": "sum"}}
    assert found["$defs"]["bank.yaml"]["$defs"]["id"] == {"type": "integer"}


def test_anchors_of_other_files_are_resolved() -> None:
    validator = compile_validator(bundled({"properties": {"x": {"$ref": "anchored.yaml#Here"}}}), name="x")

    assert validator.is_valid({"x": "text"})
    assert not validator.is_valid({"x": 1})


def test_type_anchors_stay_unique() -> None:
    found = bundled(
        {
            "properties": {"x": {"$ref": "anchored.yaml#Here"}, "$anchor": {"$anchor": "other"}},
            "$defs": {"a": {"$anchor": "Here"}, "b": {"const": {"$anchor": "There"}}},
        }
    )

    assert found["$defs"]["a"] == {"$anchor": "Here"}
    assert found["$defs"]["anchored.yaml"]["$defs"]["x"] == {"type": "string"}
    assert found["properties"]["$anchor"] == {}
    assert found["$defs"]["b"] == {"const": {"$anchor": "There"}}


def test_properties_named_like_keywords_are_bundled_as_properties() -> None:
    found = bundled({"properties": {"default": {"$ref": "bank.yaml#/$defs/id"}, "$ref": {"type": "string"}}})

    assert found["properties"]["default"] == {"$ref": "#/$defs/bank.yaml/$defs/id"}
    assert found["properties"]["$ref"] == {"type": "string"}


def test_keyword_values_are_not_treated_as_schemas() -> None:
    found = bundled({"const": {"$ref": "gone.yaml"}, "default": {"$ref": "gone.yaml"}})

    assert found == {"const": {"$ref": "gone.yaml"}, "default": {"$ref": "gone.yaml"}}


@pytest.mark.parametrize(
    "reference", ["#/$defs/a b", "#/$defs/a%20b", "#named", "inner.json", "/c/inner.json", "inner.json#named"]
)
def test_schema_is_found_under_each_of_its_names(reference: str) -> None:
    found = bundled(
        {
            "properties": {"x": {"$ref": reference}},
            "$defs": {
                "a b": {"$anchor": "named", "type": "string"},
                "in": {"$id": "inner.json", "$anchor": "named", "type": "string"},
            },
        }
    )
    validator = compile_validator(found, name="x")

    assert (validator.is_valid({"x": "text"}), validator.is_valid({"x": 1})) == (True, False)
    assert "$id" not in found["$defs"]["in"]


def test_tuple_keywords_of_draft_2019_09_are_converted() -> None:
    found = bundled(
        {
            "items": [{"type": "string"}, {"$ref": "#/items/0"}],
            "additionalItems": {
                "$ref": "#/additionalItems/properties/x/items/1",
                "properties": {"x": {"items": [True, {"type": "null"}]}},
            },
        }
    )

    assert found == {
        "prefixItems": [{"type": "string"}, {"$ref": "#/prefixItems/0"}],
        "items": {
            "$ref": "#/items/properties/x/prefixItems/1",
            "properties": {"x": {"prefixItems": [True, {"type": "null"}]}},
        },
    }


@pytest.mark.parametrize(
    ("pointer", "origin"),
    [
        ("", ("/c/flow.yaml", "")),
        ("/properties/x/$ref", ("/c/flow.yaml", "/properties/x/$ref")),
        ("/$defs/bank.yaml", ("/c/bank.yaml", "")),
        ("/$defs/bank.yaml/properties/next", ("/c/bank.yaml", "/properties/next")),
        ("/$defs/bank.yaml2", ("/c/flow.yaml", "/$defs/bank.yaml2")),
        ("/properties/y/prefixItems/0/type", ("/c/flow.yaml", "/properties/y/items/0/type")),
        ("/properties/y/items/type", ("/c/flow.yaml", "/properties/y/additionalItems/type")),
    ],
)
def test_bundle_knows_the_origin_of_each_part(pointer: str, origin: tuple[str, str]) -> None:
    schema = {
        "properties": {
            "x": {"$ref": "bank.yaml"},
            "y": {"items": [{"type": "null"}], "additionalItems": {"type": "string"}},
        }
    }

    assert bundle_documents(schema, "/c/flow.yaml", FILES.__getitem__).origin(pointer) == origin


def test_fictitious_id_resolves_beside_the_file() -> None:
    files = {"/c/a.yaml": {"type": "integer"}}
    asked = []

    def load(url: str) -> JSON:
        asked.append(url)
        if url not in files:
            raise FileNotFoundError(url)
        return files[url]

    schema = {"$id": "https://example.com/root.json", "properties": {name: {"$ref": "a.yaml"} for name in "xy"}}
    found = bundle(schema, "/c/flow.yaml", load)

    assert found["properties"] == {"x": {"$ref": "#/$defs/a.yaml"}, "y": {"$ref": "#/$defs/a.yaml"}}
    assert asked == ["https://example.com/a.yaml", "/c/a.yaml"]
    with pytest.raises(FileNotFoundError, match="gone"):
        bundle({"properties": {"x": {"$ref": "gone.yaml"}}}, "/c/flow.yaml", load)


def test_file_loaded_by_path_is_not_loaded_by_id() -> None:
    schema = {
        "properties": {
            "x": {"$ref": "bank.yaml"},
            "y": {"$id": "https://example.com/y.json", "allOf": [{"$ref": "bank.yaml"}]},
        }
    }

    found = bundle(schema, "/c/flow.yaml", FILES.__getitem__)

    assert found["properties"]["y"] == {"allOf": [{"$ref": "#/$defs/bank.yaml"}]}


def test_files_of_one_name_are_distinguished() -> None:
    files = {"/c/a/x y.yaml": {"type": "integer"}, "/c/b/x y.yaml": {"type": "string"}}
    schema = {"properties": {"p": {"$ref": "a/x y.yaml"}, "q": {"$ref": "b/x y.yaml"}}, "$defs": {"x_y.yaml": True}}

    found = bundle(schema, "/c/flow.yaml", files.__getitem__)

    assert found["properties"] == {"p": {"$ref": "#/$defs/x_y.yaml-2"}, "q": {"$ref": "#/$defs/x_y.yaml-3"}}
    assert (found["$defs"]["x_y.yaml-2"], found["$defs"]["x_y.yaml"]) == ({"type": "integer"}, True)


def test_references_at_one_location_both_apply() -> None:
    schema = {"$ref": "#/$defs/a", "$recursiveRef": "#/$defs/b", "$defs": {"a": {"minimum": 1}, "b": {"maximum": 2}}}

    found = bundled(schema)

    assert (found["$ref"], found["allOf"]) == ("#/$defs/a", [{"$ref": "#/$defs/b"}])


def test_a_dynamic_reference_with_a_choice_is_refused() -> None:
    tree = {"$id": "tree", "$recursiveAnchor": True, "properties": {"children": {"items": {"$recursiveRef": "#"}}}}

    assert bundled(tree)["properties"]["children"]["items"] == {"$ref": "#"}
    with pytest.raises(SchemaError, match="leads to one of 2 schemas, depending on the path it is reached by"):
        bundled({"$recursiveAnchor": True, "$ref": "tree", "$defs": {"tree": tree}})


def test_meta_schema_is_not_loaded() -> None:
    meta = "https://json-schema.org/draft/2020-12/schema"
    found = bundled({"properties": {"schema": {"$ref": meta}, "type": {"$ref": f"{meta}#/$defs/x"}}})

    assert found["properties"] == {"schema": {"$ref": meta}, "type": {"$ref": f"{meta}#/$defs/x"}}


def test_names_below_unknown_keywords_are_ignored() -> None:
    found = bundled({"x-y": {"$id": "/d/other.json", "properties": {"x": {"$ref": "bank.yaml"}}}})

    assert found["x-y"]["properties"]["x"] == {"$ref": "#/$defs/bank.yaml"}


@pytest.mark.parametrize("schema", [{"$ref": "http://[x"}, {"not": {"$ref": "http://[x"}}, {"$id": "http://[x"}])
def test_invalid_urls_are_refused(schema: JSON) -> None:
    with pytest.raises(SchemaError, match="'http://\\[x' is not a URL: Invalid IPv6 URL"):
        bundled(schema)


def test_the_position_of_a_violation_is_in_the_file_of_the_keyword() -> None:
    lines = {("/c/flow.yaml", "/properties/x"): 3, ("/c/bank.yaml", ""): 1, ("/c/bank.yaml", "/$defs/id/type"): 8}

    def locate(url: str, pointer: str) -> Position | None:
        return Position(url, lines[url, pointer]) if (url, pointer) in lines else None

    found = bundle_documents({"properties": {"x": {"$ref": "bank.yaml#/$defs/id"}}}, "/c/flow.yaml", FILES.__getitem__)
    positions = found.positions(locate)

    assert positions == {
        "/properties/x": Position("/c/flow.yaml", 3),
        "/$defs/bank.yaml": Position("/c/bank.yaml", 1),
        "/$defs/bank.yaml/$defs/id/type": Position("/c/bank.yaml", 8),
    }
    violation = compile_validator(found.schema, name="x").violation({"x": "text"}, positions=positions)
    assert str(violation) == (
        "/c/bank.yaml:8:1: document of 'x' fails its schema at '/x': \"text\" is not of type \"integer\""
        " (keyword /$defs/bank.yaml/$defs/id/type)"
    )
