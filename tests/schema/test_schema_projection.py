"""Which fields a collection has, and what is known of each."""

from __future__ import annotations

from typing import Any

import pytest

from derive.document.pointer import JSON
from derive.schema.projection import Declared, project
from derive.schema.shape import ALL, ANYTHING, infer, locate

SCHEMA = {
    "type": "object",
    "required": ["id", "far"],
    "properties": {
        "id": {"type": "integer", "title": "Identity"},
        "far": {
            "type": "object",
            "required": ["a/b"],
            "properties": {"a/b": {"type": ["string", "null"], "default": None}},
        },
        "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"const": "x"}], "items": {"type": "object"}},
        "flow_document": {"type": "string"},
        "": {"type": "string"},
    },
    "additionalProperties": {"type": "string"},
}


def test_projections_cover_declared_key_and_inferred_fields() -> None:
    fields = project(infer(SCHEMA), ["/id"], {"part": Declared("/far/a~1b", partition=True)})

    assert [(each.field, each.pointer, sorted(each.types), each.exists) for each in fields] == [
        ("far", "/far", ["object"], "must"),
        ("far/a~1b", "/far/a~1b", ["null", "string"], "must"),
        ("flow_document", "", ["object"], "must"),
        ("flow_published_at", "/_meta/uuid", ["string"], "must"),
        ("id", "/id", ["integer"], "must"),
        ("pair", "/pair", ["array"], "may"),
        ("pair/0", "/pair/0", ["fractional", "integer"], "may"),
        ("pair/1", "/pair/1", ["string"], "may"),
        ("part", "/far/a~1b", ["null", "string"], "must"),
    ]
    by_name = {each.field: each for each in fields}
    assert (by_name["id"].is_key, by_name["id"].title, by_name["id"].explicit) == (True, "Identity", False)
    assert (by_name["part"].is_partition, by_name["part"].explicit, by_name["part"].default) == (True, True, (None,))


def test_a_declared_root_and_a_declared_key_replace_the_inferred_ones() -> None:
    fields = project(infer(SCHEMA), ["/id"], {"all": Declared("", False), "number": Declared("/id", False)})

    assert "flow_document" not in [each.field for each in fields]
    assert [each.field for each in fields if each.is_key] == ["id", "number"]


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"const": 1.0}, ["integer"]),  # an integer by value
        ({"enum": [1.5, None]}, ["fractional", "null"]),
        ({"type": ["string", "null"], "enum": ["a"]}, ["string"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}], "type": ["integer", "object"]}, ["integer"]),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, ["null"]),
        ({"if": {}, "then": {"type": "string"}, "else": {"type": "null"}}, ["null", "string"]),
        ({"type": "null", "if": {}, "then": {"type": "string"}}, ["null"]),  # one branch alone says nothing
        ({"type": "number"}, ["fractional", "integer"]),
        ({"type": ["fractional", "null"]}, ["fractional", "null"]),
        ({"const": 1, "enum": [2, 1.0]}, ["integer"]),
        ({"const": 1, "enum": [True]}, []),  # 1 is not true
        ({"enum": ["a", 1], "type": "number"}, ["integer"]),
        ({"allOf": [{"enum": [1, "a"]}, {"enum": ["a", None]}]}, ["string"]),
        ({"$ref": "#/%24defs/n%20m"}, ["boolean"]),  # percent-encoded, as a URL may be
        ({"$ref": "#/$defs/list/anyOf/1"}, ["boolean"]),
        ({"$ref": "#/$defs/named"}, ["boolean"]),
        ({"$ref": "#there"}, ["boolean"]),  # by anchor
        ({"not": {"type": "string"}, "type": "string"}, ["string"]),  # `not` says nothing
        (False, []),
        # What cannot be followed says nothing.
        ({"type": "null", "$ref": "#/$defs/gone"}, ["null"]),
        ({"type": "null", "$ref": "#/$defs/list/anyOf/2"}, ["null"]),
        ({"type": "null", "$ref": "#gone"}, ["null"]),
        ({"type": "null", "$ref": "other.json"}, ["null"]),
        ({"type": "null", "$ref": "#twice"}, ["null"]),
    ],
)
def test_projections_have_types(schema: JSON, types: list[str]) -> None:
    named = {
        "named": {"$anchor": "there", "type": "boolean"},
        "n m": {"type": "boolean"},
        "list": {"anyOf": [True, {"type": "boolean"}]},
        "twice": {"anyOf": [{"$anchor": "twice", "type": "string"}, {"$anchor": "twice", "type": "integer"}]},
    }
    root = {"type": "object", "properties": {"x": schema}, "$defs": named}

    assert sorted(infer(root).properties["x"].types) == types


def test_recursive_reference_infers_nothing() -> None:
    shape = infer({"type": "object", "properties": {"child": {"$ref": "#"}, "id": {"type": "integer"}}})

    assert sorted(shape.properties["child"].properties) == ["child", "id"]


def test_references_between_embedded_documents_infer_nothing() -> None:
    inner = {"$id": "inner", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "null"}}}
    shape = infer({"properties": {"in": inner}, "$defs": {"a": {"type": "string"}}})

    assert shape.properties["in"].properties["x"] == ANYTHING


def test_schemas_that_refer_to_one_another_in_many_ways_have_a_shape() -> None:
    names = [f"n{number}" for number in range(12)]  # 12! ways through them
    node = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}}

    shape = infer({"$ref": "#/$defs/n0", "$defs": dict.fromkeys(names, node)})

    assert locate(shape, ("n1", "n2", "n3"))[0].types == {"object"}


