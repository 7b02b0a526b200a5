"""Convert a shape to an equivalent JSON Schema, the inverse of `infer`."""

from __future__ import annotations

from typing import Any

from derive.document.pointer import JSON
from derive.schema.shape import ALL, ANYTHING, NONE, Shape

_NUMBER = frozenset({"integer", "fractional"})


def serialize(shape: Shape) -> dict[str, Any]:
    """Return the JSON Schema of a shape.

    Inferring the result returns the shape again, with two exceptions: attributes of types that the shape does not have,
    and shapes of fractional numbers only, for which JSON Schema has no type.
    """
    schema: dict[str, Any] = {}
    if shape.types == NONE:
        return {"enum": []}
    if shape.types != ALL:
        schema["type"] = _types(shape.types)
    for keyword, value in (
        ("title", shape.title),
        ("description", shape.description),
        ("format", shape.format),
        ("contentEncoding", shape.content_encoding),
    ):
        if value is not None:
            schema[keyword] = value
    if shape.default:
        schema["default"] = shape.default[0]
    if "object" in shape.types:
        schema |= _object_keywords(shape)
    if "array" in shape.types:
        schema |= _array_keywords(shape)
    return schema


def _types(types: frozenset[str]) -> str | list[str]:
    named = sorted({"number"} | (types - _NUMBER) if "fractional" in types else types)
    return named[0] if len(named) == 1 else named


def _object_keywords(shape: Shape) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if shape.required:
        keywords["required"] = sorted(shape.required)
    if shape.properties:
        keywords["properties"] = {name: _below(member) for name, member in sorted(shape.properties.items())}
    if shape.additional is not None:
        keywords["additionalProperties"] = _below(shape.additional)
    return keywords


def _array_keywords(shape: Shape) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if shape.min_items:
        keywords["minItems"] = shape.min_items
    if shape.max_items is not None:
        keywords["maxItems"] = shape.max_items
    if shape.prefix:
        keywords["prefixItems"] = [_below(item) for item in shape.prefix]
    if shape.items is not None:
        keywords["items"] = _below(shape.items)
    return keywords


def _below(shape: Shape) -> JSON:
    """Return the schema of a shape as a subschema, which may be `true` or `false`."""
    if shape == ANYTHING:
        return True
    return serialize(shape) if shape.types else False
