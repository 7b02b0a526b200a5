"""The oracle of shapes: whether a document matches one, straight from what its attributes mean."""

from __future__ import annotations

from derive.document.key import compare
from derive.document.pointer import JSON
from derive.schema.shape import Shape, matches, type_of


def allows(shape: Shape, value: JSON) -> bool:
    """Whether a document matches a shape."""
    if type_of(value) not in shape.types:
        return False
    if shape.values is not None and not any(compare(value, each) == 0 for each in shape.values):
        return False
    if isinstance(value, dict):
        return shape.required <= set(value) and all(_allows_property(shape, name, value[name]) for name in value)
    if isinstance(value, list):
        most = shape.max_items if shape.max_items is not None else len(value)
        items = [shape.prefix[at] if at < len(shape.prefix) else shape.items for at in range(len(value))]
        fits = all(each is None or allows(each, item) for each, item in zip(items, value, strict=True))
        return fits and shape.min_items <= len(value) <= most
    if isinstance(value, str):
        return _between(shape.min_length, len(value), shape.max_length)
    return type_of(value) in ("null", "boolean") or _between(shape.minimum, value, shape.maximum)


def _between(least: float | None, value: float, most: float | None) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)


def _allows_property(shape: Shape, name: str, value: JSON) -> bool:
    if name in shape.properties:
        return allows(shape.properties[name], value)
    found = [each for pattern, each in shape.patterns.items() if matches(pattern, name)]
    return all(allows(each, value) for each in found or ([] if shape.rest is None else [shape.rest]))
