"""Shapes: what a JSON Schema says of a location, inferred without a document.

A shape is an upper bound: every document that is valid under the schema matches it. `union` bounds what either of two
shapes allows, `intersect` what both do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from derive.document.pointer import JSON

Exists: TypeAlias = Literal["must", "may", "implicit", "cannot"]
"""Whether a location is in every valid document, in some, unknown to the schema, or in none."""

Types: TypeAlias = frozenset[str]
"""JSON types: `array boolean fractional integer null object string`."""

ALL: Types = frozenset({"array", "boolean", "fractional", "integer", "null", "object", "string"})
NONE: Types = frozenset()


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a location.

    Attributes:
        types: which JSON types are possible.
        properties: shapes of named properties.
        required: names of properties that must exist.
        additional: shape of other properties; None if the schema is silent.
        prefix: shapes of the first items.
        items: shape of other items; None if the schema is silent.
        min_items: least number of items.
        max_items: greatest number of items, if bounded.
        default: the default, as a one-element tuple.
        format: the `format` of strings.
        content_encoding: the `contentEncoding` of strings.
        title: annotation.
        description: annotation.
    """

    types: Types = ALL
    properties: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    additional: Shape | None = None
    prefix: tuple[Shape, ...] = ()
    items: Shape | None = None
    min_items: int = 0
    max_items: int | None = None
    default: tuple[JSON, ...] = ()
    format: str | None = None
    content_encoding: str | None = None
    title: str | None = None
    description: str | None = None


ANYTHING = Shape()
NOTHING = Shape(types=NONE)


def union(left: Shape, right: Shape) -> Shape:
    """What one or the other allows."""
    if not left.types or not right.types:
        return right if not left.types else left
    # A side that cannot be an object (or array) says nothing about properties (or items).
    objects = arrays = None
    if "object" not in left.types or "object" not in right.types:
        objects = left if "object" in left.types else right
    if "array" not in left.types or "array" not in right.types:
        arrays = left if "array" in left.types else right
    objects = objects or _union_objects(left, right)
    arrays = arrays or _union_arrays(left, right)
    return Shape(
        left.types | right.types,
        objects.properties,
        objects.required,
        objects.additional,
        arrays.prefix,
        arrays.items,
        arrays.min_items,
        arrays.max_items,
        default=left.default if left.default == right.default else (),
        format=_same_format(left.format, right.format),
        content_encoding=_same(left.content_encoding, right.content_encoding),
        title=_same(left.title, right.title),
        description=_same(left.description, right.description),
    )


def _same(left: str | None, right: str | None) -> str | None:
    return left if left == right else None


def _same_format(left: str | None, right: str | None) -> str | None:
    return "number" if {left, right} == {"integer", "number"} else _same(left, right)


def _union_objects(left: Shape, right: Shape) -> Shape:
    properties = {}
    for name in sorted({*left.properties, *right.properties}):
        sides = [side.properties.get(name, side.additional) for side in (left, right)]
        if sides[0] is not None and sides[1] is not None:
            properties[name] = union(sides[0], sides[1])
    additional = None
    if left.additional is not None and right.additional is not None:
        additional = union(left.additional, right.additional)
    return Shape(properties=properties, required=left.required & right.required, additional=additional)


def _union_arrays(left: Shape, right: Shape) -> Shape:
    length = max(len(left.prefix), len(right.prefix))
    prefix = []
    for place in range(length):
        sides = [side.prefix[place] if place < len(side.prefix) else side.items for side in (left, right)]
        if sides[0] is None or sides[1] is None:
            break
        prefix.append(union(sides[0], sides[1]))
    items = None
    if left.items is not None and right.items is not None and len(prefix) == length:
        items = union(left.items, right.items)
    bounded = left.max_items is not None and right.max_items is not None
    most = max(left.max_items or 0, right.max_items or 0) if bounded else None
    return Shape(prefix=tuple(prefix), items=items, min_items=min(left.min_items, right.min_items), max_items=most)


def intersect(left: Shape, right: Shape) -> Shape:
    """What both allow; annotations of the left count first."""
    properties = {}
    for name in sorted({*left.properties, *right.properties}):
        sides = [side.properties.get(name, side.additional) for side in (left, right)]
        properties[name] = _both(sides[0], sides[1]) or ANYTHING
    length = max(len(left.prefix), len(right.prefix))
    prefix = []
    for place in range(length):
        sides = [side.prefix[place] if place < len(side.prefix) else side.items for side in (left, right)]
        prefix.append(_both(sides[0], sides[1]) or ANYTHING)
    bounds = [each for each in (left.max_items, right.max_items) if each is not None]
    return Shape(
        left.types & right.types,
        properties,
        left.required | right.required,
        _both(left.additional, right.additional),
        tuple(prefix),
        _both(left.items, right.items),
        max(left.min_items, right.min_items),
        min(bounds, default=None),
        default=left.default or right.default,
        format=left.format or right.format,
        content_encoding=left.content_encoding or right.content_encoding,
        title=left.title or right.title,
        description=left.description or right.description,
    )


def _both(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None:
        return right if left is None else left
    return intersect(left, right)


def locate(shape: Shape, tokens: tuple[str, ...]) -> tuple[Shape, Exists]:
    """The shape of a location, and whether it exists: the worst along the way counts."""
    exists: Exists = "must"
    order: tuple[Exists, ...] = ("must", "may", "implicit", "cannot")
    for token in tokens:
        found, step = _step(shape, token)
        shape = found
        exists = max(exists, step, key=order.index)
    return (NOTHING if exists == "cannot" else shape), exists


def _step(shape: Shape, token: str) -> tuple[Shape, Exists]:
    candidates: list[tuple[Shape, Exists]] = []
    if "object" in shape.types:
        candidates.append(_property(shape, token))
    if "array" in shape.types and token.isascii() and token.isdigit():
        candidates.append(_item(shape, int(token)))
    candidates = [each for each in candidates if each[1] != "cannot"]
    if not candidates:
        return NOTHING, "cannot"
    if len(candidates) == 1:
        return candidates[0]
    return union(candidates[0][0], candidates[1][0]), "may"


def _property(shape: Shape, name: str) -> tuple[Shape, Exists]:
    must = name in shape.required and shape.types == {"object"}
    found = shape.properties.get(name, shape.additional)
    if found is None:
        return ANYTHING, "must" if must else "implicit"
    if not found.types:
        return NOTHING, "cannot"
    return found, "must" if must else "may"


def _item(shape: Shape, place: int) -> tuple[Shape, Exists]:
    if shape.max_items is not None and place >= shape.max_items:
        return NOTHING, "cannot"
    must = place < shape.min_items and shape.types == {"array"}
    found = shape.prefix[place] if place < len(shape.prefix) else shape.items
    if found is None:
        return ANYTHING, "must" if must else "implicit"
    if not found.types:
        return NOTHING, "cannot"
    return found, "must" if must else "may"


def annotate(shape: Shape, schema: Mapping[str, JSON]) -> Shape:
    """The shape with a schema's own annotations, which come before those it refers to."""
    return replace(
        shape,
        default=(schema["default"],) if "default" in schema else shape.default,
        title=schema.get("title", shape.title),
        description=schema.get("description", shape.description),
    )