OBJECT: dict[str, Any] = {
    "type": "object",
    "required": ["must", "both", "unknown"],
    "properties": {"must": {"type": "string"}, "may": {"type": "null"}, "never": False, "list": {"$ref": "#/$defs/list"}},
    "patternProperties": {"^p": {"type": "integer"}, "q$": {"type": ["integer", "string"]}},
    "$defs": {
        "list": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path", "exists", "types"),
    [
        (OBJECT, "", "must", ["object"]),
        (OBJECT, "must", "must", ["string"]),
        (OBJECT, "may", "may", ["null"]),
        (OBJECT, "never", "cannot", []),
        (OBJECT, "unknown", "must", "ANY"),  # required, and no more is known
        (OBJECT, "other", "implicit", "ANY"),
        (OBJECT, "p", "may", ["integer"]),  # by its pattern
        (OBJECT, "pq", "may", ["integer"]),  # by both
        (OBJECT, "must/below", "cannot", []),  # of a string
        (OBJECT, "other/below", "implicit", "ANY"),
        (OBJECT, "list/0", "may", ["string"]),  # the list itself may be missing
        (OBJECT, "list/2", "may", ["boolean"]),
        (OBJECT, "list/3", "cannot", []),  # past the end
        (OBJECT, "list/01", "cannot", []),  # not an index
        (OBJECT, "list/-", "cannot", []),
        (OBJECT, "list/" + "9" * 5000, "cannot", []),
        (OBJECT["$defs"]["list"], "0", "must", ["string"]),
        (OBJECT["$defs"]["list"], "1", "may", ["null"]),
        ({"type": "array", "minItems": 2}, "1", "must", "ANY"),
        ({"type": "array"}, "1", "implicit", "ANY"),
        ({**OBJECT, "type": ["object", "null"]}, "must", "may", ["string"]),  # or there is no object
        ({**OBJECT, "additionalProperties": False}, "other", "cannot", []),
        ({**OBJECT, "additionalProperties": {"type": "null"}}, "other", "may", ["null"]),
        ({**OBJECT, "additionalProperties": {"type": "null"}}, "unknown", "must", ["null"]),
        ({**OBJECT, "additionalProperties": False}, "p", "may", ["integer"]),
        ({"properties": {"0": {"type": "null"}}, "items": {"type": "string"}}, "0", "may", ["null", "string"]),
        ({"anyOf": [{"required": ["a"]}, {"required": ["a", "b"]}], "type": "object"}, "a", "must", "ANY"),
        ({"anyOf": [{"required": ["a"]}, {"required": ["a", "b"]}], "type": "object"}, "b", "implicit", "ANY"),
        (
            {"anyOf": [OBJECT, {"type": "object", "additionalProperties": {"type": "null"}}]},
            "must",
            "may",
            ["null", "string"],
        ),
        ({"anyOf": [OBJECT, {"type": "object", "additionalProperties": False}]}, "pz", "may", ["integer"]),
        ({"anyOf": [OBJECT, {"type": "object"}]}, "pz", "implicit", "ANY"),
        (
            {
                "anyOf": [
                    {**OBJECT, "additionalProperties": False},
                    {"type": "object", "additionalProperties": {"type": "null"}},
                ]
            },
            "pz",
            "may",
            ["integer", "null"],
        ),
        ({"allOf": [OBJECT, {"additionalProperties": {"type": ["integer", "null"]}}]}, "pz", "may", ["integer"]),
        # What no part mentions is unevaluated; what any may mention is not.
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, "b", "cannot", []),
        ({"allOf": [{"properties": {"a": {"type": "null"}}}], "unevaluatedProperties": False}, "a", "may", ["null"]),
        (
            {"anyOf": [{"properties": {"a": {"type": "null"}}}, True], "unevaluatedProperties": {"type": "string"}},
            "a",
            "may",
            "ANY",
        ),
        (
            {
                "$ref": "#/$defs/o",
                "unevaluatedProperties": False,
                "$defs": {"o": {"additionalProperties": {"type": "null"}}},
            },
            "b",
            "may",
            ["null"],
        ),
        ({"if": {"patternProperties": {"^p": True}}, "unevaluatedProperties": False}, "pa", "may", "ANY"),
        ({"type": "array", "prefixItems": [True], "unevaluatedItems": {"type": "null"}}, "1", "may", ["null"]),
        ({"type": "array", "contains": True, "unevaluatedItems": {"type": "null"}}, "1", "implicit", "ANY"),
        (
            {"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "string"}},
            "1",
            "may",
            ["string"],
        ),  # draft 2019-09
    ],
)
def test_projections_have_existence_of_locations(schema: JSON, path: str, exists: str, types: list[str] | str) -> None:
    found = locate(infer(schema), tuple(path.split("/")) if path else ())

    assert (found[1], sorted(found[0].types)) == (exists, sorted(ALL) if types == "ANY" else types)


def test_projections_record_constraints_of_fields() -> None:
    text = {"type": "string", "contentMediaType": "text/csv", "maxLength": 9}
    (field,) = (each for each in project(infer({"properties": {"text": text}}), [], {}) if each.field == "text")

    assert (field.content_type, field.max_length) == ("text/csv", 9)


def test_a_declared_publication_time_replaces_the_inferred_one() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    fields = project(infer(schema), [], {"flow_published_at": Declared("/at", False)})

    assert [(each.field, each.pointer) for each in fields][2:] == [("flow_published_at", "/at")]


def test_additional_properties_cover_patterns_and_unnamed_properties() -> None:
    patterns = {"patternProperties": {"^a": {"type": "null"}}}

    assert infer({}).additional is None
    assert infer(patterns).additional == ANYTHING
    closed = infer({**patterns, "additionalProperties": False}).additional
    assert closed is not None
    assert closed.types == {"null"}
