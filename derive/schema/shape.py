"""Shapes: bounds of the values that a JSON Schema allows at a location, inferred without documents.

A shape is an upper bound: every document that is valid under the schema matches it. `union` bounds the values of either
of two shapes, `intersect` those of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Any, Literal, TypeAlias, TypeVar

import jsonschema_rs

from derive.document.order import compare, order_key
from derive.document.pointer import JSON


def matches(pattern: str, name: str) -> bool:
    """Return true if a regular expression matches some part of a property name, exactly as in validation."""
    return _compile(pattern).is_valid(name)


@cache
def _compile(pattern: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"pattern": pattern})


Values: TypeAlias = tuple[JSON, ...]
"""Distinct values in document order; 1 equals 1.0, and 1 differs from true."""


def type_of(value: JSON) -> str:
    """Return the JSON type of a value; 1.0 is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fractional"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def distinct(values: Iterable[JSON]) -> Values:
    """Return the distinct values, sorted by `derive.document.order`."""
    unique: list[JSON] = []
    for value in sorted(values, key=order_key):
        if not unique or compare(unique[-1], value):
            unique.append(value)
    return tuple(unique)


def common(left: Values, right: Values) -> Values:
    """Return the values on both sides."""
    return tuple(value for value in left if any(compare(value, other) == 0 for other in right))


def equal(left: Values, right: Values) -> bool:
    """Return true if both sides have the same values."""
    return compare(list(left), list(right)) == 0


Exists: TypeAlias = Literal["must", "may", "implicit", "cannot"]
"""Existence of a location: in every valid document, in some, unknown to the schema, or in none."""

Types: TypeAlias = frozenset[str]
"""JSON types: `array boolean fractional integer null object string`."""

ALL: Types = frozenset({"array", "boolean", "fractional", "integer", "null", "object", "string"})
NONE: Types = frozenset()
NUMBER: Types = frozenset({"fractional", "integer"})


@dataclass(frozen=True, slots=True)
class Shape:
    """The bound of a location.

    An attribute of one type (`format` of strings, `items` of arrays) describes only values of that type, and is unset
    if the type is impossible.

    Attributes:
        types: possible JSON types.
        properties: shapes of named properties.
        required: names of required properties.
        rest: shape of properties that are neither named nor match a pattern; None if unspecified.
        prefix: shapes of the first items.
        items: shape of other items; None if unspecified.
        min_items: least number of items.
        max_items: greatest number of items; None if unbounded.
        default: the default, as a one-element tuple; empty for none.
        format: the `format` of strings.
        content_encoding: the `contentEncoding` of strings.
        title: the `title` annotation.
        description: the `description` annotation.
        patterns: shapes of unnamed properties with a matching name, by regular expression.
        values: the only possible values; None if the schema lists none.
        content_type: the `contentMediaType` of strings.
        min_length: least number of characters.
        max_length: greatest number of characters; None if unbounded.
        minimum: least number; None if unbounded.
        maximum: greatest number; None if unbounded.
        secret: the `secret` annotation.
        reduction: the `reduce` annotation, or `MULTIPLE`.
        name: name of the schema, if `Inference` has names; all other attributes are then unset.
        alternatives: shapes of the alternatives, where `Inference` keeps them separate; the other attributes bound them
            all.
    """

    types: Types = ALL
    properties: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    rest: Shape | None = None
    prefix: tuple[Shape, ...] = ()
    items: Shape | None = None
    min_items: int = 0
    max_items: int | None = None
    default: tuple[JSON, ...] = ()
    format: str | None = None
    content_encoding: str | None = None
    title: str | None = None
    description: str | None = None
    patterns: Mapping[str, Shape] = field(default_factory=dict)
    values: Values | None = None
    content_type: str | None = None
    min_length: int = 0
    max_length: int | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    secret: bool | None = None
    reduction: Mapping[str, JSON] | None = None
    name: str | None = None
    alternatives: tuple[Shape, ...] = ()

    @property
    def additional(self) -> Shape | None:
        """Return the shape of any property that is not named; None if unspecified."""
        if not self.patterns:
            return self.rest
        return reduce(union, self.patterns.values(), self.rest or ANYTHING)

    def member(self, name: str) -> Shape | None:
        """Return the shape of a property: by name, else by patterns, else `rest`; None if unspecified."""
        if name in self.properties:
            return self.properties[name]
        matching = [pattern_shape for pattern, pattern_shape in self.patterns.items() if matches(pattern, name)]
        return reduce(intersect, matching) if matching else self.rest

    def item(self, index: int) -> Shape | None:
        """Return the shape of an item; None if unspecified."""
        return self.prefix[index] if index < len(self.prefix) else self.items


ANYTHING = Shape()
NOTHING = Shape(types=NONE)
MULTIPLE: Mapping[str, JSON] = {"strategy": "multiple"}
"""Reduction of a location whose alternatives have different ones."""

