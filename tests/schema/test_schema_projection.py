"""Which fields a collection has, and what is known of each."""

from __future__ import annotations

import pytest

from derive.document.pointer import JSON
from derive.schema.infer import infer
from derive.schema.projection import Declared, project

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


def test_fields_of_a_collection() -> None:
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
        ({"$ref": "#/$defs/named"}, ["boolean"]),
        ({"$ref": "#there"}, ["boolean"]),  # by anchor
        ({"not": {"type": "string"}, "type": "string"}, ["string"]),  # `not` says nothing
        (False, []),
    ],
)
def test_types(schema: JSON, types: list[str]) -> None:
    named = {"named": {"$anchor": "there", "type": "boolean"}}
    root = {"type": "object", "properties": {"x": schema}, "$defs": named}

    assert sorted(infer(root).properties["x"].types) == types


def test_a_recursive_reference_says_nothing() -> None:
    shape = infer({"type": "object", "properties": {"child": {"$ref": "#"}, "id": {"type": "integer"}}})

    assert sorted(shape.properties["child"].properties) == ["child", "id"]
