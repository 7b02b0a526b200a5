"""Keywords: which mean something, and what was probably meant by those that mean nothing."""

from __future__ import annotations

import pytest

from derive.document.pointer import JSON
from derive.schema.dialect import UnknownKeyword, subschemas, unknown_keywords


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (True, []),
        ({"type": "object", "reduce": {"strategy": "merge"}, "x-anything": 1, "X-Thing": 2}, []),
        ({"requried": ["a"]}, [UnknownKeyword("/requried", "requried", "required")]),
        ({"properties": {"requried": {}}}, []),  # a property may have any name
        ({"default": {"requried": 1}, "enum": [{"requried": 1}]}, []),  # and so may one of a value
        ({"properties": {"a/b": {"propertys": {}}}}, [UnknownKeyword("/properties/a~1b/propertys", "propertys", "properties")]),
        ({"items": [{"completelyElse": 1}]}, [UnknownKeyword("/items/0/completelyElse", "completelyElse", None)]),
        ({"allOf": [True, {"if": {"tpye": "null"}}]}, [UnknownKeyword("/allOf/1/if/tpye", "tpye", "type")]),
    ],
)  # fmt: skip
def test_unknown_keywords(schema: JSON, found: list[UnknownKeyword]) -> None:
    assert unknown_keywords(schema) == found


def test_schemas_inside_a_schema() -> None:
    schema = {
        "$defs": {"a/b": {"items": {"type": "null"}}},
        "not": False,
        "anyOf": [{"const": {"not": {}}}],
        "properties": 3,
    }

    assert [pointer for pointer, _ in subschemas(schema)] == ["", "/$defs/a~1b", "/$defs/a~1b/items", "/anyOf/0"]