_OBJECT, _ARRAY, _STRING = frozenset({"object"}), frozenset({"array"}), frozenset({"string"})
_FACETS: Mapping[Types, tuple[str, ...]] = {
    _OBJECT: ("properties", "required", "rest", "patterns"),
    _ARRAY: ("prefix", "items", "min_items", "max_items"),
    _STRING: ("format", "content_encoding", "content_type", "min_length", "max_length"),
    NUMBER: ("minimum", "maximum"),
}
"""Attributes that describe only values of some types."""

_MOST_ALTERNATIVES = 64
"""Limit for the number of alternatives; beyond it only their common bound is kept."""

_T = TypeVar("_T")


def settle(shape: Shape) -> Shape:
    """Return the shape without attributes that have no effect, so that equivalent shapes are equal."""
    types, values = shape.types, shape.values
    if values is not None:
        values = tuple(value for value in values if type_of(value) in types)
        types &= frozenset(map(type_of, values))
    if not types:
        return NOTHING
    unset: dict[str, Any] = {}
    for kinds, names in _FACETS.items():
        if not types & kinds:
            unset.update({name: getattr(ANYTHING, name) for name in names})
    return replace(shape, types=types, values=values, **unset)


def union(left: Shape, right: Shape) -> Shape:
    """Return the union of two shapes."""
    if not left.types or not right.types:
        return right if not left.types else left
    facets: dict[str, Any] = {}
    for kinds, unite in _UNITE.items():
        # A side that cannot be an object (or array, …) does not constrain properties (or items, …).
        if left.types & kinds and right.types & kinds:
            facets.update(unite(left, right))
        else:
            side = left if left.types & kinds else right
            facets.update({name: getattr(side, name) for name in _FACETS[kinds]})
    return Shape(
        left.types | right.types,
        default=left.default if equal(left.default, right.default) else (),
        title=_same(left.title, right.title),
        description=_same(left.description, right.description),
        values=_unite_values(left, right),
        secret=_same(left.secret, right.secret),
        reduction=_unite_reductions(left.reduction, right.reduction),
        **facets,
    )


def _same(left: _T | None, right: _T | None) -> _T | None:
    return left if left == right else None


def _loosest(choose: Callable[[Any, Any], _T], left: _T | None, right: _T | None) -> _T | None:
    return None if left is None or right is None else choose(left, right)


def _tightest(choose: Callable[[Any, Any], _T], left: _T | None, right: _T | None) -> _T | None:
    return choose(left, right) if left is not None and right is not None else right if left is None else left


def _unite_values(left: Shape, right: Shape) -> Values | None:
    if left.values is None and right.values is None:
        return None
    sides = [_listed(left), _listed(right)]
    return None if sides[0] is None or sides[1] is None else distinct((*sides[0], *sides[1]))


def _listed(shape: Shape) -> Values | None:
    # null and booleans are enumerable: a nullable enumeration stays one.
    if shape.values is None and shape.types <= {"null", "boolean"}:
        return ((None,) if "null" in shape.types else ()) + ((False, True) if "boolean" in shape.types else ())
    return shape.values


