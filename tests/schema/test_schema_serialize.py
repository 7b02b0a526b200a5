"""Shapes as JSON Schemas."""

from __future__ import annotations

from typing import Any

import pytest

from derive.schema.shape import infer, serialize


@pytest.mark.parametrize(
    "schema",
    [  # each is what its own shape is written as
        {},
        {"enum": []},
        {"type": "integer"},
        {"type": ["boolean", "number", "string"]},
        {"type": "string", "title": "T", "description": "D", "format": "date", "contentEncoding": "base64"},
        {"default": None},
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": True, "b": False, "c": {"type": "null"}},
            "additionalProperties": False,
        },
        {"type": "array", "minItems": 1, "maxItems": 0, "prefixItems": [True], "items": {"type": "string"}},
    ],
)
def test_inferred_shapes_are_serialized_unchanged(schema: dict[str, Any]) -> None:
    assert serialize(infer(schema)) == schema


def test_fractional_numbers_are_serialized_as_numbers() -> None:
    assert serialize(infer({"const": 0.5})) == {"type": "number"}


def test_impossible_keywords_are_not_serialized() -> None:
    assert serialize(infer({"type": "string", "properties": {"a": {}}, "items": {}})) == {"type": "string"}
