"""Evaluated locations, to which `unevaluatedProperties` and `unevaluatedItems` of a schema do not apply.

The successful parts of a schema depend on the document. Every location that some part may evaluate therefore counts as
evaluated, and the others are unevaluated in every document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from derive.document.pointer import JSON
from derive.schema.shape import ANYTHING, Shape

Resolve = Callable[[str], JSON]
"""Function from a reference to its target schema."""


def unevaluated(schema: dict[str, Any], infer: Callable[[JSON], Shape], resolve: Resolve) -> Shape:
    """Return the shape that a schema's `unevaluatedProperties` and `unevaluatedItems` allow."""
    names: set[str] = set()
    patterns: set[str] = set()
    length = 0
    rest = schema.get("unevaluatedProperties")
    items = schema.get("unevaluatedItems")
    for part in _parts(schema, resolve):
        names.update(part.get("properties", ()))
        patterns.update(part.get("patternProperties", ()))
        length = max(length, len(part.get("prefixItems", ())))
        own = part is schema
        if "additionalProperties" in part or "$dynamicRef" in part or ("unevaluatedProperties" in part and not own):
            rest = None
        if {"items", "contains", "$dynamicRef"} & set(part) or ("unevaluatedItems" in part and not own):
            items = None
    shape = Shape()
    if rest is not None:
        shape = Shape(
            properties=dict.fromkeys(sorted(names), ANYTHING),
            patterns=dict.fromkeys(sorted(patterns), ANYTHING),
            rest=infer(rest),
        )
    if items is None:
        return shape
    return Shape(
        properties=shape.properties,
        patterns=shape.patterns,
        rest=shape.rest,
        prefix=(ANYTHING,) * length,
        items=infer(items),
    )


def _parts(schema: JSON, resolve: Resolve) -> Iterator[dict[str, Any]]:
    """Yield the schema and all other schemas that apply to the same location."""
    pending, seen = [schema], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for keyword in ("allOf", "anyOf", "oneOf"):
            pending += part.get(keyword, ())
        pending += [part[keyword] for keyword in ("if", "then", "else") if keyword in part]
        pending += part.get("dependentSchemas", {}).values()
        if isinstance(part.get("$ref"), str):
            pending.append(resolve(part["$ref"]))