def _unite_reductions(left: Mapping[str, JSON] | None, right: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
    if left is None or right is None:
        return None
    return left if equal((left,), (right,)) else MULTIPLE


def _unite_strings(left: Shape, right: Shape) -> dict[str, Any]:
    numeric = {left.format, right.format} == {"integer", "number"}
    return {
        "format": "number" if numeric else _same(left.format, right.format),
        "content_encoding": _same(left.content_encoding, right.content_encoding),
        "content_type": _same(left.content_type, right.content_type),
        "min_length": min(left.min_length, right.min_length),
        "max_length": _loosest(max, left.max_length, right.max_length),
    }


def _unite_numbers(left: Shape, right: Shape) -> dict[str, Any]:
    return {
        "minimum": _loosest(min, left.minimum, right.minimum),
        "maximum": _loosest(max, left.maximum, right.maximum),
    }


def _unite_objects(left: Shape, right: Shape) -> dict[str, Any]:
    properties = {}
    for name in sorted({*left.properties, *right.properties}):
        both = _loosest(union, left.member(name), right.member(name))
        if both is not None:
            properties[name] = both
    patterns = {}
    for pattern in sorted({*left.patterns, *right.patterns}):
        both = _loosest(union, _bound(left, pattern), _bound(right, pattern))
        if both is not None:
            patterns[pattern] = both
    return {
        "properties": properties,
        "required": left.required & right.required,
        "rest": _loosest(union, left.rest, right.rest),
        "patterns": patterns,
    }


def _bound(shape: Shape, pattern: str) -> Shape | None:
    """Return the bound of unnamed properties that match a pattern, which the shape need not have."""
    if pattern in shape.patterns:
        return shape.patterns[pattern]
    if shape.rest is None:
        return None
    # These properties may match any of its patterns, or none.
    return reduce(union, shape.patterns.values(), shape.rest)


def _unite_arrays(left: Shape, right: Shape) -> dict[str, Any]:
    length = max(len(left.prefix), len(right.prefix))
    prefix = []
    for index in range(length):
        both = _loosest(union, left.item(index), right.item(index))
        if both is None:
            break
        prefix.append(both)
    return {
        "prefix": tuple(prefix),
        "items": _loosest(union, left.items, right.items) if len(prefix) == length else None,
        "min_items": min(left.min_items, right.min_items),
        "max_items": _loosest(max, left.max_items, right.max_items),
    }


_UNITE: Mapping[Types, Callable[[Shape, Shape], dict[str, Any]]] = {
    _OBJECT: _unite_objects,
    _ARRAY: _unite_arrays,
    _STRING: _unite_strings,
    NUMBER: _unite_numbers,
}


def intersect(left: Shape, right: Shape) -> Shape:
    """Return the intersection of two shapes; annotations of `left` come first."""
    alternatives = _distribute(left, right) if left.alternatives or right.alternatives else ()
    if alternatives is None:
        return NOTHING
    names = sorted({*left.properties, *right.properties})
    patterns = sorted({*left.patterns, *right.patterns})
    length = max(len(left.prefix), len(right.prefix))
    both = _tightest(common, left.values, right.values)
    return settle(
        Shape(
            left.types & right.types,
            {name: _tightest(intersect, left.member(name), right.member(name)) or ANYTHING for name in names},
            left.required | right.required,
            _tightest(intersect, left.rest, right.rest),
            tuple(_tightest(intersect, left.item(at), right.item(at)) or ANYTHING for at in range(length)),
            _tightest(intersect, left.items, right.items),
            max(left.min_items, right.min_items),
            _tightest(min, left.max_items, right.max_items),
            default=left.default or right.default,
            format=left.format or right.format,
            content_encoding=left.content_encoding or right.content_encoding,
            title=left.title or right.title,
            description=left.description or right.description,
            patterns={
                pattern: _tightest(intersect, _bound(left, pattern), _bound(right, pattern)) or ANYTHING
                for pattern in patterns
            },
            values=both,
            content_type=left.content_type or right.content_type,
            min_length=max(left.min_length, right.min_length),
            max_length=_tightest(min, left.max_length, right.max_length),
            minimum=_tightest(max, left.minimum, right.minimum),
            maximum=_tightest(min, left.maximum, right.maximum),
            secret=right.secret if left.secret is None else left.secret,
            reduction=left.reduction or right.reduction,
            name=left.name or right.name,
            alternatives=alternatives,
        )
    )


def _distribute(left: Shape, right: Shape) -> tuple[Shape, ...] | None:
    """Return the possible alternatives of an intersection; None if there are none."""
    sides = [side.alternatives or (replace(side, title=None, description=None),) for side in (left, right)]
    if len(sides[0]) * len(sides[1]) > _MOST_ALTERNATIVES:
        return ()
    products = (intersect(one, other) for one in sides[0] for other in sides[1])
    return tuple(product for product in products if product.types) or None


def locate(shape: Shape, tokens: tuple[str, ...]) -> tuple[Shape, Exists]:
    """Return the shape of a location and its existence, which is that of the least certain token of the path."""
    exists: Exists = "must"
    order: tuple[Exists, ...] = ("must", "may", "implicit", "cannot")
    for token in tokens:
        shape, step = _step(shape, token)
        exists = max(exists, step, key=order.index)
    return (NOTHING if exists == "cannot" else shape), exists


def _step(shape: Shape, token: str) -> tuple[Shape, Exists]:
    candidates: list[tuple[Shape, Exists]] = []
    if "object" in shape.types:
        must = token in shape.required and shape.types == _OBJECT
        candidates.append(_known(shape.member(token), must))
    if "array" in shape.types and token.isascii() and token.isdigit() and (token == "0" or token[0] != "0"):
        index = int(token[:19])  # no array is that long, and `int` rejects thousands of digits
        beyond = shape.max_items is not None and index >= shape.max_items
        must = index < shape.min_items and shape.types == _ARRAY
        candidates.append(_known(NOTHING if beyond else shape.item(index), must))
    candidates = [candidate for candidate in candidates if candidate[1] != "cannot"]
    if len(candidates) == 2:
        return union(candidates[0][0], candidates[1][0]), "may"
    return candidates[0] if candidates else (NOTHING, "cannot")


def _known(shape: Shape | None, must: bool) -> tuple[Shape, Exists]:
    if shape is None:
        return ANYTHING, "must" if must else "implicit"
    if not shape.types:
        return NOTHING, "cannot"
    return shape, "must" if must else "may"


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
